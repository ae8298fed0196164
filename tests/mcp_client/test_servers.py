"""Connecting, reconnecting and tool changes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.mcp_client.conftest import SERVERS, SHORT_LIMITS, StartServers, http_server, stdio_server
from tests.support.mcp_servers.asgi_server import running_app
from tests.support.mcp_servers.everything import Everything, app, sse_app
from tests.support.waiting import eventually

from hutch.errors import UpstreamError
from hutch.mcp_client.config import ServerConfig, StdioConfig
from hutch.mcp_client.limits import ServerLimits
from hutch.mcp_client.servers import McpServers
from hutch.mcp_client.tools import ServerStatus


def only(servers: McpServers) -> ServerStatus:
    (server,) = servers.servers()
    return server


async def test_lazy_servers_start_when_first_needed(start: StartServers) -> None:
    servers = await start(stdio_server("Server"), stdio_server("Server", server_name="other"), eager=False)
    assert [each.state for each in servers.servers()] == ["idle", "idle"]
    assert await servers.call("other", "act", {}) == "acted"
    assert [each.state for each in servers.servers()] == ["idle", "connected"]
    assert len(await servers.tools()) == 2
    assert [each.state for each in servers.servers()] == ["connected", "connected"]


async def test_servers_are_connected_concurrently(start: StartServers) -> None:
    slow = [
        stdio_server("NeverResponds", server_name=f"mute{number}", connect_seconds=1.0) for number in range(5)
    ]
    servers = await start(*slow, stdio_server("Server"), eager=False)
    began = asyncio.get_running_loop().time()
    await servers.start()
    assert asyncio.get_running_loop().time() - began < 4
    assert [each.state for each in servers.servers()] == ["failed"] * 5 + ["connected"]


async def test_concurrent_first_calls_start_one_server(start: StartServers) -> None:
    servers = await start(stdio_server("ReportsProcess"), eager=False)
    found = await asyncio.gather(*(servers.call("ReportsProcess", "act", {}) for _ in range(5)))
    assert len({each["pid"] for each in found}) == 1


async def test_cancelled_caller_does_not_stop_the_connection_attempt(start: StartServers) -> None:
    servers = await start(stdio_server("Server"), eager=False)
    impatient = asyncio.ensure_future(servers.call("Server", "act", {}))
    await eventually(lambda: only(servers).state == "connecting")
    assert not only(servers).was_tried
    impatient.cancel()
    await eventually(lambda: only(servers).state == "connected")
    assert only(servers).was_tried


async def test_timeout_includes_connecting_and_says_so(start: StartServers) -> None:
    servers = await start(stdio_server("NeverResponds"), eager=False)
    with pytest.raises(UpstreamError, match=r"was not connected within 0\.1 s") as caught:
        await servers.call("NeverResponds", "act", {}, timeout=0.1)
    assert caught.value.kind == "timeout"


async def test_error_says_how_the_arguments_differ_from_the_schema_of_the_tool(start: StartServers) -> None:
    transport = StdioConfig(command=sys.executable, args=(str(SERVERS / "tracker.py"),))
    servers = await start(ServerConfig(name="tracker", transport=transport))
    with pytest.raises(UpstreamError) as caught:
        await servers.call("tracker", "get_issue", {"numbr": 1})
    explanation = "Invalid input for tool get_issue: number: is missing; expected an integer"
    assert caught.value.message.endswith(f"\n{explanation}")
    with pytest.raises(UpstreamError) as caught:
        await servers.call("tracker", "get_issue", {"number": 1})
    assert caught.value.message == "there is no issue 1"


async def test_killed_server_is_reconnected_at_the_next_call(start: StartServers) -> None:
    servers = await start(stdio_server("ReportsProcess"))
    revision = servers.revision
    first = (await servers.call("ReportsProcess", "act", {}))["pid"]
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: only(servers).error == "it ended (signal 9)")
    assert (only(servers).state, only(servers).was_tried) == ("failed", True)
    assert len(await servers.tools()) == 1
    second = (await servers.call("ReportsProcess", "act", {}))["pid"]
    assert second != first
    assert only(servers).state == "connected"
    assert servers.revision == revision


async def test_lost_server_is_reconnected_by_itself(start: StartServers) -> None:
    servers = await start(stdio_server("ReportsProcess"), limits=replace(SHORT_LIMITS, max_retries=3))
    pid = (await servers.call("ReportsProcess", "act", {}))["pid"]
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: only(servers).state == "failed")
    await eventually(lambda: only(servers).state == "connected")
    assert (await servers.call("ReportsProcess", "act", {}))["pid"] != pid


async def test_reconnect_attempts_are_limited(start: StartServers, tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"echo x >> {count}; exit 1"
    server = stdio_server("Server")
    reach = type(server.transport)(command="sh", args=("-c", script))
    servers = await start(replace(server, transport=reach), limits=replace(SHORT_LIMITS, max_retries=3))

    def attempts() -> int:
        return len(count.read_text().splitlines())

    await eventually(lambda: attempts() == 4)
    await asyncio.sleep(0.3)
    assert attempts() == 4
    with pytest.raises(UpstreamError, match="not connected: it ended"):
        await servers.call("Server", "act", {})
    # Calls shortly after a failed attempt to connect do not cause another attempt.
    for _ in range(5):
        with pytest.raises(UpstreamError, match="not connected: it ended"):
            await servers.call("Server", "act", {})
    assert attempts() in (4, 5)


def test_retry_delay_doubles_up_to_a_limit_with_jitter() -> None:
    bounds = ServerLimits(retry_seconds=1, max_retry_seconds=30)
    for failures, longest in ((0, 1), (1, 2), (4, 16), (5, 30), (1000, 30)):
        waits = {bounds.retry_delay(failures) for _ in range(50)}
        assert max(waits) <= longest
        assert min(waits) >= longest / 2
        assert len(waits) > 40


async def test_login_error_is_not_retried(start: StartServers) -> None:
    server = stdio_server("Server")
    reach = type(server.transport)(command="no-such-program-at-all")
    servers = await start(replace(server, transport=reach), limits=replace(SHORT_LIMITS, max_retries=5))
    await asyncio.sleep(0.1)
    assert only(servers).state == "failed"


async def check_tool_change(servers: McpServers) -> None:
    changes: list[str] = []
    servers.on_change.append(lambda: changes.append(servers.revision))
    before = servers.revision
    name = await servers.call("everything", "grow", {})
    await eventually(lambda: changes)
    assert changes == [servers.revision]
    assert servers.revision != before
    assert name in {tool.name for tool in await servers.tools()}
    assert await servers.call("everything", name, {"value": "hi"}) == "hi"


async def test_changed_tools_are_fetched_and_change_the_revision(start: StartServers) -> None:
    await check_tool_change(await start(stdio_server("everything")))


async def test_tool_changes_are_noticed_over_http(start: StartServers) -> None:
    with running_app(app(Everything())) as served:
        await check_tool_change(await start(http_server("everything", f"{served.url}/mcp")))


async def test_tool_changes_are_noticed_over_sse(start: StartServers) -> None:
    with running_app(sse_app(Everything())) as served:
        await check_tool_change(await start(http_server("everything", f"{served.url}/sse", protocol="sse")))


async def test_servers_of_the_newest_protocol_work_and_report_changes(start: StartServers) -> None:
    servers = await start(stdio_server("Modern"))
    assert only(servers).state == "connected", only(servers).error
    before = servers.revision
    assert await servers.call("Modern", "act", {}) == "acted"
    await eventually(lambda: servers.revision != before)
    assert [tool.name for tool in await servers.tools()] == ["act", "new_1"]


async def test_revision_differs_at_each_start_and_depends_on_the_tools(start: StartServers) -> None:
    one, other = await start(stdio_server("Server")), await start(stdio_server("Server"))
    assert one.revision != other.revision
    assert one.revision.partition("-")[2] == other.revision.partition("-")[2]
    lazy = await start(stdio_server("Server"), eager=False)
    before = lazy.revision
    await lazy.tools()
    assert lazy.revision != before


async def test_failing_listener_does_not_affect_others(
    start: StartServers, caplog: pytest.LogCaptureFixture
) -> None:
    servers = await start(stdio_server("Server"), eager=False)
    changes: list[int] = []

    def fails() -> None:
        raise RuntimeError("badly")

    servers.on_change += [fails, lambda: changes.append(1)]
    with caplog.at_level(logging.ERROR):
        await servers.tools()
    assert changes == [1]
    assert "a listener for tool changes failed" in caplog.text


async def test_excluded_tools_are_hidden_and_cannot_be_called(
    start: StartServers, urls: dict[str, str]
) -> None:
    servers = await start(
        http_server("everything", urls["http"], include=("get*", "echo", "nope"), exclude=("get-user",)),
    )
    assert {tool.name for tool in await servers.tools()} == {"get_user", "getUserName", "echo"}
    assert only(servers).warnings == ("includeTools names 'nope', which the server does not have",)
    for hidden in ("get-user", "crash"):
        with pytest.raises(UpstreamError) as caught:
            await servers.call("everything", hidden, {})
        assert caught.value.kind == "unknown_tool"


async def test_server_with_an_unset_variable_is_not_started(start: StartServers) -> None:
    problem = "f.json:3: mcpServers.Server.env.KEY: the variable KEY is not set"
    servers = await start(stdio_server("Server", problem=problem))
    assert (only(servers).state, only(servers).error) == ("failed", problem)
    with pytest.raises(UpstreamError, match="the variable KEY is not set"):
        await servers.call("Server", "act", {})


async def test_closed_servers_can_be_closed_again_and_reject_calls(start: StartServers) -> None:
    servers = await start(stdio_server("Server"))
    await servers.close()
    await servers.close()
    with pytest.raises(UpstreamError) as caught:
        await servers.call("Server", "act", {})
    assert caught.value.kind == "not_connected"


def test_importing_the_client_loads_no_heavy_packages() -> None:
    modules = (
        "hutch.mcp_client.servers, hutch.mcp_client.config_file, hutch.mcp_client.tools, hutch.vault.tokens"
    )
    script = f"import {modules}, sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"mcp", "mcp_types", "pydantic", "httpx2", "cryptography", "starlette", "jsonschema_rs"}
    assert heavy & set(done.stdout.split()) == set()
