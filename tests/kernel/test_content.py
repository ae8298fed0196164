"""Contents of run records at each level, with bounds and redaction, and times of records after jumps of the
clock.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from hutch.egress.redaction import MARK, Redactor
from hutch.errors import ExecutionError
from hutch.kernel.content import RecordLevels
from hutch.kernel.execution import Execution
from hutch.kernel.records import RunRecord, RunRecorder
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import Result, RunHandle, RunLog, TextRedactor, ToolCallEnded, ToolCallStarted

OK = Result(ok=True, result="out", result_json=b'"out"', logs=["line"])
FAILED = Result(ok=False, error=ExecutionError("runtime_error", "no secret", line=3), logs=["line"] * 80)


async def record(levels: RecordLevels, result: Result, run: RunHandle | None = None) -> RunRecord:
    stored: list[RunRecord] = []
    recorder = RunRecorder(levels=levels)
    recorder.sink = lambda record, redactor: stored.append(record)
    run = run or RunHandle()
    execution = Execution(code="the code", profile=profile_for("quickjs"), inputs=b'{"n":1}')
    recorder.begin(execution, run)
    run.emit(ToolCallStarted(call_id="1", provider="gh", tool="get", line=2))
    run.emit(ToolCallEnded(call_id="1", ok=True, duration_ms=1.0))
    run.emit(RunLog(line="x" * 1_000_000))
    run.end(result)
    recorder(execution, run, result)
    await recorder.publish()
    return stored[0]


def content(record: RunRecord) -> dict[str, Any]:
    return {} if record.content is None else json.loads(record.content)


async def test_level_decides_what_is_recorded() -> None:
    for level, result, message, fields in (
        ("metadata", FAILED, None, set[str]()),
        ("errors", OK, None, set()),
        ("errors", FAILED, "no secret", {"error", "code", "logs", "is_code"}),
        ("full", OK, None, {"code", "inputs", "output", "logs", "calls", "is_code"}),
    ):
        found = await record(RecordLevels("errors", {"python": level}), result)  # type: ignore[dict-item]
        assert (found.recorded, found.error_message, content(found).keys()) == (level, message, fields)
    assert len(content(await record(RecordLevels("errors"), FAILED))["logs"]) == 50


async def test_content_is_bounded() -> None:
    found = content(await record(RecordLevels("full", max_bytes=20), OK))
    assert found["code"] == "the code"
    assert (found["inputs"], found["output"]) == ({"$cut": 7}, {"$cut": 5})
    assert len(json.dumps(found)) < 500
    found = content(await record(RecordLevels("full"), OK))
    assert max(len(log["line"]) for log in found["logs"]) == 10_000


async def test_secrets_of_the_run_are_redacted() -> None:
    stored: list[tuple[RunRecord, TextRedactor | None]] = []
    recorder = RunRecorder()
    recorder.sink = lambda record, redactor: stored.append((record, redactor))
    run = RunHandle(redactor=Redactor(["secret"]))
    run.end(FAILED)
    recorder(Execution(code="secret", profile=profile_for("quickjs")), run, FAILED)
    await recorder.publish()
    [(found, redactor)] = stored
    assert found.error_message == f"no {MARK}"
    assert redactor is not None
    assert "secret" not in await redactor.long_text(found.content or "")


async def test_lone_surrogates_do_not_prevent_a_record() -> None:
    result = Result(ok=False, error=ExecutionError("runtime_error", "\ud800"), logs=["\udfff"])
    assert (
        content(await record(RecordLevels("errors"), result))["logs"][0]["line"]
        == "\N{REPLACEMENT CHARACTER}"
    )


async def test_jump_of_the_clock_does_not_change_the_times_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunHandle()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    run.report_started()
    found = await record(RecordLevels("metadata"), OK, run)
    assert found.started_at is not None
    assert found.created_at <= found.started_at <= found.ended_at
    took = datetime.fromisoformat(found.ended_at) - datetime.fromisoformat(found.created_at)
    assert took < timedelta(minutes=1)
