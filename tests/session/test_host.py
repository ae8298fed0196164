"""Host side of a session, with a scripted runner."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.support.network.memory_channel import MemoryChannel
from tests.support.waiting import eventually

from hutch.errors import ToolError
from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.multiplexer import MALFORMED_COST, Multiplexer
from hutch.session.run import Result, log_listener
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import ToolContext


class ScriptedRunner:
    """The runner's end of a channel. Records the messages of the host, and sends the messages of the test."""

    def __init__(self, **options: Any) -> None:
        host, self.channel = MemoryChannel.pair()
        self.multiplexer = Multiplexer(host, full_manifests=True, **options)
        self.received: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        self.channel.on_line = self._on_line

    def _on_line(self, line: bytes) -> None:
        self.received.append(json.loads(line))
        self._changed.set()

    def send(self, **message: Any) -> None:
        self.channel.send(json.dumps(message).encode() + b"\n")

    def call(self, number: int, tool: str = "echo", value: Any = None, **more: Any) -> None:
        self.send(
            type="tool_call",
            callId=f"c{number}",
            providerName="tools",
            safeToolName=tool,
            input=value,
            **more,
        )

    def done(self, **fields: Any) -> None:
        self.send(**({"type": "done", "id": "e", "ok": True, "durationMs": 1, "logs": []} | fields))

    def fail(self, code: str, message: str = "m") -> None:
        self.done(ok=False, error={"code": code, "message": message})

    def begin(self, limits: Limits | None = None, *tools: Any) -> Session:
        providers = [Provider.of(*tools)] if tools else []
        session = self.multiplexer.open("e", "code", limits or Limits(), providers)
        self.send(type="started", id="e")
        return session

    async def receive(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                for message in self.received:
                    if message["type"] == kind:
                        self.received.remove(message)
                        return message
                self._changed.clear()
                await self._changed.wait()


async def result_of(session: Session) -> Result:
    async with asyncio.timeout(10):
        return await session.wait()


async def echo(value: Any, /) -> Any:
    """Returns its input."""
    return value


async def test_execute_has_code_options_and_manifests_and_done_has_the_result() -> None:
    runner = ScriptedRunner()
    session = runner.begin(Limits(timeout_ms=1000), echo)
    execute = await runner.receive("execute")
    assert execute["code"] == "code"
    assert execute["options"]["timeoutMs"] == 1000
    assert execute["providers"][0]["tools"]["echo"] == {
        "safeName": "echo",
        "originalName": "echo",
        "description": "Returns its input.",
    }
    assert "function echo" in execute["providers"][0]["types"]
    runner.done(result={"a": 1}, logs=["x"], durationMs=2.5)
    result = await result_of(session)
    assert (result.ok, result.result, result.logs) == (True, {"a": 1}, ["x"])


async def test_duration_claimed_by_the_runner_is_capped_at_the_elapsed_time() -> None:
    runner = ScriptedRunner()
    session = runner.begin()
    runner.done(durationMs=1_000_000)
    assert 0 < (await result_of(session)).duration_ms < 100_000


async def test_calls_whose_tasks_finish_immediately_are_not_outstanding() -> None:
    """With `asyncio.eager_task_factory`, tasks can finish immediately."""

    def eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **_: Any) -> Any:
        with pytest.raises(StopIteration):
            coroutine.send(None)
        over = loop.create_future()
        over.set_result(None)
        return over

    runner = ScriptedRunner()
    session = runner.begin(Limits(max_outstanding_calls=2), echo)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(eager)
    try:
        for number in range(1, 6):
            runner.call(number, value=number)
    finally:
        loop.set_task_factory(None)
    answers = [message["result"] for message in runner.received if message["type"] == "tool_result"]
    assert answers == [1, 2, 3, 4, 5]
    runner.done()
    await result_of(session)
    assert session.call_count == 5


