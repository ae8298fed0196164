"""Ends of executions: exceptions, open handles, timeouts, disconnects and shutdown."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.harness import SyncServer, ToolServer, runners, start_server, tool
from tests.npm import registry
from tests.support.processes import Traces, wait_until

FAILURE = "TOOL_EXECUTION_ERROR"


# --- by the tool ---


THROWN = {
    "new Error('plain')": "plain",
    "new TypeError('typed')": "typed",
    "'text'": "text",
    "null": "null",
    "undefined": "undefined",
    "{ a: 1 }": '{"a":1}',
    "{ message: 'like an error' }": "like an error",
    "new AggregateError([new Error('one'), new Error('two')])": "one; two",
    "Object.create(null)": "{}",
    "new Proxy({}, { get() { throw 1 } })": "an error that cannot be read",
}

TEXTS = [
    "Cannot find module 'x'",
    "TOOL_NOT_FOUND",
    "PACKAGE_NOT_FOUND: 404 Not Found",
    "Execution timed out",
    "ETIMEDOUT timeout",
    "The tool did not finish within 1 s",
    "heap out of memory",
    "x has no export",
    '{"code": "EXECUTION_TIMEOUT"}',
]

EXITS = {
    "process.exit(0)": "process.exit(0)",
    "process.exit()": "process.exit(0)",
    "process.exit(3)": "process.exit(3)",
    "(await import('node:process')).exit(0)": "process.exit(0)",
    "(await import('node:process')).default.reallyExit(0)": "process.exit(0)",
    "Deno.exit(0)": "Deno.exit(0)",
    "close()": "close()",
    "try { process.exit(0) } catch {} return 'fine'": "process.exit(0)",
    "setTimeout(() => process.exit(0)); await new Promise(() => {})": "process.exit(0)",
    "process.abort()": "process.abort()",
}

UNCAUGHT = [
    "Promise.reject(error)",
    "setTimeout(() => { throw error })",
    "queueMicrotask(() => { throw error })",
    "process.nextTick(() => { throw error })",
    "setTimeout(() => new Emitter().emit('error', error))",
]

OPEN = [
    "setInterval(() => {}, 1000)",
    "setTimeout(() => {}, 1e6)",
    "(await import('node:net')).createServer().listen(0)",
    "Deno.serve({ port: 0, onListen() {} }, () => new Response())",
    "new (await import('node:worker_threads')).Worker('setInterval(() => {}, 10)', { eval: true })",
    "process.stdin.resume()",
    "process.on('SIGTERM', () => {})",
    "new Promise(() => {})",
    "fetch(params.meet + '/wait/for-ever').catch(() => {})",
    "(async () => { for (;;) await new Promise((r) => setTimeout(r)) })()",
]


def failures(answers: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Checks that all tools failed. Returns their error messages."""
    assert [name for name, answer in answers.items() if answer["success"]] == []
    assert {answer["error"]["code"] for answer in answers.values()} == {FAILURE}
    return {name: answer["error"]["message"] for name, answer in answers.items()}


async def test_thrown_value_is_reported(tool_server: ToolServer) -> None:
    answers = await tool_server.run_all({thrown: tool(f"throw {thrown}") for thrown in THROWN})
    assert failures(answers) == THROWN


async def test_tool_sees_no_internal_frames_and_no_advice_about_flags(tool_server: ToolServer) -> None:
    body = """
        const texts = [new Error("here").stack];
        try { new Deno.Command("/bin/ls").outputSync(); } catch (error) { texts.push(error.stack); }
        return texts;"""
    here, refused = (await tool_server.run(tool(body)))["output"]
    first, frame = here.split("\n")
    assert first == "Error: here"
    assert frame.startswith("    at Object.execute (file:///")
    assert frame.endswith("/index.js:6:24)")
    assert refused.split("\n")[0].endswith("; the sandbox of tools does not allow it")


async def test_message_of_an_error_does_not_change_its_code(tool_server: ToolServer) -> None:
    more = "{ code: 'TIMEOUT', name: 'AbortError' }"
    answers = await tool_server.run_all(
        {text: tool(f"throw Object.assign(new Error({json.dumps(text)}), {more})") for text in TEXTS}
    )
    assert failures(answers) == {text: text for text in TEXTS}


