"""The host's side of a session, against a runner that is played by hand."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from tests.waiting import eventually

from hutch.errors import ToolError
from hutch.session.channel import MemoryChannel
from hutch.session.host import Limits, Outcome, Session
from hutch.session.link import Link
from hutch.session.providers import Provider
from hutch.session.tools import ToolContext


class Script:
    """A runner's end of a channel: hears the host, and says what the test says."""

    def __init__(self, **link: Any) -> None:
        host, self.channel = MemoryChannel.pair()
        self.link = Link(host, full_manifests=True, **link)
        self.heard: list[dict[str, Any]] = []
        self._news = asyncio.Event()
        self.channel.on_line = self._hear

    def _hear(self, line: bytes) -> None:
        self.heard.append(json.loads(line))
        self._news.set()

    def say(self, **message: Any) -> None:
        self.channel.send(json.dumps(message).encode() + b"\n")

    def call(self, number: int, tool: str = "echo", value: Any = None, **more: Any) -> None:
        self.say(
            type="tool_call",
            callId=f"c{number}",
            providerName="tools",
            safeToolName=tool,
            input=value,
            **more,
        )

    def done(self, **fields: Any) -> None:
        self.say(**({"type": "done", "id": "e", "ok": True, "durationMs": 1, "logs": []} | fields))

    def fail(self, code: str, message: str = "m") -> None:
        self.done(ok=False, error={"code": code, "message": message})

    def begin(self, limits: Limits | None = None, *tools: Any) -> Session:
        providers = [Provider.of(*tools)] if tools else []
        session = self.link.open("e", "code", limits or Limits(), providers)
        self.say(type="started", id="e")
        return session

    async def hear(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(10):
            while True:
                for message in self.heard:
                    if message["type"] == kind:
                        self.heard.remove(message)
                        return message
                self._news.clear()
                await self._news.wait()


async def ended(session: Session) -> Outcome:
    async with asyncio.timeout(10):
        return await session.wait()


async def echo(value: Any, /) -> Any:
    """Gives back what it gets."""
    return value


async def test_execute_says_code_options_and_manifests_and_done_gives_the_result() -> None:
    script = Script()
    session = script.begin(Limits(timeout_ms=1000), echo)
    execute = await script.hear("execute")
    assert execute["code"] == "code"
    assert execute["options"]["timeoutMs"] == 1000
    assert execute["providers"][0]["tools"]["echo"] == {
        "safeName": "echo",
        "originalName": "echo",
        "description": "Gives back what it gets.",
    }
    assert "function echo" in execute["providers"][0]["types"]
    script.done(result={"a": 1}, logs=["x"], durationMs=2.5)
    outcome = await ended(session)
    assert (outcome.ok, outcome.result, outcome.logs) == (True, {"a": 1}, ["x"])


async def test_a_runner_cannot_claim_to_have_taken_longer_than_we_waited() -> None:
    script = Script()
    session = script.begin()
    script.done(durationMs=1_000_000)
    assert 0 < (await ended(session)).duration_ms < 100_000


async def test_calls_whose_tasks_are_over_when_they_are_made_are_not_open() -> None:
    """As with `asyncio.eager_task_factory`."""

    def eager(loop: asyncio.AbstractEventLoop, coroutine: Any, **_: Any) -> Any:
        with pytest.raises(StopIteration):
            coroutine.send(None)
        over = loop.create_future()
        over.set_result(None)
        return over

    script = Script()
    session = script.begin(Limits(max_outstanding_calls=2), echo)
    loop = asyncio.get_running_loop()
    loop.set_task_factory(eager)
    try:
        for number in range(1, 6):
            script.call(number, value=number)
    finally:
        loop.set_task_factory(None)
    answers = [message["result"] for message in script.heard if message["type"] == "tool_result"]
    assert answers == [1, 2, 3, 4, 5]
    script.done()
    assert (await ended(session)).call_count == 5


async def test_input_beyond_the_limit_is_refused_unread() -> None:
    script = Script()
    session = script.begin(Limits(max_result_bytes=10), echo)
    script.call(1, value="x" * 9)
    answer = await script.hear("tool_result")
    assert answer["error"] == {
        "code": "serialization_error",
        "message": "The input has 11 bytes of JSON; the limit is 10",
    }
    script.done()
    assert (await ended(session)).call_count == 0


async def test_who_sends_megabytes_of_inputs_that_no_runner_would_send_is_lost() -> None:
    script = Script()
    session = script.begin(Limits(), echo)
    many = "0," * 1_000_001
    for number in range(17):
        target = f'"callId":"c{number}","providerName":"tools","safeToolName":"echo"'
        script.channel.send(f'{{"type":"tool_call",{target},"input":[{many}0]}}\n'.encode())
        await asyncio.sleep(0)
    outcome = await ended(session)
    assert outcome.error is not None
    assert outcome.error.message == "The runner was lost: it sends inputs that are not JSON"


async def test_a_tool_call_is_answered_under_its_own_id() -> None:
    script = Script()
    session = script.begin(None, echo)
    script.call(1, value=["one"])
    script.call(2, value=["two"])
    answers = {(answer := await script.hear("tool_result"))["callId"]: answer["result"] for _ in range(2)}
    assert answers == {"c1": ["one"], "c2": ["two"]}
    script.done()
    assert [call.ok for call in (await ended(session)).calls] == [True, True]


async def test_messages_for_other_executions_and_garbage_change_nothing() -> None:
    script = Script()
    session = script.begin()
    script.say(type="done", id="other", ok=True, durationMs=1, logs=[])
    script.channel.send(b"garbage\n")
    script.say(type="done", id="e")
    script.done(result=1)
    assert (await ended(session)).result == 1
    assert script.link.dropped == 3


async def test_a_second_done_and_a_late_call_are_ignored() -> None:
    script = Script()
    session = script.begin(None, echo)
    script.done(result=1)
    script.done(result=2)
    script.call(1)
    assert (await ended(session)).result == 1
    assert [message for message in script.heard if message["type"] == "tool_result"] == []


async def test_a_repeated_call_id_runs_the_tool_once() -> None:
    script, ran = Script(), []

    async def count() -> int:
        """Counts."""
        ran.append(1)
        return len(ran)

    session = script.begin(None, count)
    script.call(1, "count")
    script.call(1, "count")
    await script.hear("tool_result")
    script.done()
    assert (await ended(session)).call_count == 1
    assert ran == [1]


async def test_an_unknown_tool_and_an_unknown_namespace_are_internal_errors() -> None:
    script = Script()
    script.begin(None, echo)
    script.call(1, "nothing")
    assert (await script.hear("tool_result"))["error"] == {
        "code": "internal_error",
        "message": "Unknown tool tools.nothing",
    }
    script.say(type="tool_call", callId="c2", providerName="no", safeToolName="t", input=None)
    assert (await script.hear("tool_result"))["error"]["message"] == "Unknown tool no.t"


async def test_a_tools_error_may_end_the_execution_but_a_made_up_one_is_the_guests_own() -> None:
    async def broken() -> None:
        """Breaks."""
        raise ToolError("it broke", "validation_error")

    for code, message, expected in [
        ("validation_error", "it broke", "validation_error"),
        ("validation_error", "made up", "runtime_error"),
        ("tool_error", "it broke", "runtime_error"),
        ("no_such_code", "m", "runtime_error"),
    ]:
        script = Script()
        session = script.begin(None, broken)
        script.call(1, "broken")
        assert (await script.hear("tool_result"))["error"]["message"] == "it broke"
        script.fail(code, message)
        error = (await ended(session)).error
        assert error is not None
        assert (error.code, error.message) == (expected, message)


async def test_a_timeout_is_ours_to_decide_not_the_runners() -> None:
    script = Script()
    session = script.begin(Limits(timeout_ms=60_000))
    script.fail("timeout", "Execution timed out")
    error = (await ended(session)).error
    assert error is not None
    assert error.code == "runtime_error"


async def test_a_silent_runner_is_cancelled_after_the_timeout_and_given_up_after_the_grace() -> None:
    script = Script()
    session = script.begin(Limits(timeout_ms=20))
    assert (await script.hear("cancel"))["id"] == "e"
    outcome = await ended(session)
    assert outcome.unresponsive
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == ("timeout", "Execution timed out")


async def test_a_runner_that_leaves_the_time_to_us_gets_no_more_than_the_execution_has() -> None:
    patient, strict = Script(backstop_seconds=3600), Script(backstop_seconds=0)
    first = patient.begin(Limits(timeout_ms=20))
    second = strict.begin(Limits(timeout_ms=20))
    outcome = await ended(second)
    assert outcome.error is not None
    assert outcome.error.code == "timeout"
    assert (await strict.hear("cancel"))["id"] == "e"
    assert first.outcome is None
    assert [message["type"] for message in patient.heard] == ["execute"]
    patient.done()
    await ended(first)


async def test_an_execution_that_started_late_has_no_more_than_its_time_either() -> None:
    script = Script(backstop_seconds=0)
    session = script.link.open("e", "code", Limits(timeout_ms=5), [])
    first = session._timer
    await eventually(lambda: session._timer is not first)
    script.say(type="started", id="e")
    outcome = await ended(session)
    assert outcome.error is not None
    assert outcome.error.code == "timeout"


async def test_what_came_while_the_host_was_late_itself_counts() -> None:
    script = Script(backstop_seconds=0)
    session = script.begin(Limits(timeout_ms=20))
    # Nobody turns the loop in the meantime; what came is read a little after the time is over.
    time.sleep(0.12)  # noqa: ASYNC251
    asyncio.get_running_loop().call_later(0.01, lambda: script.done(result=1))
    assert (await ended(session)).result == 1


async def test_a_done_after_cancel_is_a_timeout_that_keeps_its_logs() -> None:
    script = Script()
    session = script.begin()
    session.cancel()
    script.done(result=1, logs=["last words"])
    outcome = await ended(session)
    assert outcome.error is not None
    assert (outcome.error.code, outcome.logs, outcome.unresponsive) == ("timeout", ["last words"], False)


async def test_cancel_stops_the_tools_and_no_further_one_starts() -> None:
    script, ran, started, stopped = Script(), [], asyncio.Event(), asyncio.Event()
    seen: list[ToolContext] = []

    async def wait(context: ToolContext) -> None:
        """Waits for ever."""
        ran.append(1)
        started.set()
        seen.append(context)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    session = script.begin(None, wait)
    script.call(1, "wait")
    async with asyncio.timeout(10):
        await started.wait()
    session.cancel()
    script.call(2, "wait")
    async with asyncio.timeout(10):
        await stopped.wait()
    assert seen[0].cancelled.is_set()
    assert (seen[0].run_id, seen[0].provider, seen[0].tool) == ("e", "tools", "wait")
    script.done()
    await ended(session)
    assert ran == [1]


async def test_a_closed_channel_is_an_internal_error_and_a_timeout_once_cancelled() -> None:
    for cancelled, code in [(False, "internal_error"), (True, "timeout")]:
        script = Script()
        session = script.begin()
        if cancelled:
            session.cancel()
        script.channel.close()
        outcome = await ended(session)
        assert outcome.error is not None
        assert outcome.error.code == code
        assert outcome.lost is not cancelled


async def test_calls_beyond_the_limits_are_refused_and_a_flood_ends_the_session() -> None:
    release = asyncio.Event()

    async def hold() -> None:
        """Holds."""
        await release.wait()

    script = Script()
    session = script.begin(Limits(max_outstanding_calls=1, max_calls=3), hold)
    script.call(1, "hold")
    for number in range(2, 5):
        script.call(number, "hold")
        error = (await script.hear("tool_result"))["error"]
        assert (error["code"], error["message"]) == ("tool_error", "More than 1 tool calls at once")
    script.call(6, "hold")
    outcome = await ended(session)
    assert outcome.error is not None
    assert "floods" in outcome.error.message


@pytest.mark.parametrize(("result", "code"), [("x" * 100, "result_too_large"), (None, None)])
async def test_a_result_beyond_its_limit_is_an_error_of_its_own(result: Any, code: str | None) -> None:
    script = Script()
    session = script.begin(Limits(max_result_bytes=50))
    script.done(result=result)
    error = (await ended(session)).error
    assert (error and error.code) == code


async def test_several_executions_share_a_link_and_calls_name_theirs() -> None:
    script = Script()
    one = script.link.open("1", "a", Limits(), [Provider.of(echo)])
    two = script.link.open("2", "b", Limits(), [Provider.of(echo)])
    script.call(1, value="for two", id="2")
    assert (await script.hear("tool_result"))["result"] == "for two"
    script.done(id="2", result=2)
    script.done(id="1", result=1)
    assert ((await ended(one)).result, (await ended(two)).result) == (1, 2)
    assert (one.called_tools, two.called_tools) == (False, True)


async def test_a_call_without_an_execution_on_a_shared_link_is_dropped() -> None:
    script = Script()
    script.link.open("1", "a", Limits(), [Provider.of(echo)])
    script.link.open("2", "b", Limits(), [Provider.of(echo)])
    script.call(1)
    assert script.link.dropped == 1
