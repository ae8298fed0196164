"""`/load-and-describe` and `/validate-tool`, with cached descriptions."""

from __future__ import annotations

from typing import Any

import pytest
from tests.protocols.tpmjs.harness import FakeTools, TpmjsServer, call

from hutch.protocols.tpmjs import descriptions
from hutch.protocols.tpmjs.descriptions import Descriptions
from hutch.protocols.tpmjs.requests import parse_call

TOOL = {
    "name": "echo",
    "description": "Says it back",
    "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}},
}
PATHS = ("/load-and-describe", "/validate-tool")


@pytest.mark.parametrize("path", [*PATHS, "/api/load-and-describe", "//validate-tool"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_tool_is_described_with_its_exact_version(path: str, version: str) -> None:
    response = await TpmjsServer().post(path, call("echo"), X_TPMJS_Protocol_Version=version)
    assert (response.status_code, response.json()) == (
        200,
        {"success": True, "tool": TOOL, "resolvedVersion": "1.2.3"},
    )


async def test_failure_in_both_versions() -> None:
    server = TpmjsServer()
    body = call("fail", {"code": "schema_unavailable"})
    for path in PATHS:
        data = (await server.post(path, body)).json()
        assert type(data.pop("executionTimeMs")) is int
        assert data == {
            "success": False,
            "error": {"code": "TOOL_INVALID", "message": "it broke"},
            "resolvedVersion": "1.2.3",
        }
        data = (await server.post(path, body, X_TPMJS_Protocol_Version="1.1")).json()
        assert (data["errorStage"], data["errorCode"]) == ("load", "SCHEMA_UNAVAILABLE")
    assert server.tools.described == 4


async def test_slow_description_is_a_timeout() -> None:
    data = (await TpmjsServer(request_seconds=0.05).post("/validate-tool", call("wait"))).json()
    assert data["error"]["code"] == "EXECUTION_TIMEOUT"


async def test_description_is_cached_for_both_routes_and_for_the_exact_version() -> None:
    server = TpmjsServer()
    first = await server.post("/load-and-describe", call("echo"))
    for path in PATHS:
        for version in ("latest", "1.2.3"):
            again = await server.post(path, {**call("echo"), "version": version})
            assert again.content == first.content
    assert server.tools.described == 1


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def describe(cache: Descriptions, name: str = "echo", **more: Any) -> None:
    """Describes a tool as the handler of `/load-and-describe` does: only if the description is not cached."""
    tool_call = parse_call(call(name, **more), "local")
    if cache.cached(tool_call) is None:
        await cache.describe(tool_call)


async def test_cached_tag_expires_and_exact_version_does_not() -> None:
    tools, clock = FakeTools(), Clock()
    cache = Descriptions(tools, 300, clock)
    await describe(cache)
    clock.now = 299.9
    await describe(cache)
    assert tools.described == 1
    clock.now = 300
    await describe(cache, version="1.2.3")
    assert tools.described == 1
    await describe(cache)
    assert tools.described == 2


async def test_failures_and_calls_with_an_env_are_not_cached() -> None:
    tools = FakeTools()
    cache = Descriptions(tools, 300)
    for _ in range(2):
        await describe(cache, "fail", params={"code": "tool_invalid"})
        await describe(cache, env={"KEY": "x"})
    assert tools.described == 4
    await describe(cache)
    await describe(cache, env={"KEY": "x"})
    assert tools.described == 6


async def test_cache_is_limited_and_drops_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "_MAX_ENTRIES", 4)
    tools = FakeTools()
    cache = Descriptions(tools, 300)
    for number in range(2):
        await describe(cache, packageName=f"p{number}")
    await describe(cache, packageName="p0")
    assert tools.described == 2
    await describe(cache, packageName="p2")
    await describe(cache, packageName="p0")
    assert tools.described == 3
    await describe(cache, packageName="p1")
    assert tools.described == 4


async def test_long_descriptions_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptions, "_MAX_ENTRY_BYTES", 10)
    tools = FakeTools()
    cache = Descriptions(tools, 300)
    await describe(cache)
    await describe(cache)
    assert tools.described == 2