async def test_input_beyond_the_limit_is_refused_without_decoding() -> None:
    runner = ScriptedRunner()
    session = runner.begin(Limits(max_result_bytes=10), echo)
    runner.call(1, value="x" * 9)
    answer = await runner.receive("tool_result")
    assert answer["error"] == {
        "code": "serialization_error",
        "message": "The input has 11 bytes of JSON; the limit is 10",
    }
    runner.done()
    await result_of(session)
    assert session.call_count == 0


async def test_runner_that_sends_megabytes_of_invalid_inputs_is_lost() -> None:
    runner = ScriptedRunner()
    session = runner.begin(Limits(), echo)
    many = "0," * 1_000_001
    for number in range(17):
        target = f'"callId":"c{number}","providerName":"tools","safeToolName":"echo"'
        runner.channel.send(f'{{"type":"tool_call",{target},"input":[{many}0]}}\n'.encode())
        await asyncio.sleep(0)
    result = await result_of(session)
    assert result.error is not None
    assert result.error.message == "The runner was lost: it sent inputs that are not JSON"


async def test_tool_result_has_the_id_of_its_call() -> None:
    runner = ScriptedRunner()
    session = runner.begin(None, echo)
    runner.call(1, value=["one"])
    runner.call(2, value=["two"])
    answers = {(answer := await runner.receive("tool_result"))["callId"]: answer["result"] for _ in range(2)}
    assert answers == {"c1": ["one"], "c2": ["two"]}
    runner.done()
    await result_of(session)
    assert [call.ok for call in session.calls] == [True, True]


async def test_garbage_and_messages_for_other_executions_are_ignored() -> None:
    runner = ScriptedRunner()
    session = runner.begin()
    runner.send(type="done", id="other", ok=True, durationMs=1, logs=[])
    runner.channel.send(b"garbage\n")
    runner.send(type="done", id="e")
    runner.done(result=1)
    assert (await result_of(session)).result == 1
    assert runner.multiplexer.dropped == 1 + 2 * MALFORMED_COST


async def test_second_done_and_late_call_are_ignored() -> None:
    runner = ScriptedRunner()
    session = runner.begin(None, echo)
    runner.done(result=1)
    runner.done(result=2)
    runner.call(1)
    assert (await result_of(session)).result == 1
    assert [message for message in runner.received if message["type"] == "tool_result"] == []


async def test_repeated_call_id_runs_the_tool_once() -> None:
    runner, ran = ScriptedRunner(), []

    async def count() -> int:
        """Counts."""
        ran.append(1)
        return len(ran)

    session = runner.begin(None, count)
    runner.call(1, "count")
    runner.call(1, "count")
    await runner.receive("tool_result")
    runner.done()
    await result_of(session)
    assert session.call_count == 1
    assert ran == [1]


async def test_unknown_tool_and_unknown_namespace_are_internal_errors() -> None:
    runner = ScriptedRunner()
    runner.begin(None, echo)
    runner.call(1, "nothing")
    assert (await runner.receive("tool_result"))["error"] == {
        "code": "internal_error",
        "message": "Unknown tool tools.nothing",
    }
    runner.send(type="tool_call", callId="c2", providerName="no", safeToolName="t", input=None)
    assert (await runner.receive("tool_result"))["error"]["message"] == "Unknown tool no.t"


async def test_error_code_is_accepted_only_if_a_tool_returned_it() -> None:
    async def broken() -> None:
        """Breaks."""
        raise ToolError("it broke", "validation_error")

    for code, message, expected in [
        ("validation_error", "it broke", "validation_error"),
        ("validation_error", "made up", "runtime_error"),
        ("tool_error", "it broke", "runtime_error"),
        ("no_such_code", "m", "runtime_error"),
    ]:
        runner = ScriptedRunner()
        session = runner.begin(None, broken)
        runner.call(1, "broken")
        assert (await runner.receive("tool_result"))["error"]["message"] == "it broke"
        runner.fail(code, message)
        error = (await result_of(session)).error
        assert error is not None
        assert (error.code, error.message) == (expected, message)


