"""Regression tests for attacks that once succeeded."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Run
from tests.session.calling import context as tool_context
from tests.support.messages import execute
from tests.support.network.memory_channel import MemoryChannel

import hutch
from hutch.session.limits import Limits
from hutch.session.multiplexer import Multiplexer
from hutch.session.run import Result
from hutch.session.runner import ChannelServer, ExecutionRequest, PendingBytes


async def echo(value: Any, /) -> Any:
    return value


LARGE = {
    "a result of many bytes and few characters": 'return "中".repeat(4e6)',
    "an input beyond the limit": 'await tools.echo("x".repeat(9e6))',
    "an error of many characters": 'throw new Error("x".repeat(3e6))',
    "a name of many characters": 'const e = new Error("x"); e.name = "n".repeat(3e6); throw e',
}


@pytest.mark.parametrize("code", LARGE.values(), ids=LARGE.keys())
async def test_oversized_value_fails_only_its_own_run(code: str) -> None:
    release = asyncio.Event()

    async def hold() -> int:
        await release.wait()
        return 1

    async with hutch.Hutch(quickjs_processes=1) as h:
        neighbour = asyncio.create_task(h.run("await tools.hold()", tools=[hold], timeout_ms=30_000))
        result = await h.run(code, tools=[echo], memory_limit_bytes=256 << 20, timeout_ms=20_000)
        assert result.error is not None
        assert result.error.code in ("result_too_large", "serialization_error", "runtime_error")
        assert len(result.error.message) < 10_000
        release.set()
        assert (await neighbour).result == 1


CHANGING = {
    "an error that changes when read again": """
        let n = 0;
        Object.prototype.toJSON = function () { return n++ ? this : { code: 1, message: 2 } };
        throw new Error("x")""",
    "a result that is deep when read again": """
        let n = 0;
        const deep = () => { let x = []; for (let i = 0; i < 200; i++) x = [x]; return x };
        return { get a() { return n++ ? deep() : 1 } }""",
    "a stack with an enormous line": """
        const e = new Error("x");
        Object.defineProperty(e, "stack", { value: "guest.js:999999999999:1" });
        throw e""",
}


@pytest.mark.parametrize("code", CHANGING.values(), ids=CHANGING.keys())
async def test_value_that_changes_while_it_is_read_fails_quickly_and_alone(run: Run, code: str) -> None:
    result = await run(code, timeout_ms=20_000)
    assert result.error is not None
    assert result.error.code in ("runtime_error", "serialization_error")
    assert result.duration_ms < 10_000


@pytest.mark.parametrize("code", ["memory_limit", "internal_error", "timeout", "tool_error"])
async def test_tojson_of_a_guest_cannot_forge_an_error_code(run: Run, code: str) -> None:
    result = await run(f'Object.prototype.toJSON = () => ({{ code: "{code}", message: "m" }}); throw 1')
    assert result.error is not None
    assert result.error.code == "runtime_error"


async def test_unclosed_code_fence_takes_no_time(run: Run) -> None:
    result = await run("```\n" + " " * 400_000 + "x", timeout_ms=20_000)
    assert result.error is not None
    assert result.error.name == "SyntaxError"
    assert result.duration_ms < 10_000


async def test_loop_over_slow_native_calls_is_stopped_without_harming_its_neighbour() -> None:
    async with hutch.Hutch(quickjs_processes=1) as h:
        slow = asyncio.create_task(
            # The text must be so short that a few calls of indexOf end within the grace period, even on a
            # busy machine.
            h.run('const b = "x".repeat(1e6); for (;;) b.indexOf("y")', timeout_ms=1_000)
        )
        neighbour = await h.run("await tools.echo(1)", tools=[echo], timeout_ms=20_000)
        assert neighbour.result == 1
        result = await slow
        assert result.error is not None
        assert result.error.code == "timeout"


async def test_no_timer_is_lost_when_many_are_due_at_once(run: Run) -> None:
    result = await run(
        """
        let fired = 0;
        for (let i = 0; i < 3000; i++) setTimeout(() => fired++, 0);
        const end = Date.now() + 50;
        while (Date.now() < end);
        await new Promise((resolve) => setTimeout(resolve, 20));
        while (fired < 3000) await new Promise((resolve) => setTimeout(resolve, 1));
        return fired""",
        timeout_ms=20_000,
    )
    assert result.result == 3000


async def test_repeated_started_messages_do_not_extend_the_timeout() -> None:
    host, runner = MemoryChannel.pair()
    multiplexer = Multiplexer(host)
    runner.on_line = lambda _: None
    session = multiplexer.open("e", "", Limits(timeout_ms=100), [])

    async def insist() -> None:
        while session.result is None:
            runner.send(b'{"type":"started","id":"e"}\n')
            await asyncio.sleep(0.005)

    async with asyncio.timeout(10):
        await asyncio.gather(insist(), session.wait())
    assert session.result is not None
    assert session.result.error is not None
    assert session.result.error.code == "timeout"


async def test_result_with_line_breaks_stays_one_message() -> None:
    host, runner = MemoryChannel.pair()
    multiplexer = Multiplexer(host)
    runner.on_line = lambda _: None
    session = multiplexer.open("e", "", Limits(), [])
    forged = b'[1,\r{"type":"done","id":"victim","ok":true,"durationMs":1,"logs":[]}\r]'
    runner.send(b'{"type":"done","id":"e","ok":true,"durationMs":1,"logs":[],"result":' + forged + b"}\n")
    result = await session.wait()
    assert result.result_json is not None
    assert b"\r" not in result.result_json
    assert json.loads(result.result_json) == json.loads(forged)


class FakeHost:
    """Client of a channel that Hutch serves: sends messages and collects the answers."""

    def __init__(self, run: Any) -> None:
        served, self.channel = MemoryChannel.pair()
        self.received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.channel.on_line = lambda line: self.received.put_nowait(json.loads(line))
        self.server = ChannelServer(
            served, run, multiplexed=True, pending=PendingBytes(2**20), owner="client"
        )

    def send(self, message: dict[str, Any]) -> None:
        self.channel.send(json.dumps(message).encode() + b"\n")


async def test_execution_cancelled_before_its_start_is_answered() -> None:
    async def run(request: ExecutionRequest) -> Result:
        raise AssertionError("it must not start")

    host = FakeHost(run)
    host.send(execute("s", "1"))
    host.send({"type": "cancel", "id": "s"})
    async with asyncio.timeout(10):
        done = await host.received.get()
        assert (done["id"], done["error"]["code"]) == ("s", "timeout")
        await host.server.stop()
        await host.server.wait_idle()


async def test_pretty_printed_tool_result_of_a_client_stays_one_line() -> None:
    results: list[bytes] = []

    async def run(request: ExecutionRequest) -> Result:
        results.append(await request.providers[0].dispatch("t", None, tool_context()))
        return Result(ok=True, duration_ms=1, logs=[])

    host = FakeHost(run)
    host.send(execute("s", "1", tools=("t",)))
    async with asyncio.timeout(10):
        call = await host.received.get()
        line = json.dumps(
            {"type": "tool_result", "callId": call["callId"], "ok": True, "result": {"a": 1}}, indent=1
        )
        host.channel.send(line.replace("\n", "\r").encode())
        await host.received.get()
    assert json.loads(results[0]) == {"a": 1}
    assert b"\r" not in results[0]


async def test_guest_that_ends_its_own_process_is_not_retried() -> None:
    async with hutch.Hutch(deno_warm=0) as h:
        result = await h.run("Deno.exit(1)", engine="deno")
        assert result.error is not None
        assert result.error.code == "runtime_error"
        assert h._kernel is not None
        assert h._kernel.pool.stats().counters.started == 1


async def test_many_first_executions_at_once_start_no_more_processes_than_allowed() -> None:
    async with hutch.Hutch(quickjs_processes=2) as h:
        results = await asyncio.gather(*(h.run(f"{n}") for n in range(32)))
        assert [each.result for each in results] == [*range(32)]
        assert h._kernel is not None
        assert h._kernel.pool.stats().counters.started <= 3


async def test_endless_garbage_disconnects_the_runner(tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(
        textwrap.dedent("""
            import sys
            for line in sys.stdin:
                while True:
                    sys.stdout.write("garbage\\n" * 1000)
        """)
    )
    async with hutch.Hutch(runner=[sys.executable, str(evil)]) as h, asyncio.timeout(60):
        result = await h.run("1", timeout_ms=30_000)
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert "invalid messages" in result.error.message
