"""Timeline of a run: tool calls, also while other listeners get the same calls as events."""

from __future__ import annotations

import msgspec
import pytest
from tests.session.test_host import ScriptedRunner, echo, result_of

from hutch.errors import ToolError
from hutch.session.events.timeline import RunTimeline
from hutch.session.limits import Limits
from hutch.session.run import RunClock, RunEvent, ToolCallEnded, ToolCallStarted
from hutch.session.tools.provider import Provider


async def failing() -> None:
    """Fails."""
    raise ToolError("no such thing")


def calls(timeline: RunTimeline) -> list[dict[str, object]]:
    """Returns the calls without their times, which differ between two timelines."""
    found = msgspec.json.decode(msgspec.json.encode([*timeline.calls.values()]), type=list[dict[str, object]])
    return [{**call, "start_ms": None} for call in found]


@pytest.mark.parametrize("keeps_values", [False, True])
async def test_timeline_of_a_session_has_the_calls_that_listeners_get(keeps_values: bool) -> None:
    runner = ScriptedRunner()
    events: list[RunEvent] = []
    direct, from_events = (RunTimeline(RunClock(), 100_000, keeps_values=keeps_values) for _ in range(2))
    listeners = [direct, events.append, from_events.__call__]
    providers = [Provider.of(echo, failing)]
    session = runner.multiplexer.open("e", "code", Limits(), providers, listeners=listeners)
    runner.send(type="started", id="e")
    runner.call(1, value={"n": 1}, line=3)
    runner.call(2, "failing")
    await runner.receive("tool_result")
    await runner.receive("tool_result")
    runner.done()
    await result_of(session)
    kinds = [type(event) for event in events if isinstance(event, ToolCallStarted | ToolCallEnded)]
    assert (kinds.count(ToolCallStarted), kinds.count(ToolCallEnded)) == (2, 2)
    first, second = calls(direct)
    assert [first, second] == calls(from_events)
    assert (first["tool"], first["line"], first["ok"], second["code"]) == ("echo", 3, True, "tool_error")
    values = {"input": {"n": 1}, "output": {"n": 1}} if keeps_values else {}
    assert {name: first[name] for name in ("input", "output") if name in first} == values
    assert second.get("message") == ("no such thing" if keeps_values else None)
