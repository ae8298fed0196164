"""`/load-and-describe` and `/validate-tool`: what a tool is, asked for once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.doors.tpmjs.scripted import Door, Tools, call

from hutch.doors.tpmjs import describing
from hutch.doors.tpmjs.describing import Descriptions
from hutch.doors.tpmjs.requests import parse_call

TOOL = {
    "name": "echo",
    "description": "Says it back",
    "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}},
}
PATHS = ("/load-and-describe", "/validate-tool")


@pytest.mark.parametrize("path", [*PATHS, "/api/load-and-describe", "//validate-tool"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_tool_is_described_with_its_exact_version(path: str, version: str) -> None:
    response = await Door().post(path, call("echo"), X_TPMJS_Protocol_Version=version)
    assert (response.status_code, response.json()) == (
        200,
        {"success": True, "tool": TOOL, "resolvedVersion": "1.2.3"},
    )


async def test_failure_is_told_in_both_versions() -> None:
    door = Door()
    body = call("fail", {"code": "schema_unavailable"})
    for path in PATHS:
        said = (await door.post(path, body)).json()
        assert type(said.pop("executionTimeMs")) is int
        assert said == {
            "success": False,
            "error": {"code": "TOOL_INVALID", "message": "it broke"},
            "resolvedVersion": "1.2.3",
        }
        said = (await door.post(path, body, X_TPMJS_Protocol_Version="1.1")).json()
        assert (said["errorStage"], said["errorCode"]) == ("load", "SCHEMA_UNAVAILABLE")
    assert door.tools.described == 4


async def test_description_that_takes_too_long_is_a_timeout() -> None:
    said = (await Door(request_seconds=0.05).post("/validate-tool", call("wait"))).json()
    assert said["error"]["code"] == "EXECUTION_TIMEOUT"


async def test_description_is_kept_for_both_routes_and_for_the_exact_version() -> None:
    door = Door()
    first = await door.post("/load-and-describe", call("echo"))
    for path in PATHS:
        for version in ("latest", "1.2.3"):
            again = await door.post(path, {**call("echo"), "version": version})
            assert again.content == first.content
    assert door.tools.described == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def ask(cache: Descriptions, name: str = "echo", **more: Any) -> None:
    """As the door does."""
    wanted = parse_call(call(name, **more), "local")
    if cache.known(wanted) is None:
        await cache.ask(wanted)


async def test_what_a_tag_led_to_is_asked_for_again_and_a_version_is_not() -> None:
    tools, clock = Tools(), Clock()
    cache = Descriptions(tools, 300, clock)
    await ask(cache)
    clock.now = 299.9
    await ask(cache)
    assert tools.described == 1
    clock.now = 300
    await ask(cache, version="1.2.3")
    assert tools.described == 1
    await ask(cache)
    assert tools.described == 2


async def test_failures_and_calls_with_an_env_are_not_kept() -> None:
    tools = Tools()
    cache = Descriptions(tools, 300)
    for _ in range(2):
        await ask(cache, "fail", params={"code": "tool_invalid"})
        await ask(cache, env={"KEY": "x"})
    assert tools.described == 4
    await ask(cache)
    await ask(cache, env={"KEY": "x"})
    assert tools.described == 6


async def test_what_is_kept_is_bounded_and_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "_MAX_KEPT", 4)
    tools = Tools()
    cache = Descriptions(tools, 300)
    for number in range(2):
        await ask(cache, packageName=f"p{number}")
    await ask(cache, packageName="p0")
    assert tools.described == 2
    await ask(cache, packageName="p2")
    await ask(cache, packageName="p0")
    assert tools.described == 3
    await ask(cache, packageName="p1")
    assert tools.described == 4


async def test_long_descriptions_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describing, "_MAX_BYTES", 10)
    tools = Tools()
    cache = Descriptions(tools, 300)
    await ask(cache)
    await ask(cache)
    assert tools.described == 2