async def test_exit_is_a_failure_with_any_code(tool_server: ToolServer) -> None:
    answers = await tool_server.run_all(
        {source: tool(f"console.log('before'); {source}") for source in EXITS}
    )
    advice = "Return a value or throw an error instead"
    assert failures(answers) == {
        source: f"The tool called {call}. {advice}" for source, call in EXITS.items()
    }
    assert [source for source, answer in answers.items() if "errorLocation" not in answer] == []
    assert [source for source, answer in answers.items() if answer["logs"] != ["before"]] == []


async def test_exit_while_importing_is_a_failure(spare_server: ToolServer) -> None:
    package = spare_server.publish(tool("return 1", "process.exit(0);"))
    for _ in range(2):
        answer = await spare_server.execute(package)
        assert answer["error"]["code"] == FAILURE
        assert "process.exit(0)" in answer["error"]["message"]


async def test_uncaught_error_fails_the_tool(tool_server: ToolServer) -> None:
    before = "import Emitter from 'node:events'; const error = new Error('uncaught');"
    answers = await tool_server.run_all(
        {source: tool(f"{source}; await new Promise(() => {{}})", before) for source in UNCAUGHT}
    )
    assert failures(answers) == dict.fromkeys(UNCAUGHT, "uncaught")


async def test_error_handled_by_the_package_is_not_a_failure(tool_server: ToolServer) -> None:
    source = tool(
        "Promise.reject(1); setTimeout(() => { throw 2 });"
        "while (seen.length < 2) await new Promise((r) => setTimeout(r)); return seen",
        "const seen = [], see = (error) => seen.push(error);"
        "process.on('unhandledRejection', see); process.on('uncaughtException', see);",
    )
    assert sorted((await tool_server.run(source))["output"]) == [1, 2]


async def test_open_handles_do_not_delay_the_response(tool_server: ToolServer, sync: SyncServer) -> None:
    began = time.monotonic()
    answers = await tool_server.run_all(
        {code: {"source": tool(f"{code}; return 'done'"), "params": {"meet": sync.url}} for code in OPEN}
    )
    assert {code: answer.get("output", answer) for code, answer in answers.items()} == dict.fromkeys(
        OPEN, "done"
    )
    assert time.monotonic() - began < 60


# --- by a timeout ---


SLOW = {
    "never resolves": tool("await new Promise(() => {})"),
    "sleeps": tool("await new Promise((r) => setTimeout(r, 60_000))"),
    "import never ends": tool("return 1", "await new Promise(() => {});"),
    "factory never ends": "export const tool = () => new Promise(() => {})",
    "never ends": "export const tool = { async *execute() { yield 1; await new Promise(() => {}) } }",
}


@pytest.mark.parametrize("protocol", ["1.0", "1.1"])
async def test_slow_tool_is_a_timeout(short_timeout_server: ToolServer, protocol: str) -> None:
    answers = await short_timeout_server.run_all(
        {name: {"source": source, "X_TPMJS_Protocol_Version": protocol} for name, source in SLOW.items()}
    )
    for name, answer in answers.items():
        assert 900 <= answer["executionTimeMs"] < 20_000, name
        if protocol == "1.1":
            assert (answer["errorStage"], answer["errorCode"]) == ("execute", "EXECUTION_TIMEOUT"), name
        else:
            expected = {"code": "EXECUTION_TIMEOUT", "message": "The tool did not finish within 1 s"}
            assert answer["error"] == expected, name


async def test_abort_signal_fires_at_the_timeout(short_timeout_server: ToolServer) -> None:
    source = tool(
        "console.log('waiting'); await new Promise((_, reject) =>"
        " options.abortSignal.addEventListener('abort', () => { writeSync(1, 'aborted\\n'); reject(1) }))",
        "import { writeSync } from 'node:fs';",
    )
    answer = await short_timeout_server.run(source)
    assert (answer["error"]["code"], answer["logs"]) == ("EXECUTION_TIMEOUT", ["waiting", "aborted"])


async def test_request_timeout_is_a_timeout_too(sync: SyncServer, tmp_path: Path) -> None:
    with registry.run_registry() as npm:
        async with start_server(npm, home=tmp_path, request_seconds=1.0, max_spares=0) as server:
            answer = await server.run(tool("await new Promise(() => {})"))
            assert answer["error"]["code"] == "EXECUTION_TIMEOUT"
            assert "took longer than 1 s" in answer["error"]["message"]
            await asyncio.to_thread(wait_until, lambda: not runners(server.pid))


