"""How an execution ends: what a tool throws, what it leaves open, its time, its caller, the server's end."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from tests.contract.tpmjs.served import Executor, Meeting, executor, runners, tool
from tests.npm import registry
from tests.processes import Traces, until

FAILURE = "TOOL_EXECUTION_ERROR"


# --- by its own doing ---


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
    "The tool did not finish in time",
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
    """What was told of tools that all failed."""
    assert [name for name, answer in answers.items() if answer["success"]] == []
    assert {answer["error"]["code"] for answer in answers.values()} == {FAILURE}
    return {name: answer["error"]["message"] for name, answer in answers.items()}


async def test_what_is_thrown_is_told(made: Executor) -> None:
    answers = await made.run_all({thrown: tool(f"throw {thrown}") for thrown in THROWN})
    assert failures(answers) == THROWN


async def test_text_of_an_error_does_not_decide_its_code(made: Executor) -> None:
    more = "{ code: 'TIMEOUT', name: 'AbortError' }"
    answers = await made.run_all(
        {text: tool(f"throw Object.assign(new Error({json.dumps(text)}), {more})") for text in TEXTS}
    )
    assert failures(answers) == {text: text for text in TEXTS}


async def test_exit_is_a_failure_whatever_its_code(made: Executor) -> None:
    answers = await made.run_all({source: tool(f"console.log('before'); {source}") for source in EXITS})
    assert failures(answers) == {source: f"The tool called {call}" for source, call in EXITS.items()}
    assert [source for source, answer in answers.items() if answer["logs"] != ["before"]] == []


async def test_exit_while_importing_is_a_failure(spared: Executor) -> None:
    package = spared.publish(tool("return 1", "process.exit(0);"))
    for _ in range(2):
        answer = await spared.execute(package)
        assert answer["error"]["code"] == FAILURE
        assert "process.exit(0)" in answer["error"]["message"]


async def test_error_that_nobody_caught_is_the_tool_s(made: Executor) -> None:
    before = "import Emitter from 'node:events'; const error = new Error('nobody caught it');"
    answers = await made.run_all(
        {source: tool(f"{source}; await new Promise(() => {{}})", before) for source in UNCAUGHT}
    )
    assert failures(answers) == dict.fromkeys(UNCAUGHT, "nobody caught it")


async def test_error_that_a_handler_of_the_package_s_takes_is_none(made: Executor) -> None:
    source = tool(
        "Promise.reject(1); setTimeout(() => { throw 2 });"
        "while (seen.length < 2) await new Promise((r) => setTimeout(r)); return seen",
        "const seen = [], see = (error) => seen.push(error);"
        "process.on('unhandledRejection', see); process.on('uncaughtException', see);",
    )
    assert (await made.run(source))["output"] == [1, 2]


async def test_what_is_left_open_does_not_delay_the_answer(made: Executor, meet: Meeting) -> None:
    began = time.monotonic()
    answers = await made.run_all(
        {each: {"source": tool(f"{each}; return 'done'"), "params": {"meet": meet.url}} for each in OPEN}
    )
    assert {each: answer.get("output", answer) for each, answer in answers.items()} == dict.fromkeys(
        OPEN, "done"
    )
    assert time.monotonic() - began < 60


# --- by its time ---


SLOW = {
    "never resolves": tool("await new Promise(() => {})"),
    "sleeps": tool("await new Promise((r) => setTimeout(r, 60_000))"),
    "is never imported": tool("return 1", "await new Promise(() => {});"),
    "is never made": "export const tool = () => new Promise(() => {})",
    "never ends": "export const tool = { async *execute() { yield 1; await new Promise(() => {}) } }",
}


@pytest.mark.parametrize("protocol", ["1.0", "1.1"])
async def test_too_long_is_a_timeout_and_nothing_else(hasty: Executor, protocol: str) -> None:
    answers = await hasty.run_all(
        {name: {"source": source, "X_TPMJS_Protocol_Version": protocol} for name, source in SLOW.items()}
    )
    for name, answer in answers.items():
        assert 900 <= answer["executionTimeMs"] < 20_000, name
        if protocol == "1.1":
            assert (answer["errorStage"], answer["errorCode"]) == ("execute", "EXECUTION_TIMEOUT"), name
        else:
            told = {"code": "EXECUTION_TIMEOUT", "message": "The tool did not finish in time"}
            assert answer["error"] == told, name


async def test_signal_tells_the_tool_that_its_time_is_up(hasty: Executor) -> None:
    source = tool(
        "console.log('waiting'); await new Promise((_, reject) =>"
        " options.abortSignal.addEventListener('abort', () => { writeSync(1, 'aborted\\n'); reject(1) }))",
        "import { writeSync } from 'node:fs';",
    )
    answer = await hasty.run(source)
    assert (answer["error"]["code"], answer["logs"]) == ("EXECUTION_TIMEOUT", ["waiting", "aborted"])


async def test_longest_request_is_a_timeout_too(meet: Meeting, tmp_path: Path) -> None:
    with registry.serving() as npm:
        async with executor(npm, home=tmp_path, request_seconds=1.0, max_spares=0) as server:
            answer = await server.run(tool("await new Promise(() => {})"))
            assert answer["error"]["code"] == "EXECUTION_TIMEOUT"
            assert "took longer than 1 s" in answer["error"]["message"]
            await asyncio.to_thread(until, lambda: not runners(server.pid))


async def test_home_that_cannot_be_written_is_a_fault_of_the_server_and_only_its_log_names_it(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    home.write_text("in the way")
    with registry.serving() as npm:
        async with executor(npm, home=home, max_spares=0) as server:
            wanted = {"packageName": server.publish(tool("return 1")), "name": "tool"}
            for path in ("/execute-tool", "/load-and-describe"):
                answer = await server.post(path, wanted)
                assert answer.status_code == 500
                told = {"code": "INTERNAL_ERROR", "message": "The server failed; its log says why"}
                assert answer.json()["error"] == told
                logged = await asyncio.to_thread(server.server.logged, "cannot be installed")
                assert f"{home} is a file, where a folder should be. Set HUTCH_HOME to" in logged


# --- by its caller ---


async def test_client_that_goes_takes_its_execution_along(made: Executor, meet: Meeting) -> None:
    package = made.publish(
        tool("await fetch(params.meet + '/said/client-goes'); await new Promise(() => {})")
    )
    calling = asyncio.create_task(made.execute(package, params={"meet": meet.url}))
    await meet.said("client-goes")
    assert runners(made.pid)
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert json.loads(await recorded(made, package))["outcome"] == "timeout"
    await asyncio.to_thread(until, lambda: not runners(made.pid))


async def test_client_of_a_stream_that_goes_takes_its_execution_along(made: Executor) -> None:
    package = made.publish(
        "export const tool = { async *execute() { yield 1; await new Promise(() => {}) } }"
    )
    stream = made.stream(package)
    assert await anext(stream) == ("partial", {"value": 1})
    assert runners(made.pid)
    await stream.aclose()
    assert json.loads(await recorded(made, package))["outcome"] == "timeout"
    await asyncio.to_thread(until, lambda: not runners(made.pid))


async def test_client_that_goes_while_its_package_is_installed_starts_nothing(made: Executor) -> None:
    package = made.publish(tool("return 1"))
    made.npm.faults[package] = "hangs"
    calling = asyncio.create_task(made.execute(package))
    await asyncio.to_thread(until, lambda: made.npm.count(package))
    calling.cancel()
    await asyncio.gather(calling, return_exceptions=True)
    assert await made.healthy()
    assert runners(made.pid) == []


async def recorded(server: Executor, package: str) -> str:
    """The record of a package's next run."""
    return await asyncio.to_thread(server.server.logged, f'"{package}@1.0.0#tool"')


