"""`hutch.connect`: code runs on a server, tools run in the client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from tests.support.processes import ServeProcess, running_server

import hutch
from hutch.api.remote import Remote
from hutch.errors import InvalidExecution, SandboxUnavailable


def add(a: int, b: int) -> int:
    return a + b


@pytest.fixture(scope="module")
def server() -> Iterator[ServeProcess]:
    with running_server(HUTCH_API_KEY="secret") as running:
        yield running


@pytest.fixture
def remote(server: ServeProcess) -> Remote:
    return hutch.connect(server.execbox, api_key="secret")


async def test_code_runs_on_the_server_and_tools_in_the_client(remote: Remote) -> None:
    seen = []

    async def note(text: str, context: hutch.ToolContext) -> str:
        seen.append((text, context.tool))
        return text.upper()

    async with remote as h:
        r = await h.run("console.log('log'); return [await tools.note({text: 'é'})]", tools=[note])
        assert (r.ok, r.result, r.logs, r.error) == (True, ["É"], ["log"], None)
        assert r.duration_ms > 0
        assert seen == [("é", "note")]


async def test_call_without_await_is_a_warning_over_a_connection(remote: Remote) -> None:
    async def note(text: str) -> str:
        return text

    async with remote as h:
        r = await h.run("tools.note({text: 'é'});\nreturn 1", tools=[note])
        assert r.result == 1
        (warning,) = r.warnings
        assert warning.startswith("1 call of tools.note")


async def test_inputs_and_log_callback_work_over_a_connection(remote: Remote) -> None:
    lines: list[str] = []
    arrived = asyncio.Event()

    async def on_log(line: str) -> None:
        lines.append(line)
        arrived.set()

    async def wait_for_line() -> None:
        await asyncio.wait_for(arrived.wait(), 60)

    async with remote as h:
        code = "console.log(a); await tools.wait_for_line(); return a + b"
        r = await h.run(code, inputs={"a": "é", "b": 1}, tools=[wait_for_line], on_log=on_log)
        assert (r.raise_for_error().result, lines, r.logs) == ("é1", ["é"], ["é"])
        with pytest.raises(InvalidExecution, match="inputs"):
            await h.run("1", inputs={"a b": 1})


async def test_events_of_a_run_on_the_server(remote: Remote) -> None:
    seen = asyncio.Event()

    async def wait_for_line() -> str:
        await asyncio.wait_for(seen.wait(), 60)
        return "ok"

    async with remote as h:
        run = await h.start("console.log('é'); return await tools.wait_for_line()", tools=[wait_for_line])
        assert run.id is None
        names = []
        async for event in run:
            names.append(type(event).__name__)
            if isinstance(event, hutch.RunLog):
                seen.set()
        result = await run.result()
        assert (result.result, result.run_id) == ("ok", run.id)
        assert names == ["RunQueued", "RunStarted", "RunLog", "ToolCallStarted", "ToolCallEnded", "RunEnded"]
        run = await h.start("await new Promise(() => {})", timeout_ms=60_000)
        async for event in run:
            if isinstance(event, hutch.RunStarted):
                run.cancel()
        assert not (await run.result()).ok


async def test_streaming_tool_and_progress_over_a_connection(remote: Remote) -> None:
    received = asyncio.Event()

    async def steps(context: hutch.ToolContext) -> AsyncIterator[str]:
        context.progress("before")
        yield "first"
        await asyncio.wait_for(received.wait(), 60)
        yield "second"

    def confirm() -> None:
        received.set()

    async with remote as h:
        code = """const seen = [];
            for await (const x of tools.steps()) { seen.push(x); await tools.confirm() }
            return seen"""
        run = await h.start(code, tools=[steps, confirm])
        events = [event async for event in run]
        assert (await run.result()).raise_for_error().result == ["first", "second"]
        values = [event.value for event in events if isinstance(event, hutch.ToolProgress)]
        assert values == ["before", "first", "second"]
        [call, *_] = [event for event in events if isinstance(event, hutch.ToolCallStarted)]
        assert (call.tool, call.line) == ("steps", 2)


async def test_client_and_server_have_the_same_run_id() -> None:
    def context_id(context: hutch.ToolContext) -> str:
        return context.run_id

    with running_server(HUTCH_LOG_LEVEL="info", HUTCH_LOG_JSON="true") as server:
        async with hutch.connect(server.execbox) as h:
            results = [await h.run("return await tools.context_id()", tools=[context_id]) for _ in range(3)]
            results.append(await h.run("throw new Error('no')"))
        for r in results:
            server.logged(r.run_id)
    assert [r.result for r in results[:3]] == [r.run_id for r in results[:3]]


async def test_client_connects_on_first_use(remote: Remote) -> None:
    assert (await remote.run("1 + 1")).result == 2
    await remote.close()
    await remote.close()


async def test_url_without_a_path_is_accepted(server: ServeProcess) -> None:
    async with hutch.connect(server.url.replace("http", "ws"), api_key="secret") as h:
        assert (await h.run("1 + 1")).result == 2


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_engine_is_sent_to_the_server(remote: Remote, engine: str) -> None:
    async with remote as h:
        r = await h.run("typeof Deno", engine=engine)
        assert r.result == ("object" if engine == "deno" else "undefined")


async def test_concurrent_executions(remote: Remote) -> None:
    async with remote as h:
        codes = [f"await tools.add({{a: {number}, b: 1}})" for number in range(50)]
        results = await asyncio.gather(*(h.run(code, tools=[add], timeout_ms=60_000) for code in codes))
        assert [each.result for each in results] == list(range(1, 51))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1;\nthrow new TypeError('no')", ("runtime_error", "no")),
        ("await tools.add({a: 'x', b: 1})", ("validation_error", "Invalid input for tool add")),
        ("await tools.fail({})", ("tool_error", "it broke")),
        ("() => () => 1", ("serialization_error", "")),
        ("await tools.sleep({})", ("timeout", "Execution timed out")),
    ],
)
async def test_errors_are_the_same_as_locally(remote: Remote, code: str, expected: tuple[str, str]) -> None:
    def fail() -> None:
        raise RuntimeError("it broke")

    async def sleep() -> None:
        await asyncio.Event().wait()

    async with remote as h:
        r = await h.run(code, tools=[add, fail, sleep], timeout_ms=500 if "sleep" in code else 60_000)
        assert r.error is not None
        assert r.error.code == expected[0]
        assert expected[1] in r.error.message


async def test_session_on_the_server_with_tools_of_the_client(server: ServeProcess, remote: Remote) -> None:
    async with remote as h, h.session("work") as s:
        await s.run("let items = [await tools.add({a: 1, b: 1})]", tools=[add])
        lines: list[str] = []
        r = await s.run("items.push(n); console.log('é'); items", inputs={"n": 3}, on_log=lines.append)
        assert (r.raise_for_error().result, lines) == ([2, 3], ["é"])
        copy = await s.fork("copy")
        assert (await copy.run("items.push(4); items.length")).result == 3
        await s.rollback(1)
        assert (await s.run("items")).result == [2]
        (variable,) = await s.variables()
        assert (variable.name, variable.type) == ("items", "Array")
        failed = await s.run("items = null; throw new Error('no')")
        assert failed.error is not None
        assert (failed.error.code, (await s.info()).turn) == ("runtime_error", 2)
        assert {session.id for session in await h.sessions()} == {"work", "copy"}
        with pytest.raises(hutch.SessionError) as refused:
            await s.fork("copy")
        assert refused.value.code == "session_exists"
        with pytest.raises(
            hutch.SessionError, match="expected one of the turns 1 to 2, or 0, got 9"
        ) as refused:
            await s.rollback(9)
        assert refused.value.code == "turn_not_found"
        await copy.delete()
        with pytest.raises(hutch.SessionError, match="There is no session copy"):
            await copy.info()
    async with hutch.connect(server.execbox, api_key="secret") as other:
        assert (await other.session("work").run("items")).result == [2]


async def test_lower_time_limit_of_the_server_is_a_timeout() -> None:
    """The server's limit of 200 ms applies although the client requests 60 s."""
    with running_server(HUTCH_MAX_TIMEOUT_MS="200") as short_limit_server:
        async with hutch.connect(short_limit_server.execbox) as h:
            r = await h.run("for (;;);", timeout_ms=60_000)
            assert r.error is not None
            assert r.error.code == "timeout"
            assert r.error.message.startswith("Execution timed out after ")