async def test_unwritable_home_is_an_internal_error_and_named_only_in_the_log(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.write_text("in the way")
    with registry.run_registry() as npm:
        async with start_server(npm, home=home, max_spares=0) as server:
            request = {"packageName": server.publish(tool("return 1")), "name": "tool"}
            for path in ("/execute-tool", "/load-and-describe"):
                answer = await server.post(path, request)
                assert answer.status_code == 500
                expected = {"code": "INTERNAL_ERROR", "message": "The server failed; its log says why"}
                assert answer.json()["error"] == expected
                logged = await asyncio.to_thread(server.server.logged, "cannot be installed")
                assert f"{home} is a file, not a folder. Set HUTCH_HOME to" in logged


# --- by the client ---


async def test_disconnect_stops_the_execution(tool_server: ToolServer, sync: SyncServer) -> None:
    package = tool_server.publish(
        tool("await fetch(params.meet + '/ready/client-goes'); await new Promise(() => {})")
    )
    calling = asyncio.create_task(tool_server.execute(package, params={"meet": sync.url}))
    await sync.wait_ready("client-goes")
    assert runners(tool_server.pid)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert json.loads(await recorded(tool_server, package))["outcome"] == "cancelled"
    await asyncio.to_thread(wait_until, lambda: not runners(tool_server.pid))


async def test_disconnect_of_a_stream_stops_the_execution(tool_server: ToolServer) -> None:
    package = tool_server.publish(
        "export const tool = { async *execute() { yield 1; await new Promise(() => {}) } }"
    )
    stream = tool_server.stream(package)
    assert await anext(stream) == ("partial", {"value": 1})
    assert runners(tool_server.pid)
    await stream.aclose()
    assert json.loads(await recorded(tool_server, package))["outcome"] == "cancelled"
    await asyncio.to_thread(wait_until, lambda: not runners(tool_server.pid))


async def test_disconnect_during_installation_starts_nothing(tool_server: ToolServer) -> None:
    package = tool_server.publish(tool("return 1"))
    tool_server.npm.faults[package] = "hangs"
    calling = asyncio.create_task(tool_server.execute(package))
    await asyncio.to_thread(wait_until, lambda: tool_server.npm.count(package))
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert await tool_server.healthy()
    assert runners(tool_server.pid) == []


async def recorded(server: ToolServer, package: str) -> str:
    """Waits for the log line with the record of the package's next run, and returns it."""
    return await asyncio.to_thread(server.server.logged, f'"{package}@1.0.0#tool"')


# --- by shutdown ---


async def test_sigterm_lets_a_tool_finish_and_leaves_nothing(sync: SyncServer, tmp_path: Path) -> None:
    with registry.run_registry() as npm:
        async with start_server(npm, home=tmp_path, egress_allow=sync.address) as server:
            package = server.publish(
                tool(
                    "await fetch(params.meet + '/ready/draining');"
                    " return await (await fetch(params.meet + '/wait/drained')).text()"
                )
            )
            calling = asyncio.create_task(server.execute(package, params={"meet": sync.url}))
            await sync.wait_ready("draining")
            with Traces(server.pid) as traces:
                server.server.process.terminate()
                await asyncio.to_thread(server.server.logged, "draining")
                late = await server.post("/execute-tool", {"packageName": package, "name": "tool"})
                assert (late.status_code, late.json()["error"]["code"]) == (503, "BUSY")
                assert (await server.client.get("/health")).status_code == 503
                sync.release("drained")
                assert (await calling)["output"] == "ok"
                assert await asyncio.to_thread(server.server.wait) == 0
                assert traces.remaining() == []


async def test_expired_drain_returns_an_error_to_waiting_clients(sync: SyncServer, tmp_path: Path) -> None:
    with registry.run_registry() as npm:
        settings = {"home": tmp_path, "egress_allow": sync.address, "drain_seconds": 0.1}
        async with start_server(npm, **settings) as server:
            package = server.publish(
                tool("await fetch(params.meet + '/ready/time-is-up'); await new Promise(() => {})")
            )
            request = {"packageName": package, "name": "tool", "params": {"meet": sync.url}}
            calling = asyncio.create_task(server.post("/execute-tool", request))
            await sync.wait_ready("time-is-up")
            with Traces(server.pid) as traces:
                server.server.process.terminate()
                answer = await calling
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "BUSY")
                assert await asyncio.to_thread(server.server.wait) == 1
                assert traces.remaining() == []
