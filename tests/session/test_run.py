"""Handle of a run: controls the run, and collects the contents of its record."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from hutch.errors import ExecutionError
from hutch.session.channels.peer import Peer
from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.messages import Cancel, encode
from hutch.session.run import (
    MAX_RECORDED_CALLS,
    CallLog,
    CallRecord,
    Result,
    RunEnded,
    RunEvent,
    RunHandle,
    RunLog,
    ToolCallStarted,
    event_json,
)


class ReportingRun(RunHandle):
    """A run whose guest reports failures as `{"failed": code}`."""

    decoded: int = 0

    def failure_code(self, value: Any) -> str | None:
        self.decoded += 1
        code: str | None = value.get("failed")
        return code


def test_start_is_reported_once() -> None:
    reports: list[None] = []
    run = RunHandle(on_started=lambda: reports.append(None))
    run.report_started()
    run.report_started()
    assert len(reports) == 1


async def test_stop_cancels_the_guest_once_there_is_one() -> None:
    sent: list[bytes] = []
    run = RunHandle("r")
    assert not run.stop()
    run.session = Session("r", "", Limits(), [], Peer(send=sent.append))
    assert run.stop()
    assert sent == [encode(Cancel("r"))]


def test_outcome_is_the_error_code_or_the_failure_that_the_guest_reports() -> None:
    for value, expected in (({}, "ok"), ({"failed": "import_failed"}, "import_failed")):
        run = ReportingRun()
        run.end(Result(ok=True, result=value))
        assert (run.outcome, run.decoded) == (expected, 1)
    run = ReportingRun()
    run.end(Result(ok=False, error=ExecutionError("timeout", "")))
    assert (run.outcome, run.decoded) == ("timeout", 0)


async def test_calls_are_those_of_the_log_if_there_is_one_else_of_the_session() -> None:
    log = CallLog()
    for _ in range(MAX_RECORDED_CALLS + 1):
        log.add(CallRecord("server", "tool", True, 1.0))
    session = Session("r", "", Limits(), [], Peer(send=lambda _: None))
    assert (RunHandle().calls, RunHandle().call_count) == ([], 0)
    session.tool_calls.records.append(log.records[0])
    assert RunHandle(session=session).calls == log.records[:1]
    run = RunHandle(session=session, call_log=log)
    assert (len(run.calls), run.call_count) == (MAX_RECORDED_CALLS, MAX_RECORDED_CALLS + 1)


def test_long_names_are_truncated_in_call_records() -> None:
    call = CallRecord.of("p" * 500, "t" * 500, True, 0.0015)
    assert (len(call.provider), len(call.tool), call.duration_ms) == (100, 100, 1.5)
    assert CallRecord.of("tools", "echo", False, 0) == CallRecord("tools", "echo", False, 0.0)


def test_end_reports_the_log_lines_that_did_not_come_before() -> None:
    events: list[RunEvent] = []
    run = RunHandle(listeners=[events.append])
    result = Result(ok=True, logs=["a", "b"])
    run.end(result)
    assert [event.line for event in events if isinstance(event, RunLog)] == ["a", "b"]
    assert isinstance(events[-1], RunEnded)
    assert (events[-1].outcome, events[-1].result) == ("ok", result)


def test_encoded_event_has_the_input_of_a_call_only_on_demand() -> None:
    event = ToolCallStarted(at=0.5, call_id="c1", provider="tools", tool="f", input_json=Raw(b'{"a": 1}'))
    assert event.input == {"a": 1}
    fields = {
        "type": "tool_call_started",
        "run_id": "r",
        "at": "1970-01-01T00:00:00.500Z",
        "call": "c1",
        "provider": "tools",
        "tool": "f",
    }
    assert msgspec.json.decode(event_json(event, "r", values=False)) == fields
    assert msgspec.json.decode(event_json(event, "r", values=True)) == {**fields, "input": {"a": 1}}


def test_encoded_end_has_no_result() -> None:
    event = RunEnded(at=0.0, outcome="ok", result=Result(ok=True, result="secret"))
    assert msgspec.json.decode(event_json(event, "r", values=True)) == {
        "type": "end",
        "run_id": "r",
        "at": "1970-01-01T00:00:00.000Z",
        "outcome": "ok",
    }