async def test_guest_cannot_claim_a_timeout(remote: Remote) -> None:
    async with remote as h:
        r = await h.run("throw Object.assign(new Error('Execution timed out'), {code: 'timeout'})")
        assert r.error is not None
        assert r.error.code == "runtime_error"


async def test_cancelling_the_call_stops_the_tool_and_the_guest() -> None:
    called, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with running_server(HUTCH_LOG_LEVEL="info", HUTCH_LOG_JSON="1") as server:
        async with hutch.connect(server.execbox) as h:
            task = asyncio.create_task(h.run("await tools.wait()", tools=[wait], timeout_ms=100_000))
            await called.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await cancelled.wait()
            await asyncio.to_thread(server.logged, '"outcome": "cancelled"')
            assert (await h.run("1")).result == 1


async def test_client_reconnects_when_the_server_is_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with running_server("--port", port) as first:
        h = hutch.connect(first.execbox)
        assert (await h.run("1")).result == 1
        first.process.terminate()
        assert await asyncio.to_thread(first.wait) == 0
    with pytest.raises(SandboxUnavailable, match="cannot be reached"):
        await h.run("2")
    with running_server("--port", port) as second:
        assert (await h.run("3")).result == 3
        second.process.kill()
        second.process.wait()
    # Start the third server before the client notices that the connection to the killed server is lost.
    with running_server("--port", port):
        assert (await h.run("4")).result == 4
        await h.close()


