"""The Execbox protocol: handwritten messages over a real WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.http.execbox_client import ExecboxClient, connect_execbox
from tests.support.messages import MALFORMED, execute, tool_failure, tool_result
from tests.support.processes import ServeProcess, running_server
from tests.support.stalls import ServerStalls, repeat_on_stall
from websockets.exceptions import ConnectionClosed


async def test_transcript_of_the_specification(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("exec-1", 'await tools.echo({"ok":true})', tools=("echo",)))
        await client.started("exec-1")
        call = await client.receive()
        call_id = call.pop("callId")
        assert call == {
            "type": "tool_call",
            "id": "exec-1",
            "providerName": "tools",
            "safeToolName": "echo",
            "input": {"ok": True},
        }
        await client.send({"type": "tool_result", "callId": call_id, "ok": True, "result": {"ok": True}})
        done = await client.receive()
        assert done.pop("durationMs") > 0
        assert done == {"type": "done", "id": "exec-1", "ok": True, "logs": [], "result": {"ok": True}}


async def test_plain_client_sees_no_sessions(server: ServeProcess) -> None:
    """Sessions are an extension that a client must negotiate. If a client has not negotiated it, the server
    ignores the option `session` like any unknown field.
    """
    async with connect_execbox(server.execbox) as client:
        assert "Hutch-Extensions" not in client.response_headers
        for id, session in (("a", {"id": "plain"}), ("b", 7)):
            await client.send(execute(id, "var x = (globalThis.x ?? 0) + 1; x", session=session))
            assert (await client.done(id))["result"] == 1
    async with connect_execbox(server.execbox, Hutch_Extensions="sessions") as client:
        assert client.response_headers["Hutch-Extensions"] == "sessions"
        await client.send(execute("c", "", session={"action": "list"}))
        assert "plain" not in [session["id"] for session in (await client.end("c"))["result"]]
        for session in (7, {"id": "../x"}, {"id": "a", "action": "burn"}):
            await client.send(execute("d", "1", session=session))
            assert (await client.end("d"))["error"]["code"] == "validation_error"


async def test_several_executions_run_at_once_over_one_connection(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        calls = {}
        for id in ("a", "b", "c"):
            await client.send(execute(id, f"[await tools.ask('{id}'), '{id}']", tools=("ask",)))
            await client.started(id)
            calls[id] = await client.call(id)
            assert calls[id]["input"] == id
        assert len({call["callId"] for call in calls.values()}) == 3
        for id in ("c", "a", "b"):
            await client.send(tool_result(calls[id], f"for {id}"))
            assert (await client.end(id))["result"] == [f"for {id}", id]


async def test_call_ids_are_unique_per_connection(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        seen = []
        for _ in range(3):
            await client.send(execute("again", "[await tools.ask(), await tools.ask()]", tools=("ask",)))
            await client.started("again")
            for _ in range(2):
                call = await client.call("again")
                seen.append(call["callId"])
                await client.send(tool_result(call, 1))
            assert (await client.end("again"))["ok"]
        assert len(set(seen)) == 6


async def test_malformed_messages_are_ignored(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(*MALFORMED, b"\xff\xfe", b"{}")
        await client.send(execute("well", "'formed'"))
        assert (await client.done("well"))["result"] == "formed"


async def test_message_may_be_binary_or_have_line_breaks(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(json.dumps(execute("binary", "1")).encode())
        assert (await client.done("binary"))["result"] == 1
        await client.send(json.dumps(execute("pretty", "2"), indent=2) + "\n")
        assert (await client.done("pretty"))["result"] == 2


async def test_second_execute_with_the_id_of_a_running_one_is_ignored(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("twice", "await tools.ask()", tools=("ask",)))
        await client.started("twice")
        call = await client.call("twice")
        await client.send(execute("twice", "'second'"), tool_result(call, "first"))
        assert (await client.end("twice"))["result"] == "first"


async def test_error_of_a_tool_keeps_its_code(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("fails", "await tools.fail({})", tools=("fail",)))
        await client.started("fails")
        await client.send(tool_failure(await client.call("fails"), "tool_error", "it broke"))
        assert (await client.end("fails"))["error"] == {
            "code": "tool_error",
            "message": "it broke",
            "line": 1,
            "column": 12,
            "stack": "at line 1, column 12",
        }


async def test_cancel_ends_one_execution_and_no_other(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("stays", "await tools.ask()", tools=("ask",)))
        await client.started("stays")
        call = await client.call("stays")
        await client.send(
            execute("goes", "console.log('here'); await tools.ask(); for (;;);", tools=("ask",))
        )
        await client.started("goes")
        await client.send(tool_result(await client.call("goes"), 1), {"type": "cancel", "id": "goes"})
        done = await client.end("goes")
        assert (done["error"]["code"], done["logs"]) == ("timeout", ["here"])
        await client.send(tool_result(call, "stayed"))
        assert (await client.end("stays"))["result"] == "stayed"


async def test_engine_can_be_chosen(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("deno", "typeof Deno", engine="deno"))
        assert (await client.done("deno"))["result"] == "object"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (execute("bad", "1", timeoutMs=0), "options.timeoutMs: expected a number of at least 1, got 0"),
        (execute("bad", "1", maxLogLines=-1), "options.maxLogLines: expected a number of at least 0, got -1"),
        (execute("bad", "1", engine="v8"), "engine: unknown engine 'v8'; expected one of quickjs, deno"),
        (execute("bad", "1", tools=("a",), namespace="class"), "Invalid provider namespace: class"),
        (execute("bad", "1", tools=("no-name",)), "`manifest.tools.no-name` must be a JavaScript identifier"),
        (execute("bad", "1" * 4_194_305), "code: has 4194307 bytes of JSON; the limit is 4194304"),
    ],
)
async def test_invalid_execution_is_refused_with_the_reason(
    server: ServeProcess, message: dict[str, Any], expected: str
) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(message)
        done = await client.end("bad")
        assert (done["ok"], done["durationMs"], done["error"]["code"]) == (False, 0, "validation_error")
        assert expected in done["error"]["message"]


async def test_closed_connection_cancels_its_executions(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("left", "console.log('x'); for (;;);", timeoutMs=100_001))
        await client.started("left")
        await client.send(execute("behind", "await tools.ask()", tools=("ask",), timeoutMs=100_001))
        await client.started("behind")
        await client.call("behind")
    for _ in range(2):
        await cancelled(server, 100_001)


async def test_connection_that_breaks_cancels_its_executions(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("broken", "for (;;);", timeoutMs=100_002))
        await client.started("broken")
        client.socket.transport.abort()
        await cancelled(server, 100_002)


async def cancelled(server: ServeProcess, timeout_ms: int) -> None:
    """Waits for the record of the execution with this timeout and checks that it ended early."""
    record = json.loads(await asyncio.to_thread(server.logged, f'"timeout_ms": {timeout_ms}'))
    assert record["outcome"] == "cancelled"
    assert record["duration_ms"] < timeout_ms


# --- limits of the server ---


@pytest.fixture(scope="module")
def strict() -> Iterator[ServeProcess]:
    with running_server(
        HUTCH_MAX_TIMEOUT_MS="2500",
        HUTCH_MOST_MEMORY_LIMIT_BYTES=str(8 * 2**20),
        HUTCH_MOST_LOG_LINES="2",
        HUTCH_MOST_LOG_CHARS="10",
        HUTCH_MAX_LINE_BYTES="100000",
    ) as running:
        yield running


async def test_every_option_is_limited_by_the_server(strict: ServeProcess) -> None:
    async with connect_execbox(strict.execbox) as client:
        await client.send(execute("time", "for (;;);", timeoutMs=1e9))
        done = await client.done("time")
        assert done["error"]["code"] == "timeout"
        assert done["durationMs"] < 10_000
        await client.send(
            execute("memory", "const a = []; for (;;) a.push(new Array(1000).fill(1))", memoryLimitBytes=1e12)
        )
        assert (await client.done("memory"))["error"] == {
            "code": "memory_limit",
            "message": "Execution exceeded its memory limit of 8 MiB",
        }
        await client.send(execute("lines", "for (const n of [1, 2, 3]) console.log(n)", maxLogLines=1e9))
        assert (await client.done("lines"))["logs"] == ["1", "2"]
        await client.send(execute("chars", "console.log('0123456789abc')", maxLogChars=1e9))
        assert (await client.done("chars"))["logs"] == ["0123456789"]


@pytest.mark.parametrize("size", [100_001, 5_000_000])
async def test_oversized_message_closes_the_connection_with_the_reason(
    strict: ServeProcess, size: int
) -> None:
    async with connect_execbox(strict.execbox) as client:
        with contextlib.suppress(ConnectionClosed):
            await client.send("x" * size)
        with pytest.raises(ConnectionClosed) as closed:
            await client.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        assert "100000" in closed.value.rcvd.reason
    async with connect_execbox(strict.execbox) as client:
        await client.send(execute("next", "1"))
        assert (await client.done("next"))["result"] == 1


async def test_busy_server_says_when_to_retry() -> None:
    limits = {"HUTCH_MAX_PROCESSES": "1", "HUTCH_QUICKJS_VMS": "1", "HUTCH_MAX_QUEUE": "1"}
    with running_server(**limits) as server:
        async with connect_execbox(server.execbox) as client:
            await client.send(execute("has it", "await tools.ask()", tools=("ask",)))
            await client.started("has it")
            call = await client.call("has it")
            await client.send(execute("waits", "1"), execute("too many", "2"))
            refused = (await client.end("too many"))["error"]
            assert refused["code"] == "internal_error"
            assert refused["message"] == "1 executions are waiting already (max_queue). Try again in 1 s."
            await client.send({"type": "cancel", "id": "waits"})
            assert (await client.end("waits"))["error"]["code"] == "timeout"
            await client.send(execute("waits too", "3"), tool_result(call, "done"))
            assert (await client.end("has it"))["result"] == "done"
            assert (await client.done("waits too"))["result"] == 3


# --- hostile clients ---


def many_tools(count: int) -> str:
    return json.dumps(execute("many", "1", tools=tuple(f"t{n}" for n in range(count))))


def many_providers(count: int) -> str:
    message = execute("many", "1")
    message["providers"] = [{"name": f"p{n}", "tools": {}, "types": ""} for n in range(count)]
    return json.dumps(message)


MANY = {
    "60 000 tools": lambda: many_tools(60_000),
    "50 000 providers": lambda: many_providers(50_000),
    "20 000 tools": lambda: many_tools(20_000),
    "2 000 tools": lambda: many_tools(2_000),
    "500 providers": lambda: many_providers(500),
}


@repeat_on_stall
async def test_message_with_very_many_tools_does_not_block_the_server(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("first", "1"))
        await client.done("first")
        for name, make_message in MANY.items():
            message = make_message()
            with ServerStalls(server.process.pid, server.url) as stalls:
                await client.send(message)
                done = await client.receive()
                while done["type"] != "done":
                    done = await client.receive()
            stalls.assert_short(name)
            assert done["id"] == "many"
            if not done["ok"]:
                assert done["error"]["code"] == "validation_error"
                assert "providers" in done["error"]["message"] or "values" in done["error"]["message"]


def long_quotes() -> str:
    return '"' + '\\"' * 4_000_000 + '"'


@pytest.mark.parametrize(
    ("make_payload", "after", "length"),
    [
        (long_quotes, "", 4_000_000),
        (lambda: json.dumps([["x" * 40] * 10] * 4_000, indent=1), "", 4_000),
        (lambda: long_quotes()[:-1], "", "The result is not JSON: malformed JSON: a string has no end"),
        (long_quotes, ',"extra":2', 4_000_000),
    ],
    ids=["quotes", "line breaks", "malformed", "not last"],
)
@repeat_on_stall
async def test_long_tool_result_does_not_block_the_server(
    server: ServeProcess, make_payload: Callable[[], str], after: str, length: object
) -> None:
    """Checking a tool result of 8 MB of quotes in one step takes 0.1 s."""
    code = "try { return (await tools.ask()).length } catch (error) { return error.message }"
    async with connect_execbox(server.execbox) as client:
        await client.send(execute("long", code, tools=("ask",), timeoutMs=60_000))
        await client.started("long")
        call_id = (await client.call("long"))["callId"]
        head = f'{{"type":"tool_result","callId":"{call_id}","ok":true,"result":'
        text = head + make_payload() + after + "}"
        with ServerStalls(server.process.pid, server.url) as stalls:
            await client.send(text)
            assert (await client.end("long"))["result"] == length
    stalls.assert_short()


@repeat_on_stall
async def test_very_long_code_is_refused_without_blocking_the_server(server: ServeProcess) -> None:
    """The server must refuse such code before it decodes it, because the decoding takes 0.2 s."""
    text = json.dumps(execute("long", '"' * 7_000_000))
    async with connect_execbox(server.execbox) as client:
        with ServerStalls(server.process.pid, server.url) as stalls:
            await client.send(text)
            done = await client.receive()
    assert done["error"]["message"].endswith("code: has 14000002 bytes of JSON; the limit is 4194304")
    stalls.assert_short()


@repeat_on_stall
async def test_large_inputs_do_not_block_the_server(server: ServeProcess) -> None:
    """Decoding and encoding these numbers in one step would stall the event loop for 0.2 s."""
    message = {
        **execute("large", "return numbers.length", timeoutMs=60_000),
        "inputs": {"numbers": [1e300] * 100_000},
    }
    text = json.dumps(message)
    async with connect_execbox(server.execbox) as client:
        with ServerStalls(server.process.pid, server.url) as stalls:
            await client.send(text)
            done = await client.done("large")
    assert done["result"] == 100_000
    stalls.assert_short()


async def test_bytes_of_waiting_executions_are_limited() -> None:
    """All connections of one client share the limit."""
    limits = {"HUTCH_MAX_PROCESSES": "1", "HUTCH_QUICKJS_VMS": "1", "HUTCH_MAX_PENDING_BYTES": "10000000"}
    with running_server(**limits) as server:
        async with connect_execbox(server.execbox) as one, connect_execbox(server.execbox) as other:
            await one.send(execute("has it", "await tools.ask()", tools=("ask",)))
            await one.started("has it")
            call = await one.call("has it")
            code = f"'{'x' * 3_000_000}'.length"
            before = resident_bytes(server.process.pid)
            for number in range(40):
                await (one, other)[number % 2].send(execute(f"{number}", code))
            refused: list[dict[str, Any]] = []

            async def collect(client: ExecboxClient) -> None:
                # Three executions of either client wait.
                while len(refused) < 37:
                    refused.append(await client.receive())

            collecting = {asyncio.create_task(collect(client)) for client in (one, other)}
            _, waiting = await asyncio.wait(collecting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert {each["error"]["retryAfter"] for each in refused} == {1.0}
            assert "the limit is 10000000 (setting max_pending_bytes)" in refused[0]["error"]["message"]
            assert resident_bytes(server.process.pid) - before < 60_000_000
            await one.send(tool_result(call, "done"))
            assert (await one.end("has it"))["result"] == "done"


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


async def test_client_cannot_forge_lines_of_the_log() -> None:
    forged = "\n2031-01-01T00:00:00Z [info     ] forged\x1b[2J\u2028forged"
    with running_server(HUTCH_LOG_LEVEL="debug") as server:
        async with connect_execbox(server.execbox) as client:
            tool = {"safeName": "a", "originalName": f"a{forged}", "description": forged}
            manifest = {"name": "tools", "tools": {"a": tool}, "types": forged}
            await client.send(
                {"type": forged, "id": forged},
                {"type": "cancel", "id": forged},
                {**execute(forged, "await tools.a()", tools=("a",)), "providers": [manifest]},
            )
            await client.started(forged)
            await client.send(tool_failure(await client.call(forged), "tool_error", forged))
            await client.end(forged)
        server.process.terminate()
        assert await asyncio.to_thread(server.wait) == 0
        assert [line for line in server.seen if "dropped an invalid message" in line]
        lines = [line.rstrip("\n") for line in server.seen]
        assert not [line for line in lines if line.startswith("2031") or not line.isprintable()]