async def test_timeout_claimed_too_early_becomes_a_runtime_error() -> None:
    runner = ScriptedRunner()
    session = runner.begin(Limits(timeout_ms=60_000))
    runner.fail("timeout", "Execution timed out")
    error = (await result_of(session)).error
    assert error is not None
    assert error.code == "runtime_error"


async def test_silent_runner_is_cancelled_after_the_timeout_and_unresponsive_after_the_grace() -> None:
    runner = ScriptedRunner()
    session = runner.begin(Limits(timeout_ms=20))
    assert (await runner.receive("cancel"))["id"] == "e"
    result = await result_of(session)
    assert session.unresponsive
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("timeout", "Execution timed out after 20 ms")


async def test_runner_that_sends_nothing_is_lost_before_the_execution_has_begun() -> None:
    runner = ScriptedRunner(max_silence_seconds=0.05)
    session = runner.multiplexer.open("e", "code", Limits(timeout_ms=20), [])
    result = await result_of(session)
    assert result.error is not None
    assert "did not start the execution" in result.error.message
    assert (session.lost, session.unresponsive, session.started) == (True, True, False)


async def test_runner_that_sends_other_messages_is_not_silent() -> None:
    runner = ScriptedRunner(max_silence_seconds=0.05)
    session = runner.multiplexer.open("e", "code", Limits(timeout_ms=20), [])
    await runner.receive("execute")
    runner.done(id="another")
    await asyncio.sleep(0.2)
    assert session.result is None
    runner.send(type="started", id="e")
    runner.done(result=1)
    assert (await result_of(session)).result == 1


async def test_without_a_backstop_the_host_cancels_at_the_time_limit() -> None:
    patient, strict = ScriptedRunner(backstop_seconds=3600), ScriptedRunner(backstop_seconds=0)
    first = patient.begin(Limits(timeout_ms=20))
    second = strict.begin(Limits(timeout_ms=20))
    result = await result_of(second)
    assert result.error is not None
    assert result.error.code == "timeout"
    assert (await strict.receive("cancel"))["id"] == "e"
    assert first.result is None
    assert [message["type"] for message in patient.received] == ["execute"]
    patient.done()
    await result_of(first)


async def test_execution_that_started_late_has_no_more_than_its_time_limit() -> None:
    runner = ScriptedRunner(backstop_seconds=0)
    session = runner.multiplexer.open("e", "code", Limits(timeout_ms=5), [])
    first = session._timer
    await eventually(lambda: session._timer is not first)
    runner.send(type="started", id="e")
    result = await result_of(session)
    assert result.error is not None
    assert result.error.code == "timeout"


async def test_messages_that_arrived_while_the_host_was_late_count() -> None:
    runner = ScriptedRunner(backstop_seconds=0)
    session = runner.begin(Limits(timeout_ms=20))
    # Block the event loop until the time limit has passed. The host must still accept the result, which it
    # reads directly afterwards.
    time.sleep(0.12)  # noqa: ASYNC251
    asyncio.get_running_loop().call_later(0.01, lambda: runner.done(result=1))
    assert (await result_of(session)).result == 1


async def test_log_messages_are_bounded_by_the_limits_of_the_logs() -> None:
    runner, lines = ScriptedRunner(), list[str]()
    limits = Limits(max_log_lines=3, max_log_chars=6)
    session = runner.multiplexer.open("e", "code", limits, [], listeners=[log_listener(lines.append)])
    assert (await runner.receive("execute"))["options"]["streamLogs"] is True
    runner.send(type="log", id="e", lines=["one", "two three"])
    runner.send(type="log", id="e", lines=["four"])
    runner.send(type="log", id="other", lines=["five"])
    runner.done(logs=["one", "two"])
    await session.wait()
    assert lines == ["one", "two"]


async def test_log_messages_that_were_not_asked_for_are_ignored() -> None:
    runner = ScriptedRunner()
    session = runner.begin()
    assert "streamLogs" not in (await runner.receive("execute"))["options"]
    runner.send(type="log", id="e", lines=["one"])
    runner.done()
    assert (await session.wait()).logs == []


