"""Handle of a run: controls, and what its record contains."""

from __future__ import annotations

from typing import Any

from hutch.errors import ExecutionError
from hutch.session.host import Limits, Session
from hutch.session.messages import Cancel, encode
from hutch.session.run import MAX_RECORDED_CALLS, CallLog, CallRecord, Result, RunHandle


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
    run.session = Session("r", "", Limits(), [], sent.append)
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
    session = Session("r", "", Limits(), [], lambda _: None)
    assert (RunHandle().calls, RunHandle().call_count) == ([], 0)
    assert RunHandle(session=session).calls is session.calls
    run = RunHandle(session=session, call_log=log)
    assert (len(run.calls), run.call_count) == (MAX_RECORDED_CALLS, MAX_RECORDED_CALLS + 1)


def test_long_names_are_truncated_in_call_records() -> None:
    call = CallRecord.of("p" * 500, "t" * 500, True, 0.0015)
    assert (len(call.provider), len(call.tool), call.duration_ms) == (100, 100, 1.5)
    assert CallRecord.of("tools", "echo", False, 0) == CallRecord("tools", "echo", False, 0.0)
