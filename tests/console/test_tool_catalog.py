"""Routes of the Tools view: npm packages and abilities."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.harness import ToolServer, server_with_registry, tool
from tests.support.processes import hutch


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("catalog")


@pytest.fixture(scope="module")
async def server(anyio_backend: object, environment: None, home: Path) -> AsyncIterator[ToolServer]:
    async with server_with_registry(home, quickjs_warm=0, deno_warm=0) as server:
        yield server


async def test_packages_are_installed_shown_and_removed(server: ToolServer) -> None:
    described = {"tools": [{"name": "tool", "description": "Adds."}, {"name": "other"}]}
    server.npm.publish("@a/listed", files={"index.js": tool("return 1")}, tpmjs=described)
    installed = await server.client.post("/console/packages", json={"package": "@a/listed"})
    assert (installed.status_code, installed.json()) == (201, {"name": "@a/listed", "version": "1.0.0"})
    [listed] = (await server.client.get("/console/packages")).json()["packages"]
    assert (listed["name"], listed["version"], listed["knownAs"]) == ("@a/listed", "1.0.0", ["latest"])
    assert listed["bytes"] > 0
    shown = (await server.client.get("/console/packages/@a/listed@1.0.0")).json()
    assert shown["tools"] == [{"name": "tool", "description": "Adds."}, {"name": "other", "description": ""}]
    assert (await server.client.delete("/console/packages/@a/listed@1.0.0")).status_code == 204
    assert (await server.client.get("/console/packages/@a/listed@1.0.0")).status_code == 404
    assert (await server.client.get("/console/packages")).json() == {"packages": []}
    assert (await server.client.delete("/console/packages/@a/listed@1.0.0")).status_code == 404


async def test_spares_of_a_package_are_counted(server: ToolServer) -> None:
    package = server.publish(tool("return 1"))
    path = f"/console/packages/{package}@1.0.0"
    await server.execute(package)
    while (await server.client.get(path)).json()["spares"] == 0:
        pass


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "`package`: expected a name"),
        ({"package": "no such name"}, 400, "packageName"),
        ({"package": "absent"}, 404, "absent"),
    ],
)
async def test_wrong_package_is_refused(
    server: ToolServer, body: dict[str, str], status: int, message: str
) -> None:
    refused = await server.client.post("/console/packages", json=body)
    assert (refused.status_code, message in refused.json()["error"]["message"]) == (status, True)


async def test_operator_sees_abilities_of_all_users_without_their_code(
    server: ToolServer, home: Path, tmp_path: Path
) -> None:
    env = {"HUTCH_HOME": str(home)}
    hutch("user", "add", "ann", env=env)
    definition = {
        "ability_id": "get_it",
        "service_name": "example.com",
        "ability_name": "Get it",
        "wrapper_code": "async function wrapper() { return 'code that is hidden' }",
    }
    file = tmp_path / "ability.json"
    file.write_text(json.dumps(definition))
    hutch("ability", "add", "--user", "ann", str(file), env=env)
    response = await server.client.get("/console/abilities")
    [ability] = response.json()["abilities"]
    assert (ability["id"], ability["owner"], ability["version"]) == ("get_it", "ann", 1)
    assert "hidden" not in response.text