async def test_run_id_is_accepted_only_from_a_host() -> None:
    for trusted, expected in ((True, "server-run"), (False, "e")):
        runner = ScriptedRunner(trusted=trusted)
        session = runner.multiplexer.open("e", "code", Limits(), [])
        runner.send(type="started", id="e", runId="server-run")
        runner.done()
        assert (await session.wait()).run_id == expected


async def test_done_after_cancel_is_a_timeout_with_logs() -> None:
    runner = ScriptedRunner()
    session = runner.begin()
    session.cancel()
    runner.done(result=1, logs=["last words"])
    result = await result_of(session)
    assert result.error is not None
    assert (result.error.code, result.logs, session.unresponsive) == ("timeout", ["last words"], False)


async def test_cancel_stops_running_tools_and_starts_no_others() -> None:
    runner, ran, started, stopped = ScriptedRunner(), [], asyncio.Event(), asyncio.Event()
    seen: list[ToolContext] = []

    async def wait(context: ToolContext) -> None:
        """Waits forever."""
        ran.append(1)
        started.set()
        seen.append(context)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    session = runner.begin(None, wait)
    runner.call(1, "wait")
    async with asyncio.timeout(10):
        await started.wait()
    session.cancel()
    runner.call(2, "wait")
    async with asyncio.timeout(10):
        await stopped.wait()
    assert seen[0].cancelled.is_set()
    assert (seen[0].run_id, seen[0].provider, seen[0].tool) == ("e", "tools", "wait")
    runner.done()
    await result_of(session)
    assert ran == [1]


async def test_closed_channel_is_an_internal_error_or_after_cancel_a_timeout() -> None:
    for cancelled, code in [(False, "internal_error"), (True, "timeout")]:
        runner = ScriptedRunner()
        session = runner.begin()
        if cancelled:
            session.cancel()
        runner.channel.close()
        result = await result_of(session)
        assert result.error is not None
        assert result.error.code == code
        assert session.lost is not cancelled


async def test_calls_beyond_the_limits_are_refused_and_a_flood_ends_the_session() -> None:
    release = asyncio.Event()

    async def hold() -> None:
        """Holds."""
        await release.wait()

    runner = ScriptedRunner()
    session = runner.begin(Limits(max_outstanding_calls=1, max_calls=3), hold)
    runner.call(1, "hold")
    for number in range(2, 5):
        runner.call(number, "hold")
        error = (await runner.receive("tool_result"))["error"]
        assert (error["code"], error["message"]) == ("tool_error", "More than 1 tool calls at once")
    runner.call(6, "hold")
    result = await result_of(session)
    assert result.error is not None
    assert "too many tool calls" in result.error.message


@pytest.mark.parametrize(("result", "code"), [("x" * 100, "result_too_large"), (None, None)])
async def test_result_beyond_its_limit_has_its_own_error_code(result: Any, code: str | None) -> None:
    runner = ScriptedRunner()
    session = runner.begin(Limits(max_result_bytes=50))
    runner.done(result=result)
    error = (await result_of(session)).error
    assert (error and error.code) == code


async def test_several_executions_share_a_channel_and_calls_name_theirs() -> None:
    runner = ScriptedRunner()
    one = runner.multiplexer.open("1", "a", Limits(), [Provider.of(echo)])
    two = runner.multiplexer.open("2", "b", Limits(), [Provider.of(echo)])
    runner.call(1, value="for two", id="2")
    assert (await runner.receive("tool_result"))["result"] == "for two"
    runner.done(id="2", result=2)
    runner.done(id="1", result=1)
    assert ((await result_of(one)).result, (await result_of(two)).result) == (1, 2)
    assert (one.call_count, two.call_count) == (0, 1)


async def test_call_without_an_execution_on_a_shared_channel_is_dropped() -> None:
    runner = ScriptedRunner()
    runner.multiplexer.open("1", "a", Limits(), [Provider.of(echo)])
    runner.multiplexer.open("2", "b", Limits(), [Provider.of(echo)])
    runner.call(1)
    assert runner.multiplexer.dropped == 1
