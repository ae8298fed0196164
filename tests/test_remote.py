"""`hutch.connect`: the same API with the runner on another machine and the tools here."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from tests.processes import Server, serving

import hutch
from hutch.errors import InvalidExecution, SandboxUnavailable
from hutch.remote import Remote


def add(a: int, b: int) -> int:
    return a + b


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving(HUTCH_API_KEY="secret") as running:
        yield running


@pytest.fixture
def remote(server: Server) -> Remote:
    return hutch.connect(server.execbox, api_key="secret")


async def test_code_runs_there_and_tools_here(remote: Remote) -> None:
    seen = []

    async def note(text: str, context: hutch.ToolContext) -> str:
        seen.append((text, context.tool))
        return text.upper()

    async with remote as h:
        r = await h.run("console.log('log'); return [await tools.note({text: 'é'})]", tools=[note])
        assert (r.ok, r.result, r.logs, r.error) == (True, ["É"], ["log"], None)
        assert r.duration_ms > 0
        assert seen == [("é", "note")]


async def test_it_connects_when_it_is_first_used(remote: Remote) -> None:
    assert (await remote.run("1 + 1")).result == 2
    await remote.close()
    await remote.close()


async def test_url_of_the_server_is_enough(server: Server) -> None:
    async with hutch.connect(server.url.replace("http", "ws"), api_key="secret") as h:
        assert (await h.run("1 + 1")).result == 2


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_engine_is_chosen_there(remote: Remote, engine: str) -> None:
    async with remote as h:
        r = await h.run("typeof Deno", engine=engine)
        assert r.result == ("object" if engine == "deno" else "undefined")


async def test_many_run_at_once(remote: Remote) -> None:
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
async def test_errors_are_the_same_as_at_home(remote: Remote, code: str, expected: tuple[str, str]) -> None:
    def fail() -> None:
        raise RuntimeError("it broke")

    async def sleep() -> None:
        await asyncio.Event().wait()

    async with remote as h:
        r = await h.run(code, tools=[add, fail, sleep], timeout_ms=500 if "sleep" in code else 60_000)
        assert r.error is not None
        assert r.error.code == expected[0]
        assert expected[1] in r.error.message


async def test_time_that_the_server_does_not_give_is_a_timeout() -> None:
    """Though by our own clock it had more."""
    with serving(HUTCH_MOST_TIMEOUT_MS="200") as hasty:
        async with hutch.connect(hasty.execbox) as h:
            r = await h.run("for (;;);", timeout_ms=60_000)
            assert r.error is not None
            assert (r.error.code, r.error.message) == ("timeout", "Execution timed out")


async def test_guest_cannot_claim_a_timeout(remote: Remote) -> None:
    async with remote as h:
        r = await h.run("throw Object.assign(new Error('Execution timed out'), {code: 'timeout'})")
        assert r.error is not None
        assert r.error.code == "runtime_error"


async def test_cancelling_the_call_stops_the_tool_here_and_the_guest_there() -> None:
    called, cancelled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        called.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with serving(HUTCH_LOG_LEVEL="info", HUTCH_LOG_JSON="1") as patient:
        async with hutch.connect(patient.execbox) as h:
            task = asyncio.create_task(h.run("await tools.wait()", tools=[wait], timeout_ms=100_000))
            await called.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await cancelled.wait()
            await asyncio.to_thread(patient.logged, '"outcome": "timeout"')
            assert (await h.run("1")).result == 1


async def test_it_connects_again_when_the_server_is_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with serving("--port", port) as first:
        h = hutch.connect(first.execbox)
        assert (await h.run("1")).result == 1
        first.process.terminate()
        assert await asyncio.to_thread(first.wait) == 0
    with pytest.raises(SandboxUnavailable, match="cannot be reached"):
        await h.run("2")
    with serving("--port", port) as second:
        assert (await h.run("3")).result == 3
        second.process.kill()
        second.process.wait()
    # Nobody has noticed yet that this connection is gone.
    with serving("--port", port):
        assert (await h.run("4")).result == 4
        await h.close()


async def test_execution_that_is_lost_with_the_server_is_told_as_lost() -> None:
    called = asyncio.Event()

    async def wait() -> None:
        called.set()
        await asyncio.Event().wait()

    with serving() as server:
        async with hutch.connect(server.execbox) as h:
            task = asyncio.create_task(h.run("await tools.wait()", tools=[wait], timeout_ms=100_000))
            await called.wait()
            server.process.kill()
            r = await task
            assert r.error is not None
            assert r.error.code == "internal_error"
            assert r.error.message.startswith("The runner was lost: ")


async def test_closing_ends_what_runs(remote: Remote) -> None:
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
async def test_wrong_key_is_told(server: Server, key: str | None) -> None:
    with pytest.raises(SandboxUnavailable, match="refused the connection: the API key is missing or wrong"):
        await hutch.connect(server.execbox, api_key=key).run("1")


async def test_wrong_path_is_told_with_the_right_one(server: Server) -> None:
    with pytest.raises(
        SandboxUnavailable, match=r"is no Execbox door \(404\): a Hutch server has it at /execbox"
    ):
        async with hutch.connect(server.execbox + "s", api_key="secret"):
            pass


async def test_server_that_is_down_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(SandboxUnavailable, match=r"cannot be reached: .* Is `hutch serve` running there\?"):
        await hutch.connect(f"ws://127.0.0.1:{port}").run("1")


@pytest.mark.parametrize("url", ["http://127.0.0.1:4111", "127.0.0.1:4111", "ws://", "", "ws:///execbox"])
def test_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(InvalidExecution, match=r"url: expected one such as ws://127\.0\.0\.1:4111/execbox"):
        hutch.connect(url)


def test_key_does_not_belong_into_the_url() -> None:
    with pytest.raises(InvalidExecution, match="pass the key as `api_key`") as refused:
        hutch.connect("ws://user:secret@example.com")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "v8"}, "unknown engine 'v8'"),
        ({"timeout_ms": 0}, "timeout_ms: expected a number of at least 1, got 0"),
        ({"max_log_lines": -1}, "max_log_lines: expected a number of at least 0, got -1"),
        ({"code": "'" + "x" * 2**24 + "'"}, "code: has, with its tools, "),
    ],
)
async def test_execution_that_cannot_be_is_refused_here(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidExecution, match=message):
        await hutch.connect("ws://127.0.0.1:1").run(**{"code": "1", **options})


async def test_server_without_a_place_is_busy_here_too() -> None:
    one = {"HUTCH_MAX_PROCESSES": "1", "HUTCH_QUICKJS_VMS": "1", "HUTCH_QUICKJS_PROCESSES": "1"}
    there = asyncio.Event()

    async def hold() -> None:
        there.set()
        await asyncio.Event().wait()

    # Long enough for a process to start.
    with serving(HUTCH_QUEUE_SECONDS="3", **one) as full:
        async with hutch.connect(full.execbox) as h:
            holding = asyncio.create_task(h.run("await tools.hold()", tools=[hold], timeout_ms=60_000))
            await there.wait()
            with pytest.raises(hutch.Busy, match="no place free") as refused:
                await h.run("1")
            assert refused.value.retry_after >= 1
            holding.cancel()
            await asyncio.gather(holding, return_exceptions=True)


async def test_what_only_the_server_knows_to_be_too_much_is_refused_there(remote: Remote) -> None:
    async with remote as h:
        r = await h.run(" " * 5_000_000)
        assert r.error is not None
        assert (r.error.code, r.error.message) == (
            "validation_error",
            "code: has 5000000 bytes; the limit is 4194304",
        )