# --- by the server's end ---


async def test_sigterm_lets_a_tool_finish_and_leaves_nothing(meet: Meeting, tmp_path: Path) -> None:
    with registry.serving() as npm:
        async with executor(npm, home=tmp_path, egress_allow=meet.address) as server:
            package = server.publish(
                tool(
                    "await fetch(params.meet + '/said/draining');"
                    " return await (await fetch(params.meet + '/wait/drained')).text()"
                )
            )
            calling = asyncio.create_task(server.execute(package, params={"meet": meet.url}))
            await meet.said("draining")
            with Traces(server.pid) as traces:
                server.server.process.terminate()
                await asyncio.to_thread(server.server.logged, "draining")
                late = await server.post("/execute-tool", {"packageName": package, "name": "tool"})
                assert (late.status_code, late.json()["error"]["code"]) == (503, "BUSY")
                assert (await server.client.get("/health")).status_code == 503
                meet.let_go("drained")
                assert (await calling)["output"] == "ok"
                assert await asyncio.to_thread(server.server.wait) == 0
                assert traces.remaining() == []


async def test_server_whose_time_is_up_tells_who_waits(meet: Meeting, tmp_path: Path) -> None:
    with registry.serving() as npm:
        settings = {"home": tmp_path, "egress_allow": meet.address, "drain_seconds": 0.1}
        async with executor(npm, **settings) as server:
            package = server.publish(
                tool("await fetch(params.meet + '/said/time-is-up'); await new Promise(() => {})")
            )
            request = {"packageName": package, "name": "tool", "params": {"meet": meet.url}}
            calling = asyncio.create_task(server.post("/execute-tool", request))
            await meet.said("time-is-up")
            with Traces(server.pid) as traces:
                server.server.process.terminate()
                answer = await calling
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "BUSY")
                assert await asyncio.to_thread(server.server.wait) == 1
                assert traces.remaining() == []
