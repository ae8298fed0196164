"""Misbehaving servers cause clear errors and do not affect other servers."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.mcp_client.conftest import SHORT_LIMITS, StartServers, stdio_server
from tests.support.waiting import eventually

from hutch.errors import UpstreamError
from hutch.mcp_client.config import ServerConfig, StdioConfig
from hutch.mcp_client.servers import McpServers
from hutch.mcp_client.tools import ServerStatus

MIB = 1024 * 1024


async def failure(servers: McpServers, server: str, tool: str = "act", **arguments: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await servers.call(server, tool, arguments)
    return caught.value


def state(servers: McpServers, name: str) -> ServerStatus:
    return next(each for each in servers.servers() if each.name == name)


async def works(servers: McpServers, server: str = "Server") -> bool:
    return await servers.call(server, "act", {}) == "acted"


def resident_bytes() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_servers_that_fail_to_connect_do_not_affect_others(start: StartServers) -> None:
    missing = stdio_server("Server", server_name="missing")
    nowhere = type(missing.transport)(command="no-such-program-at-all")
    servers = await start(
        stdio_server("ExitsAtStart"),
        type(missing)(name="missing", transport=nowhere),
        stdio_server("NeverResponds", connect_seconds=2),
        stdio_server("Server"),
        stdio_server("OnlyNoise", connect_seconds=2),
    )
    assert state(servers, "Server").state == "connected"
    errors = {each.name: each.error for each in servers.servers() if each.state == "failed"}
    assert errors == {
        "ExitsAtStart": "it ended (exit code 5): ModuleNotFoundError: No module named 'tea'",
        "missing": "there is no program 'no-such-program-at-all' that can be run",
        "NeverResponds": "it did not initialize within 2 s",
        "OnlyNoise": "it did not initialize within 2 s, but sent 'Usage: server [--port PORT]'",
    }
    assert [tool.server for tool in await servers.tools()] == ["Server"]
    assert await works(servers)


async def test_call_to_a_failed_server_says_why_without_its_output(start: StartServers) -> None:
    servers = await start(stdio_server("ExitsAtStart"), eager=False)
    error = await failure(servers, "ExitsAtStart")
    assert error.kind == "not_connected"
    assert error.message == "the server is not connected: it ended (exit code 5)"


async def test_invalid_program_and_missing_program_have_different_errors(
    start: StartServers, tmp_path: Any
) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    server = stdio_server("Server")
    servers = await start(
        type(server)(name="script", transport=type(server.transport)(command=str(script))),
        type(server)(name="cwd", transport=type(server.transport)(command="sh", cwd=str(tmp_path / "gone"))),
    )
    assert state(servers, "script").error == f"it ended (exit code 127): {script}: No such file or directory"
    assert "gone does not exist" in (state(servers, "cwd").error or "")


async def test_crash_fails_the_call_and_the_next_one_works(start: StartServers) -> None:
    servers = await start(stdio_server("CrashesAtCalls"), stdio_server("Server"))
    waiting = asyncio.gather(*(failure(servers, "CrashesAtCalls") for _ in range(3)), works(servers))
    *errors, fine = await waiting
    assert fine
    for error in errors:
        assert (error.kind, error.tool) == ("lost", "act")
        assert error.message == "the server was lost before it answered: it ended (signal 11)"
    assert (await failure(servers, "CrashesAtCalls")).kind == "lost"


async def test_invalid_lines_on_stdout_are_ignored(start: StartServers) -> None:
    servers = await start(stdio_server("PrintsLogs"))
    for _ in range(3):
        assert await works(servers, "PrintsLogs")


async def test_stderr_of_a_server_cannot_control_the_terminal(
    start: StartServers, caplog: pytest.LogCaptureFixture
) -> None:
    program = "import sys; sys.stderr.write('\\x1b]0;owned\\x07 \\u202e \\x9b2J'); sys.exit(3)"
    transport = StdioConfig(command=sys.executable, args=("-I", "-S", "-X", "utf8", "-c", program))
    servers = await start(ServerConfig(name="evil", transport=transport))
    shown = "it ended (exit code 3): \\u001b]0;owned\\u0007 \\u202e \\u009b2J"
    assert state(servers, "evil").error == shown
    assert caplog.messages == [f"evil: {shown}"]


async def test_invalid_response_fails_the_call_at_once(start: StartServers) -> None:
    servers = await start(stdio_server("Malformed"), stdio_server("WrongResult"))
    error = await failure(servers, "Malformed")
    assert (error.kind, error.message) == ("invalid_result", "the response is not valid JSON-RPC")
    error = await failure(servers, "WrongResult")
    assert error.kind == "invalid_result"
    assert error.message.startswith("the result is not valid MCP: content")
    assert {each.state for each in servers.servers()} == {"connected"}


async def test_responses_with_string_ids_are_matched(start: StartServers) -> None:
    servers = await start(stdio_server("StringIds"))
    assert [await servers.call("StringIds", "act", {}) for _ in range(3)] == ["acted"] * 3
    error = await failure(servers, "StringIds", how="error")
    assert (error.kind, error.message) == ("rpc_error", "it will not")
    assert state(servers, "StringIds").state == "connected"


@pytest.mark.parametrize("how", ["nan", "infinity", "error", "method", "plus", "space", "zero"])
async def test_response_that_the_sdk_accepts_is_matched(start: StartServers, how: str) -> None:
    servers = await start(stdio_server("LaxResponses", call_seconds=5))
    value = await servers.call("LaxResponses", "act", {"how": how})
    assert repr(value["value"]) == {"nan": "nan", "infinity": "-inf"}.get(how, "1")
    assert state(servers, "LaxResponses").state == "connected"


@pytest.mark.parametrize("how", ["plus", "space", "zero"])
async def test_error_that_the_sdk_accepts_is_matched(start: StartServers, how: str) -> None:
    servers = await start(stdio_server("LaxErrors", call_seconds=5))
    error = await failure(servers, "LaxErrors", how=how)
    assert (error.kind, error.message) == ("rpc_error", "it will not")


@pytest.mark.parametrize("how", ["text", "number", "cut", "last", "bytes", "true"])
async def test_unusual_ids_do_not_end_the_connection(start: StartServers, how: str) -> None:
    servers = await start(stdio_server("StrangeIds"))
    # Request progress, so that the client reads the unusual line before the response, and not together with
    # it.
    result = await servers.call("StrangeIds", "act", {"how": how}, on_progress=lambda *_: None)
    assert result == "acted"
    assert state(servers, "StrangeIds").state == "connected"


@pytest.mark.parametrize("how", ["cut", "bytes", "last", "error"])
async def test_non_json_response_fails_only_its_call(start: StartServers, how: str) -> None:
    servers = await start(stdio_server("Garbled"))
    async with asyncio.timeout(20):
        error = await failure(servers, "Garbled", how=how)
        assert (error.kind, error.message) == ("invalid_result", "the response is not JSON")
        # The server also sends a request with the id of the call. The client must not use this request as the
        # response.
        assert await servers.call("Garbled", "act", {"how": "well"}) == "acted"
    assert state(servers, "Garbled").state == "connected"


@pytest.mark.parametrize("where", ["first", "last"])
async def test_response_of_100_mb_fails_only_its_call_and_is_not_buffered(
    start: StartServers, where: str
) -> None:
    servers = await start(stdio_server("Huge"), max_line_bytes=MIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = await failure(servers, "Huge", id=where)
    assert (error.kind, error.message) == ("too_large", f"the response is larger than {MIB} bytes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    assert await works(servers, "Huge")
    assert state(servers, "Huge").state == "connected"


async def test_oversized_response_without_an_id_leads_to_a_timeout(start: StartServers) -> None:
    servers = await start(stdio_server("Huge"), max_line_bytes=MIB)
    with pytest.raises(UpstreamError) as caught:
        await servers.call("Huge", "act", {"id": "none"}, timeout=1)
    assert caught.value.kind == "timeout"
    assert await works(servers, "Huge")


async def test_endless_line_ends_the_connection(start: StartServers) -> None:
    servers = await start(stdio_server("Endless"), stdio_server("Server"), max_line_bytes=MIB)
    error, fine = await asyncio.gather(failure(servers, "Endless"), works(servers))
    assert fine
    assert error.kind == "lost"
    assert "it writes an endless line" in error.message


@pytest.mark.parametrize("mode", ["Flood", "FloodOfAnswers"])
async def test_flood_ends_the_connection_and_other_servers_work_meanwhile(
    start: StartServers, mode: str
) -> None:
    # The limit must be very low, because one of the servers sends only responses, and a response counts as a
    # quarter of a message. Even on a busy machine, the client must read more than four times as many
    # responses as the limit.
    limits = replace(SHORT_LIMITS, flood_seconds=0.5, max_unsolicited_per_second=20)
    servers = await start(stdio_server(mode), stdio_server("Server"), limits=limits)
    flooded = asyncio.ensure_future(failure(servers, mode))
    served = 0
    while not flooded.done():
        assert await works(servers)
        served += 1
    error = await flooded
    assert error.kind == "lost"
    assert "it floods the client with unsolicited messages" in error.message
    assert served > 3


async def test_flood_on_stderr_blocks_nothing_and_is_not_buffered(start: StartServers) -> None:
    servers = await start(stdio_server("FloodOfErrors"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await works(servers, "FloodOfErrors")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024


async def test_hanging_server_is_replaced_at_the_next_call(start: StartServers) -> None:
    servers = await start(stdio_server("Hangs", call_seconds=0.2))
    assert (await failure(servers, "Hangs")).kind == "timeout"
    await eventually(lambda: state(servers, "Hangs").error == "it hangs")
    assert state(servers, "Hangs").state == "failed"
    assert (await failure(servers, "Hangs")).kind == "timeout"


async def test_server_that_is_busy_with_one_call_stays_connected(connected: McpServers) -> None:
    before = await connected.call("stdio", "process", {})
    with pytest.raises(UpstreamError):
        await connected.call("stdio", "slow", {}, timeout=0.1)
    await asyncio.sleep(2 * SHORT_LIMITS.liveness_seconds)
    assert await connected.call("stdio", "process", {}) == before


async def test_server_that_does_not_read_blocks_only_its_own_calls(start: StartServers) -> None:
    servers = await start(stdio_server("StopsReading", call_seconds=0.3), stdio_server("Server"))
    large = {"value": "x" * MIB}
    calls = [servers.call("StopsReading", "act", large) for _ in range(4)]
    async with asyncio.timeout(5):
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert await works(servers)
    assert [getattr(each, "kind", each) for each in results] == ["timeout"] * 4


@pytest.mark.parametrize("how", ["result", "error"])
async def test_response_may_come_before_the_call_is_fully_read(start: StartServers, how: str) -> None:
    servers = await start(stdio_server("AnswersEarly", call_seconds=5))
    assert await servers.call("AnswersEarly", "act", {"how": how}) == "acted"
    call = servers.call("AnswersEarly", "act", {"value": "x" * MIB})
    if how == "result":
        assert await call == "foreseen"
    else:
        with pytest.raises(UpstreamError, match="foreseen"):
            await call


async def test_error_during_cancellation_is_retrieved(start: StartServers) -> None:
    servers = await start(stdio_server("AnswersEarly"))
    assert await servers.call("AnswersEarly", "act", {"how": "error"}) == "acted"
    call = asyncio.ensure_future(servers.call("AnswersEarly", "act", {"value": "x" * MIB}))
    await asyncio.sleep(0.2)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    del call
    # The test fails if an exception was never retrieved.
    gc.collect()


@pytest.mark.parametrize("on_progress", [None, lambda *_: None], ids=["direct", "progress"])
async def test_cancelled_calls_to_a_server_that_does_not_read_are_not_buffered(
    start: StartServers, on_progress: Any
) -> None:
    servers = await start(stdio_server("StopsReading"))
    large = {"value": "x" * 4 * MIB}
    before = resident_bytes()
    for _ in range(30):
        call = asyncio.ensure_future(servers.call("StopsReading", "act", large, on_progress=on_progress))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert resident_bytes() - before < 32 * MIB


async def test_server_that_does_not_read_responses_is_disconnected(start: StartServers) -> None:
    servers = await start(stdio_server("OnlySendsRequests"), stdio_server("Server"))
    before = resident_bytes()
    error, fine = await asyncio.gather(failure(servers, "OnlySendsRequests"), works(servers))
    assert fine
    assert (error.kind, error.message) == (
        "lost",
        "the server was lost before it answered: it does not read its input",
    )
    assert resident_bytes() - before < 64 * MIB


async def test_server_that_closed_its_input_is_replaced_at_the_next_call(start: StartServers) -> None:
    servers = await start(stdio_server("ClosesInput", call_seconds=5))
    before = await servers.call("ClosesInput", "act", {"answer": True})
    await eventually(lambda: state(servers, "ClosesInput").state == "failed")
    assert await servers.call("ClosesInput", "act", {"answer": True}) != before
    await eventually(lambda: state(servers, "ClosesInput").state == "failed")
    error = await failure(servers, "ClosesInput")
    assert (error.kind, error.message) == (
        "lost",
        "the server was lost before it answered: it closed its input",
    )


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("EndlessPages", "its list of tools has no end (20 pages)"),
        ("SamePage", "its list of tools has no end (1 pages)"),
        ("ManyTools", "it has more than 100 tools"),
        ("LongDescriptions", "its list of tools is larger than 100000 bytes"),
    ],
)
async def test_list_of_tools_is_bounded(start: StartServers, mode: str, error: str) -> None:
    limits = replace(SHORT_LIMITS, max_pages=20, max_tools=100, max_tool_list_bytes=100_000)
    servers = await start(stdio_server(mode), limits=limits)
    assert (state(servers, mode).state, state(servers, mode).error) == ("failed", error)


async def test_invalid_tools_are_omitted(start: StartServers) -> None:
    servers = await start(stdio_server("BadTools"))
    assert [tool.name for tool in await servers.tools()] == ["act"]
    assert await works(servers, "BadTools")
    warnings = " ".join(state(servers, "BadTools").warnings)
    for expected in ("number 1 is left out: name", "'shapeless' is left out", "number 4", "listed twice"):
        assert expected in warnings


async def test_server_without_tools_is_connected(start: StartServers) -> None:
    servers = await start(stdio_server("NoTools"))
    assert state(servers, "NoTools").state == "connected"
    assert state(servers, "NoTools").warnings == ("it has no tools",)
    assert (await failure(servers, "NoTools")).kind == "unknown_tool"
