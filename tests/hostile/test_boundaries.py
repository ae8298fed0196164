"""What attackers found once: each of these broke something, and may not again."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Run
from tests.messages import execute

import hutch
from hutch.session.channel import MemoryChannel
from hutch.session.host import Limits
from hutch.session.link import Link
from hutch.session.serving import Answer, Request, Serving


async def echo(value: Any, /) -> Any:
    """Gives back what it gets."""
    return value


LARGE = {
    "a result of many bytes and few characters": 'return "中".repeat(4e6)',
    "an input beyond the limit": 'await tools.echo("x".repeat(9e6))',
    "an error of many characters": 'throw new Error("x".repeat(3e6))',
    "a name of many characters": 'const e = new Error("x"); e.name = "n".repeat(3e6); throw e',
}


@pytest.mark.parametrize("code", LARGE.values(), ids=LARGE.keys())
async def test_what_is_too_large_fails_itself_and_no_neighbour(code: str) -> None:
    release = asyncio.Event()

    async def hold() -> int:
        """Waits."""
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


TWICE = {
    "a fault that is written otherwise": """
        let n = 0;
        Object.prototype.toJSON = function () { return n++ ? this : { code: 1, message: 2 } };
        throw new Error("x")""",
    "a result that is deep the second time": """
        let n = 0;
        const deep = () => { let x = []; for (let i = 0; i < 200; i++) x = [x]; return x };
        return { get a() { return n++ ? deep() : 1 } }""",
    "a stack with an enormous line": """
        const e = new Error("x");
        Object.defineProperty(e, "stack", { value: "guest.js:999999999999:1" });
        throw e""",
}


@pytest.mark.parametrize("code", TWICE.values(), ids=TWICE.keys())
async def test_what_changes_while_it_is_read_ends_at_once_and_alone(run: Run, code: str) -> None:
    result = await run(code, timeout_ms=20_000)
    assert result.error is not None
    assert result.error.code in ("runtime_error", "serialization_error")
    assert result.duration_ms < 10_000


@pytest.mark.parametrize("code", ["memory_limit", "internal_error", "timeout", "tool_error"])
async def test_no_code_is_made_by_a_guests_own_tojson(run: Run, code: str) -> None:
    result = await run(f'Object.prototype.toJSON = () => ({{ code: "{code}", message: "m" }}); throw 1')
    assert result.error is not None
    assert result.error.code == "runtime_error"


async def test_a_fence_that_never_closes_takes_no_time(run: Run) -> None:
    result = await run("```\n" + " " * 400_000 + "x", timeout_ms=20_000)
    assert result.error is not None
    assert result.error.name == "SyntaxError"
    assert result.duration_ms < 10_000


async def test_a_loop_over_slow_native_calls_is_stopped_and_its_neighbour_unharmed() -> None:
    async with hutch.Hutch(quickjs_processes=1) as h:
        slow = asyncio.create_task(
            # Some milliseconds each: what a busy machine makes of several must stay below the grace.
            h.run('const b = "x".repeat(1e6); for (;;) b.indexOf("y")', timeout_ms=1_000)
        )
        neighbour = await h.run("await tools.echo(1)", tools=[echo], timeout_ms=20_000)
        assert neighbour.result == 1
        result = await slow
        assert result.error is not None
        assert result.error.code == "timeout"


async def test_no_timer_is_lost_however_many_are_due_at_once(run: Run) -> None:
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


async def test_a_runner_that_says_started_again_and_again_ends_no_later() -> None:
    host, runner = MemoryChannel.pair()
    link = Link(host)
    runner.on_line = lambda _: None
    session = link.open("e", "", Limits(timeout_ms=100), [])

    async def insist() -> None:
        while session.outcome is None:
            runner.send(b'{"type":"started","id":"e"}\n')
            await asyncio.sleep(0.005)

    async with asyncio.timeout(10):
        await asyncio.gather(insist(), session.wait())
    assert session.outcome is not None
    assert session.outcome.error is not None
    assert session.outcome.error.code == "timeout"


async def test_a_result_with_line_breaks_stays_one_message() -> None:
    host, runner = MemoryChannel.pair()
    link = Link(host)
    runner.on_line = lambda _: None
    session = link.open("e", "", Limits(), [])
    forged = b'[1,\r{"type":"done","id":"victim","ok":true,"durationMs":1,"logs":[]}\r]'
    runner.send(b'{"type":"done","id":"e","ok":true,"durationMs":1,"logs":[],"result":' + forged + b"}\n")
    outcome = await session.wait()
    assert outcome.result_json is not None
    assert b"\r" not in outcome.result_json
    assert json.loads(outcome.result_json) == json.loads(forged)


class Client:
    """A host on the other end of a serving channel."""

    def __init__(self, run: Any) -> None:
        ours, self.channel = MemoryChannel.pair()
        self.heard: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.channel.on_line = lambda line: self.heard.put_nowait(json.loads(line))
        self.serving = Serving(ours, run, multiplexed=True)

    def say(self, message: dict[str, Any]) -> None:
        self.channel.send(json.dumps(message).encode() + b"\n")


async def test_an_execution_cancelled_before_it_began_is_answered_and_leaves_nothing() -> None:
    async def run(request: Request) -> Answer:
        raise AssertionError("it never begins")

    client = Client(run)
    client.say(execute("s", "1"))
    client.say({"type": "cancel", "id": "s"})
    async with asyncio.timeout(10):
        done = await client.heard.get()
        assert (done["id"], done["error"]["code"]) == ("s", "timeout")
        await client.serving.stop()
    assert client.serving.active == 0


async def test_a_clients_pretty_printed_tool_result_does_not_break_the_runners_lines() -> None:
    got: list[bytes] = []

    async def run(request: Request) -> Answer:
        got.append(await request.providers[0].dispatch("t", None, None))  # type: ignore[arg-type]
        return Answer(ok=True, duration_ms=1, logs=[])

    client = Client(run)
    client.say(execute("s", "1", tools=("t",)))
    async with asyncio.timeout(10):
        call = await client.heard.get()
        line = json.dumps(
            {"type": "tool_result", "callId": call["callId"], "ok": True, "result": {"a": 1}}, indent=1
        )
        client.channel.send(line.replace("\n", "\r").encode())
        await client.heard.get()
    assert json.loads(got[0]) == {"a": 1}
    assert b"\r" not in got[0]


async def test_a_guest_that_ends_its_own_process_is_not_run_again() -> None:
    async with hutch.Hutch(deno_warm=0) as h:
        result = await h.run("Deno.exit(1)", engine="deno")
        assert result.error is not None
        assert result.error.code == "runtime_error"
        assert h._kernel is not None
        assert h._kernel.pool.stats().tally.started == 1


async def test_many_first_executions_at_once_start_no_more_processes_than_allowed() -> None:
    async with hutch.Hutch(quickjs_processes=2) as h:
        results = await asyncio.gather(*(h.run(f"{n}") for n in range(32)))
        assert [each.result for each in results] == [*range(32)]
        assert h._kernel is not None
        assert h._kernel.pool.stats().tally.started <= 3


async def test_nonsense_without_end_is_cut_off(tmp_path: Path) -> None:
    evil = tmp_path / "evil.py"
    evil.write_text(
        textwrap.dedent("""
            import sys
            for line in sys.stdin:
                while True:
                    sys.stdout.write("nonsense\\n" * 1000)
        """)
    )
    async with hutch.Hutch(runner=[sys.executable, str(evil)]) as h, asyncio.timeout(60):
        result = await h.run("1", timeout_ms=30_000)
    assert result.error is not None
    assert result.error.code == "internal_error"
    assert "protocol" in result.error.message
