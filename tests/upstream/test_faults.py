"""Servers that misbehave: a clear error, and nobody else is harmed."""

from __future__ import annotations

import asyncio
import gc
import resource
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.upstream.conftest import QUICK, Started, program
from tests.waiting import eventually

from hutch.errors import UpstreamError
from hutch.upstream.servers import Upstreams
from hutch.upstream.tools import Server

MIB = 1024 * 1024


async def failure(upstreams: Upstreams, server: str, tool: str = "act", **arguments: Any) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await upstreams.call(server, tool, arguments)
    return caught.value


def state(upstreams: Upstreams, name: str) -> Server:
    return next(each for each in upstreams.servers() if each.name == name)


async def well(upstreams: Upstreams, server: str = "Server") -> bool:
    return await upstreams.call(server, "act", {}) == "acted"


def held() -> int:
    """Bytes of memory that we have now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_servers_that_do_not_connect_stop_nobody(start: Started) -> None:
    missing = program("Server", called="missing")
    nowhere = type(missing.reach)(command="no-such-program-at-all")
    upstreams = await start(
        program("Dies"),
        type(missing)(name="missing", reach=nowhere),
        program("Mute", connect_seconds=2),
        program("Server"),
        program("OnlyNoise", connect_seconds=2),
    )
    assert state(upstreams, "Server").state == "connected"
    errors = {each.name: each.error for each in upstreams.servers() if each.state == "failed"}
    assert errors == {
        "Dies": "it ended (exit code 5): ModuleNotFoundError: No module named 'tea'",
        "missing": "there is no program 'no-such-program-at-all' that can be run",
        "Mute": "it did not introduce itself within 2 s",
        "OnlyNoise": "it did not introduce itself within 2 s, but said 'Usage: server [--port PORT]'",
    }
    assert [tool.server for tool in await upstreams.tools()] == ["Server"]
    assert await well(upstreams)


async def test_call_of_a_server_that_does_not_start_says_why_but_not_what_it_printed(start: Started) -> None:
    upstreams = await start(program("Dies"), eager=False)
    error = await failure(upstreams, "Dies")
    assert error.kind == "not_connected"
    assert error.message == "the server is not connected: it ended (exit code 5)"


async def test_program_that_is_none_is_told_from_one_that_is_missing(start: Started, tmp_path: Any) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    server = program("Server")
    upstreams = await start(
        type(server)(name="script", reach=type(server.reach)(command=str(script))),
        type(server)(name="cwd", reach=type(server.reach)(command="sh", cwd=str(tmp_path / "gone"))),
    )
    assert (
        state(upstreams, "script").error == f"it ended (exit code 127): {script}: No such file or directory"
    )
    assert "gone does not exist" in (state(upstreams, "cwd").error or "")


async def test_crash_in_a_call_ends_that_call_and_the_next_one_works(start: Started) -> None:
    upstreams = await start(program("DiesAtOnce"), program("Server"))
    waiting = asyncio.gather(*(failure(upstreams, "DiesAtOnce") for _ in range(3)), well(upstreams))
    *errors, fine = await waiting
    assert fine
    for error in errors:
        assert (error.kind, error.tool) == ("lost", "act")
        assert error.message == "the server was lost before it answered: it ended (signal 11)"
    assert (await failure(upstreams, "DiesAtOnce")).kind == "lost"


async def test_noise_on_stdout_is_passed_over(start: Started) -> None:
    upstreams = await start(program("Chatty"))
    for _ in range(3):
        assert await well(upstreams, "Chatty")


async def test_answer_that_is_none_fails_the_call_at_once(start: Started) -> None:
    upstreams = await start(program("Malformed"), program("WrongResult"))
    error = await failure(upstreams, "Malformed")
    assert (error.kind, error.message) == ("invalid_result", "the answer is not as JSON-RPC has it")
    error = await failure(upstreams, "WrongResult")
    assert error.kind == "invalid_result"
    assert error.message.startswith("the result is not as MCP has it: content")
    assert {each.state for each in upstreams.servers()} == {"connected"}


async def test_answers_whose_number_became_a_text_are_those_of_their_calls(start: Started) -> None:
    upstreams = await start(program("Texts"))
    assert [await upstreams.call("Texts", "act", {}) for _ in range(3)] == ["acted"] * 3
    error = await failure(upstreams, "Texts", how="error")
    assert (error.kind, error.message) == ("rpc_error", "it will not")
    assert state(upstreams, "Texts").state == "connected"


@pytest.mark.parametrize("how", ["nan", "infinity", "error", "method", "plus", "space", "zero"])
async def test_answer_that_the_sdk_understands_is_that_of_its_call(start: Started, how: str) -> None:
    upstreams = await start(program("Lax", call_seconds=5))
    assert await upstreams.call("Lax", "act", {"how": how}) == "acted"
    assert state(upstreams, "Lax").state == "connected"


@pytest.mark.parametrize("how", ["plus", "space", "zero"])
async def test_error_that_the_sdk_understands_is_that_of_its_call(start: Started, how: str) -> None:
    upstreams = await start(program("LaxErrors", call_seconds=5))
    error = await failure(upstreams, "LaxErrors", how=how)
    assert (error.kind, error.message) == ("rpc_error", "it will not")


@pytest.mark.parametrize("how", ["text", "number", "cut", "last", "bytes", "true"])
async def test_strange_ids_do_not_end_the_connection(start: Started, how: str) -> None:
    upstreams = await start(program("StrangeIds"))
    # With progress, so that the answer is read after the line before it.
    result = await upstreams.call("StrangeIds", "act", {"how": how}, on_progress=lambda *_: None)
    assert result == "acted"
    assert state(upstreams, "StrangeIds").state == "connected"


@pytest.mark.parametrize("how", ["cut", "bytes", "last", "error"])
async def test_answer_that_is_no_json_fails_its_call_at_once_and_no_other(start: Started, how: str) -> None:
    upstreams = await start(program("Garbled"))
    async with asyncio.timeout(20):
        error = await failure(upstreams, "Garbled", how=how)
        assert (error.kind, error.message) == ("invalid_result", "the answer is not JSON")
        # A request of the server's own is not taken for an answer.
        assert await upstreams.call("Garbled", "act", {"how": "well"}) == "acted"
    assert state(upstreams, "Garbled").state == "connected"


@pytest.mark.parametrize("where", ["first", "last"])
async def test_answer_of_100_mb_fails_its_call_alone_and_is_never_held(start: Started, where: str) -> None:
    upstreams = await start(program("Huge"), max_line_bytes=MIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = await failure(upstreams, "Huge", id=where)
    assert (error.kind, error.message) == ("too_large", f"the answer is larger than {MIB} bytes")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024
    assert await well(upstreams, "Huge")
    assert state(upstreams, "Huge").state == "connected"


async def test_large_answer_that_names_no_call_leaves_the_call_to_its_time(start: Started) -> None:
    upstreams = await start(program("Huge"), max_line_bytes=MIB)
    with pytest.raises(UpstreamError) as caught:
        await upstreams.call("Huge", "act", {"id": "none"}, timeout=1)
    assert caught.value.kind == "timeout"
    assert await well(upstreams, "Huge")


async def test_line_without_an_end_ends_the_server(start: Started) -> None:
    upstreams = await start(program("Endless"), program("Server"), max_line_bytes=MIB)
    error, fine = await asyncio.gather(failure(upstreams, "Endless"), well(upstreams))
    assert fine
    assert error.kind == "lost"
    assert "it writes a line that has no end" in error.message


@pytest.mark.parametrize("mode", ["Flood", "FloodOfAnswers"])
async def test_flood_ends_the_server_and_others_are_served_meanwhile(start: Started, mode: str) -> None:
    upstreams = await start(program(mode), program("Server"), bounds=replace(QUICK, flood_seconds=0.5))
    flooded = asyncio.ensure_future(failure(upstreams, mode))
    served = 0
    while not flooded.done():
        assert await well(upstreams)
        served += 1
    error = await flooded
    assert error.kind == "lost"
    assert "it floods us with messages that nobody asked for" in error.message
    assert served > 3


async def test_flood_of_complaints_blocks_nobody_and_is_not_kept(start: Started) -> None:
    upstreams = await start(program("FloodOfErrors"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert await well(upstreams, "FloodOfErrors")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024


async def test_server_that_hangs_is_left_and_the_next_call_finds_a_new_one(start: Started) -> None:
    upstreams = await start(program("Hangs", call_seconds=0.2))
    assert (await failure(upstreams, "Hangs")).kind == "timeout"
    await eventually(lambda: state(upstreams, "Hangs").error == "it hangs")
    assert state(upstreams, "Hangs").state == "failed"
    assert (await failure(upstreams, "Hangs")).kind == "timeout"


async def test_server_that_is_only_busy_with_one_call_is_not_given_up(everywhere: Upstreams) -> None:
    before = await everywhere.call("stdio", "process", {})
    with pytest.raises(UpstreamError):
        await everywhere.call("stdio", "slow", {}, timeout=0.1)
    await asyncio.sleep(2 * QUICK.alive_seconds)
    assert await everywhere.call("stdio", "process", {}) == before


async def test_server_that_reads_nothing_holds_up_only_its_own_calls(start: Started) -> None:
    upstreams = await start(program("Deaf", call_seconds=0.3), program("Server"))
    large = {"value": "x" * MIB}
    calls = [upstreams.call("Deaf", "act", large) for _ in range(4)]
    async with asyncio.timeout(5):
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert await well(upstreams)
    assert [getattr(each, "kind", each) for each in results] == ["timeout"] * 4


@pytest.mark.parametrize("how", ["result", "error"])
async def test_answer_does_not_wait_until_all_of_the_call_is_read(start: Started, how: str) -> None:
    upstreams = await start(program("Foresees", call_seconds=5))
    assert await upstreams.call("Foresees", "act", {"how": how}) == "acted"
    call = upstreams.call("Foresees", "act", {"value": "x" * MIB})
    if how == "result":
        assert await call == "foreseen"
    else:
        with pytest.raises(UpstreamError, match="foreseen"):
            await call


async def test_error_that_comes_as_its_call_is_cancelled_is_seen(start: Started) -> None:
    upstreams = await start(program("Foresees"))
    assert await upstreams.call("Foresees", "act", {"how": "error"}) == "acted"
    call = asyncio.ensure_future(upstreams.call("Foresees", "act", {"value": "x" * MIB}))
    await asyncio.sleep(0.2)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    del call
    # An exception that nobody retrieved fails the test.
    gc.collect()


@pytest.mark.parametrize("on_progress", [None, lambda *_: None], ids=["direct", "progress"])
async def test_cancelled_calls_of_a_server_that_reads_nothing_are_not_kept(
    start: Started, on_progress: Any
) -> None:
    upstreams = await start(program("Deaf"))
    large = {"value": "x" * 4 * MIB}
    before = held()
    for _ in range(30):
        call = asyncio.ensure_future(upstreams.call("Deaf", "act", large, on_progress=on_progress))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert held() - before < 32 * MIB


async def test_server_that_asks_but_does_not_read_the_answers_is_left(start: Started) -> None:
    upstreams = await start(program("OnlyAsks"), program("Server"))
    before = held()
    error, fine = await asyncio.gather(failure(upstreams, "OnlyAsks"), well(upstreams))
    assert fine
    assert (error.kind, error.message) == (
        "lost",
        "the server was lost before it answered: it does not read what it is told",
    )
    assert held() - before < 64 * MIB


async def test_server_that_closed_its_input_is_left_and_the_next_call_finds_a_new_one(start: Started) -> None:
    upstreams = await start(program("ClosesInput", call_seconds=5))
    before = await upstreams.call("ClosesInput", "act", {"answer": True})
    await eventually(lambda: state(upstreams, "ClosesInput").state == "failed")
    assert await upstreams.call("ClosesInput", "act", {"answer": True}) != before
    await eventually(lambda: state(upstreams, "ClosesInput").state == "failed")
    error = await failure(upstreams, "ClosesInput")
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
    ],
)
async def test_list_of_tools_is_bounded(start: Started, mode: str, error: str) -> None:
    upstreams = await start(program(mode), bounds=replace(QUICK, pages=20, tools=100))
    assert (state(upstreams, mode).state, state(upstreams, mode).error) == ("failed", error)


async def test_tools_that_are_described_wrong_cost_only_themselves(start: Started) -> None:
    upstreams = await start(program("BadTools"))
    assert [tool.name for tool in await upstreams.tools()] == ["act"]
    assert await well(upstreams, "BadTools")
    warnings = " ".join(state(upstreams, "BadTools").warnings)
    for expected in ("number 1 is left out: name", "'shapeless' is left out", "number 4", "listed twice"):
        assert expected in warnings


async def test_server_without_tools_is_connected_and_has_none(start: Started) -> None:
    upstreams = await start(program("NoTools"))
    assert state(upstreams, "NoTools").state == "connected"
    assert state(upstreams, "NoTools").warnings == ("it has no tools",)
    assert (await failure(upstreams, "NoTools")).kind == "unknown_tool"