async def test_execution_is_lost_if_the_server_stops() -> None:
    called = asyncio.Event()

    async def wait() -> None:
        called.set()
        await asyncio.Event().wait()

    with running_server() as server:
        async with hutch.connect(server.execbox) as h:
            task = asyncio.create_task(h.run("await tools.wait()", tools=[wait], timeout_ms=100_000))
            await called.wait()
            server.process.kill()
            r = await task
            assert r.error is not None
            assert r.error.code == "internal_error"
            assert r.error.message.startswith("The runner was lost: ")


async def test_closing_ends_running_executions(remote: Remote) -> None:
    called = asyncio.Event()

    async def wait() -> None:
        called.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(remote.run("await tools.wait()", tools=[wait]))
    await called.wait()
    await remote.close()
    assert not (await task).ok
    with pytest.raises(hutch.HutchError, match="This connection was closed"):
        await remote.run("1")


@pytest.mark.parametrize("key", [None, "wrong"])
async def test_wrong_key_is_reported(server: ServeProcess, key: str | None) -> None:
    with pytest.raises(SandboxUnavailable, match="refused the connection: the API key is missing or wrong"):
        await hutch.connect(server.execbox, api_key=key).run("1")


async def test_wrong_path_is_reported_with_the_right_one(server: ServeProcess) -> None:
    with pytest.raises(
        SandboxUnavailable, match=r"has no Execbox endpoint \(404\): on a Hutch server its path is /execbox"
    ):
        async with hutch.connect(server.execbox + "s", api_key="secret"):
            pass


async def test_unreachable_server_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(SandboxUnavailable, match=r"cannot be reached: .* Is `hutch serve` running there\?"):
        await hutch.connect(f"ws://127.0.0.1:{port}").run("1")


@pytest.mark.parametrize("url", ["http://127.0.0.1:4111", "127.0.0.1:4111", "ws://", "", "ws:///execbox"])
def test_invalid_url_is_refused_immediately(url: str) -> None:
    with pytest.raises(InvalidExecution, match=r"url: expected a URL such as ws://127\.0\.0\.1:4111/execbox"):
        hutch.connect(url)


def test_key_in_the_url_is_refused() -> None:
    with pytest.raises(InvalidExecution, match="pass the key as `api_key`") as refused:
        hutch.connect("ws://user:secret@example.com")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "v8"}, "unknown engine 'v8'"),
        ({"timeout_ms": 0}, "timeout_ms: expected a number of at least 1, got 0"),
        ({"max_log_lines": -1}, "max_log_lines: expected a number of at least 0, got -1"),
        ({"code": "'" + "x" * 2**24 + "'"}, r"code: has \d+ bytes of JSON with its tools"),
    ],
)
async def test_invalid_execution_is_refused_by_the_client(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExecution, match=message):
        await hutch.connect("ws://127.0.0.1:1").run(**{"code": "1", **options})


async def test_busy_server_raises_busy() -> None:
    one = {"HUTCH_MAX_PROCESSES": "1", "HUTCH_QUICKJS_VMS": "1", "HUTCH_QUICKJS_PROCESSES": "1"}
    has_started = asyncio.Event()

    async def hold() -> None:
        has_started.set()
        await asyncio.Event().wait()

    # Runs may wait in the queue for 3 s. Otherwise a run could be refused before a process has started.
    with running_server(HUTCH_QUEUE_SECONDS="3", **one) as full:
        async with hutch.connect(full.execbox) as h:
            holding = asyncio.create_task(h.run("await tools.hold()", tools=[hold], timeout_ms=60_000))
            await has_started.wait()
            with pytest.raises(
                hutch.Busy, match="The server is busy: No runner became available within 3 s"
            ) as refused:
                await h.run("1")
            assert refused.value.retry_after >= 1
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)


async def test_limit_above_the_servers_maximum_is_refused_by_the_server(remote: Remote) -> None:
    async with remote as h:
        r = await h.run(" " * 5_000_000)
        assert r.error is not None
        assert (r.error.code, r.error.message) == (
            "validation_error",
            "execute: code: has 5000002 bytes of JSON; the limit is 4194304",
        )
