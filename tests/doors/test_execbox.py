"""The Execbox door: messages written by hand over a real WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.doors.clients import host
from tests.messages import MALFORMED, execute, tool_failure, tool_result
from tests.processes import Server, serving
from websockets.exceptions import ConnectionClosed


async def test_transcript_of_the_specification(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(execute("exec-1", 'await tools.echo({"ok":true})', tools=("echo",)))
        await h.started("exec-1")
        call = await h.hear()
        call_id = call.pop("callId")
        assert call == {
            "type": "tool_call",
            "id": "exec-1",
            "providerName": "tools",
            "safeToolName": "echo",
            "input": {"ok": True},
        }
        await h.say({"type": "tool_result", "callId": call_id, "ok": True, "result": {"ok": True}})
        done = await h.hear()
        assert done.pop("durationMs") > 0
        assert done == {"type": "done", "id": "exec-1", "ok": True, "logs": [], "result": {"ok": True}}


async def test_several_executions_go_on_at_once_over_one_connection(server: Server) -> None:
    async with host(server.execbox) as h:
        calls = {}
        for id in ("a", "b", "c"):
            await h.say(execute(id, f"[await tools.ask('{id}'), '{id}']", tools=("ask",)))
            await h.started(id)
            calls[id] = await h.call(id)
            assert calls[id]["input"] == id
        assert len({call["callId"] for call in calls.values()}) == 3
        for id in ("c", "a", "b"):
            await h.say(tool_result(calls[id], f"for {id}"))
            assert (await h.end(id))["result"] == [f"for {id}", id]


async def test_call_ids_are_unique_for_the_whole_connection(server: Server) -> None:
    async with host(server.execbox) as h:
        seen = []
        for _ in range(3):
            await h.say(execute("again", "[await tools.ask(), await tools.ask()]", tools=("ask",)))
            await h.started("again")
            for _ in range(2):
                call = await h.call("again")
                seen.append(call["callId"])
                await h.say(tool_result(call, 1))
            assert (await h.end("again"))["ok"]
        assert len(set(seen)) == 6


async def test_malformed_messages_are_ignored(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(*MALFORMED, b"\xff\xfe", b"{}")
        await h.say(execute("well", "'formed'"))
        assert (await h.done("well"))["result"] == "formed"


async def test_message_may_be_binary_or_have_line_breaks(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(json.dumps(execute("binary", "1")).encode())
        assert (await h.done("binary"))["result"] == 1
        await h.say(json.dumps(execute("pretty", "2"), indent=2) + "\n")
        assert (await h.done("pretty"))["result"] == 2


async def test_second_execute_with_the_id_of_a_running_one_is_ignored(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(execute("twice", "await tools.ask()", tools=("ask",)))
        await h.started("twice")
        call = await h.call("twice")
        await h.say(execute("twice", "'second'"), tool_result(call, "first"))
        assert (await h.end("twice"))["result"] == "first"


async def test_error_of_a_tool_keeps_its_code(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(execute("fails", "await tools.fail({})", tools=("fail",)))
        await h.started("fails")
        await h.say(tool_failure(await h.call("fails"), "tool_error", "it broke"))
        assert (await h.end("fails"))["error"] == {
            "code": "tool_error",
            "message": "it broke",
            "line": 1,
            "column": 12,
        }


async def test_cancel_ends_one_execution_and_no_other(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(execute("stays", "await tools.ask()", tools=("ask",)))
        await h.started("stays")
        call = await h.call("stays")
        await h.say(execute("goes", "console.log('here'); await tools.ask(); for (;;);", tools=("ask",)))
        await h.started("goes")
        await h.say(tool_result(await h.call("goes"), 1), {"type": "cancel", "id": "goes"})
        done = await h.end("goes")
        assert (done["error"]["code"], done["logs"]) == ("timeout", ["here"])
        await h.say(tool_result(call, "stayed"))
        assert (await h.end("stays"))["result"] == "stayed"


async def test_engine_can_be_chosen(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(execute("deno", "typeof Deno", engine="deno"))
        assert (await h.done("deno"))["result"] == "object"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (execute("bad", "1", timeoutMs=0), "options.timeoutMs: expected a number of at least 1, got 0"),
        (execute("bad", "1", maxLogLines=-1), "options.maxLogLines: expected a number of at least 0, got -1"),
        (execute("bad", "1", engine="v8"), "engine: unknown engine 'v8'; expected one of quickjs, deno"),
        (execute("bad", "1", tools=("a",), namespace="class"), "Invalid provider namespace: class"),
        (execute("bad", "1", tools=("no-name",)), "`manifest.tools.no-name` must be a JavaScript identifier"),
        (execute("bad", "1" * 4_194_305), "code: has 4194305 bytes; the limit is 4194304"),
    ],
)
async def test_execution_that_cannot_be_is_refused_with_the_reason(
    server: Server, message: dict[str, Any], expected: str
) -> None:
    async with host(server.execbox) as h:
        await h.say(message)
        done = await h.end("bad")
        assert (done["ok"], done["durationMs"], done["error"]["code"]) == (False, 0, "validation_error")
        assert expected in done["error"]["message"]


async def test_closed_connection_cancels_its_executions(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(execute("left", "console.log('x'); for (;;);", timeoutMs=100_001))
        await h.started("left")
        await h.say(execute("behind", "await tools.ask()", tools=("ask",), timeoutMs=100_001))
        await h.started("behind")
        await h.call("behind")
    for _ in range(2):
        await cancelled(server, 100_001)


async def test_connection_that_breaks_cancels_its_executions(server: Server) -> None:
    async with host(server.execbox) as h:
        await h.say(execute("broken", "for (;;);", timeoutMs=100_002))
        await h.started("broken")
        h.socket.transport.abort()
        await cancelled(server, 100_002)


async def cancelled(server: Server, timeout_ms: int) -> None:
    """Waits for the record of the execution that had this much time, and did not use it."""
    record = json.loads(await asyncio.to_thread(server.logged, f'"timeout_ms": {timeout_ms}'))
    assert record["outcome"] == "timeout"
    assert record["duration_ms"] < timeout_ms


# --- limits of the server ---


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    with serving(
        HUTCH_MOST_TIMEOUT_MS="2500",
        HUTCH_MOST_MEMORY_LIMIT_BYTES=str(8 * 2**20),
        HUTCH_MOST_LOG_LINES="2",
        HUTCH_MOST_LOG_CHARS="10",
        HUTCH_MAX_LINE_BYTES="100000",
    ) as running:
        yield running


async def test_every_option_has_a_maximum_of_the_servers(strict: Server) -> None:
    async with host(strict.execbox) as h:
        await h.say(execute("time", "for (;;);", timeoutMs=1e9))
        done = await h.done("time")
        assert done["error"]["code"] == "timeout"
        assert done["durationMs"] < 10_000
        await h.say(
            execute("memory", "const a = []; for (;;) a.push(new Array(1000).fill(1))", memoryLimitBytes=1e12)
        )
        assert (await h.done("memory"))["error"] == {
            "code": "memory_limit",
            "message": "Execution exceeded its memory limit of 8 MiB",
        }
        await h.say(execute("lines", "for (const n of [1, 2, 3]) console.log(n)", maxLogLines=1e9))
        assert (await h.done("lines"))["logs"] == ["1", "2"]
        await h.say(execute("chars", "console.log('0123456789abc')", maxLogChars=1e9))
        assert (await h.done("chars"))["logs"] == ["0123456789"]


@pytest.mark.parametrize("size", [100_001, 5_000_000])
async def test_message_that_is_too_long_closes_with_the_reason(strict: Server, size: int) -> None:
    async with host(strict.execbox) as h:
        with contextlib.suppress(ConnectionClosed):
            await h.say("x" * size)
        with pytest.raises(ConnectionClosed) as closed:
            await h.hear()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert "100000" in closed.value.rcvd.reason
    async with host(strict.execbox) as h:
        await h.say(execute("next", "1"))
        assert (await h.done("next"))["result"] == 1


async def test_full_server_says_busy_and_when_to_try_again() -> None:
    limits = {"HUTCH_MAX_PROCESSES": "1", "HUTCH_QUICKJS_VMS": "1", "HUTCH_MAX_QUEUE": "1"}
    with serving(**limits) as server:
        async with host(server.execbox) as h:
            await h.say(execute("has it", "await tools.ask()", tools=("ask",)))
            await h.started("has it")
            call = await h.call("has it")
            await h.say(execute("waits", "1"), execute("too many", "2"))
            refused = (await h.end("too many"))["error"]
            assert refused["code"] == "internal_error"
            assert refused["message"] == "1 executions are waiting already. Try again in 1 s."
            await h.say({"type": "cancel", "id": "waits"})
            assert (await h.end("waits"))["error"]["code"] == "timeout"
            await h.say(execute("waits too", "3"), tool_result(call, "done"))
            assert (await h.end("has it"))["result"] == "done"
            assert (await h.done("waits too"))["result"] == 3
