"""Run records: their receivers, the operator's log, and contents that must never be logged."""

from __future__ import annotations

import asyncio
import json
import logging
from contextvars import ContextVar
from datetime import datetime
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.http.execbox_client import connect_execbox
from tests.support.messages import execute, tool_failure, tool_result
from tests.support.processes import ServeProcess, running_server
from tests.support.waiting import eventually

from hutch.kernel.execution import INTERNAL_PROTOCOL, Execution
from hutch.kernel.metrics import RunCounters
from hutch.kernel.records import RunRecord, RunRecorder
from hutch.kernel.spans import RunTracing
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import MAX_RECORDED_CALLS, CallLog, CallRecord, Result, RunHandle, TextRedactor
from hutch.telemetry.trace_context import TraceContext

SECRET = "correct-horse-battery"


def recorder_of_ids() -> tuple[RunRecorder, list[str]]:
    """Returns a recorder, and a list of the ids of the runs that it has recorded."""
    recorder, stored = RunRecorder(), list[str]()
    recorder.sink = lambda record, redactor: stored.append(record.run_id)
    return recorder, stored


async def finish(recorder: RunRecorder, id: str, protocol: str = "python", milliseconds: float = 2.0) -> None:
    run, result = RunHandle(id), Result(ok=True, result=SECRET, duration_ms=milliseconds)
    run.end(result)
    recorder(Execution(code=SECRET, profile=profile_for("quickjs"), protocol=protocol), run, result)
    # Records are made after the caller has its result.
    await recorder.publish()


async def test_recorder_counts_logs_and_stores_each_run(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hutch.runs")
    counters, stored, ended = RunCounters(), list[RunRecord](), list[str]()
    recorder = RunRecorder(counters)
    recorder.sink = lambda record, redactor: stored.append(record)
    recorder.on_end.append(lambda run: ended.append(run.id))
    await finish(recorder, "a")
    assert counters.outcomes == {("python", "quickjs", "ok"): 1}
    [record] = stored
    assert (record.run_id, record.outcome, record.duration_ms) == ("a", "ok", 2.0)
    [line] = caplog.records
    assert line.__dict__["fields"]["run_id"] == "a"
    assert line.getMessage() == "run a: ok after 2 ms (quickjs, 0 tool calls)"
    assert ended == ["a"]


@pytest.mark.parametrize("seconds", [-3_600, 3_600])
async def test_jump_of_the_clock_during_a_run_does_not_change_its_times(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    stored = list[RunRecord]()
    recorder = RunRecorder(RunCounters())
    recorder.sink = lambda record, redactor: stored.append(record)
    run, result = RunHandle("a"), Result(ok=True, duration_ms=2.0)
    run.clock.leased = run.clock.started = 0.0
    monkeypatch.setattr("time.time", lambda: run.started_at + seconds)
    run.end(result)
    recorder(Execution(code="1", profile=profile_for("quickjs")), run, result)
    await recorder.publish()
    [record] = stored
    assert record.started_at is not None
    assert record.created_at <= record.started_at <= record.ended_at
    took = datetime.fromisoformat(record.ended_at) - datetime.fromisoformat(record.created_at)
    assert took.total_seconds() < 600


async def test_logged_durations_have_no_exponent(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hutch.runs")
    for milliseconds in (0.4213, 12.345, 2391.2):
        await finish(RunRecorder(RunCounters()), "a", milliseconds=milliseconds)
    assert [line.split()[4] for line in caplog.messages] == ["0.421", "12.3", "2391"]


async def test_internal_runs_are_counted_but_neither_stored_nor_logged_above_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "hutch.runs")
    counters, stored, ended = RunCounters(), list[RunRecord](), list[str]()
    recorder = RunRecorder(counters)
    recorder.sink = lambda record, redactor: stored.append(record)
    recorder.on_end.append(lambda run: ended.append(run.id))
    await finish(recorder, "a", INTERNAL_PROTOCOL)
    assert counters.outcomes == {("internal", "quickjs", "ok"): 1}
    assert (stored, caplog.records, ended) == ([], [], ["a"])
    caplog.set_level(logging.DEBUG, "hutch.runs")
    await finish(recorder, "b", INTERNAL_PROTOCOL)
    assert (stored, len(caplog.records), ended) == ([], 1, ["a", "b"])


async def test_log_records_have_error_messages_only_for_hutchs_own_formatter(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "hutch.runs")
    for is_shown in (False, True):
        monkeypatch.setattr("hutch.logs.shows_error_messages", lambda is_shown=is_shown: is_shown)
        await finish(RunRecorder(), "a")
    assert ["error_message" in line.__dict__ for line in caplog.records] == [False, True]


async def test_record_is_made_once_and_after_the_caller_has_its_result(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make, stored = list[str](), RunRecord.of, list[RunRecord]()

    def count(execution: Execution, run: RunHandle, result: Result, **options: Any) -> RunRecord:
        made.append(run.id)
        return make(execution, run, result, **options)

    monkeypatch.setattr(RunRecord, "of", count)
    recorder = RunRecorder()
    recorder.sink = lambda record, redactor: stored.append(record)
    execution = Execution(code="1", profile=profile_for("quickjs"))
    for id, level in (("silent", "ERROR"), ("logged", "INFO")):
        caplog.set_level(level, "hutch.runs")
        made.clear()
        recorder(execution, RunHandle(id), Result(ok=True))
        assert made == []
        await recorder.publish()
        assert made == [id]
    assert [record.run_id for record in stored] == ["silent", "logged"]
    assert len(caplog.records) == 1


async def test_records_are_made_by_themselves_a_moment_after_the_end_of_their_runs() -> None:
    recorder, stored = recorder_of_ids()
    execution = Execution(code="1", profile=profile_for("quickjs"))
    for id in ("a", "b"):
        recorder(execution, RunHandle(id), Result(ok=True))
    assert stored == []
    await eventually(lambda: stored == ["a", "b"])
    recorder(execution, RunHandle("c"), Result(ok=True))
    await eventually(lambda: stored == ["a", "b", "c"])


async def test_other_callbacks_run_while_many_records_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.kernel.records.SLICE_SECONDS", 0.0)
    recorder, stored = recorder_of_ids()
    execution = Execution(code="1", profile=profile_for("quickjs"))
    for number in range(20):
        recorder(execution, RunHandle(str(number)), Result(ok=True))
    seen = set[int]()
    while len(stored) < 20:
        await asyncio.sleep(0)
        seen.add(len(stored))
    assert seen >= {*range(1, 21)}


async def test_record_that_cannot_be_made_does_not_affect_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stored = list[str]()

    def sink(record: RunRecord, redactor: TextRedactor | None) -> None:
        if record.run_id == "bad":
            raise RuntimeError("this record is bad")
        stored.append(record.run_id)

    recorder = RunRecorder()
    recorder.sink = sink
    for id in ("a", "bad", "b"):
        await finish(recorder, id)
    assert stored == ["a", "b"]
    assert "the record of the run bad cannot be made" in caplog.messages


async def test_record_has_its_own_list_of_calls() -> None:
    stored = list[RunRecord]()
    recorder = RunRecorder()
    recorder.sink = lambda record, redactor: stored.append(record)
    run, result = RunHandle("a", call_log=CallLog()), Result(ok=True)
    assert run.call_log is not None
    run.call_log.add(CallRecord.of("tools", "before", True, 0.1))
    run.end(result)
    recorder(Execution(code="1", profile=profile_for("quickjs")), run, result)
    await recorder.publish()
    run.call_log.add(CallRecord.of("tools", "later", False, 0.1))
    assert [call.tool for call in stored[0].calls] == ["before"]


async def test_spans_are_exported_only_of_sampled_runs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "hutch.runs")
    exported: list[str] = []

    class Tracing:
        def end(self, record: RunRecord, run: RunHandle, *, is_group: bool) -> None:
            exported.append(record.run_id)

    recorder = RunRecorder()
    recorder.tracing = cast("RunTracing", Tracing())
    for id, is_sampled in (("unsampled", False), ("sampled", True)):
        run = RunHandle(id)
        run.trace = TraceContext("1" * 32, "2" * 16, is_sampled)
        recorder(Execution(code="1", profile=profile_for("quickjs")), run, Result(ok=True))
    await recorder.publish()
    assert exported == ["sampled"]


async def test_runs_are_stored_as_soon_as_there_is_a_store_and_also_if_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "hutch.runs")
    stored: list[RunRecord] = []
    recorder = RunRecorder()
    await finish(recorder, "before")
    recorder.sink = lambda record, redactor: stored.append(record)
    await finish(recorder, "after")
    assert [record.run_id for record in stored] == ["after"]
    assert caplog.records == []


async def test_record_has_owner_limits_calls_and_outcome(server: ServeProcess) -> None:
    async with connect_execbox(server.execbox) as client:
        await client.send(
            execute("a", "console.log('x');\nthrow await tools.ask({})", tools=("ask",), timeoutMs=7_000)
        )
        await client.started("a")
        await client.send(tool_result(await client.call("a"), 1))
        done = await client.end("a")
    record = json.loads(await asyncio.to_thread(server.logged, '"outcome": "runtime_error"'))
    assert record["event"] == "run"
    assert (record["protocol"], record["owner"], record["engine"]) == ("execbox", "local", "quickjs")
    assert (record["duration_ms"], record["tool_calls"], record["log_lines"]) == (done["durationMs"], 1, 1)
    [call] = record["calls"]
    assert (call["provider"], call["tool"], call["ok"]) == ("tools", "ask", True)
    # The record lists the limits that are not the default: the timeout of this run and the grace period of
    # this server.
    assert record["limits"] == {"timeout_ms": 7_000, "cancel_grace_ms": 10_000}
    assert len(record["run_id"]) == 32
    assert record["started_at"].endswith("Z")
    assert datetime.fromisoformat(record["started_at"]) < datetime.fromisoformat(record["timestamp"])


async def test_record_has_the_first_calls_and_the_number_of_the_others() -> None:
    records: list[RunRecord] = []
    recorder = RunRecorder()
    recorder.sink = lambda record, redactor: records.append(record)
    log = CallLog()
    for _ in range(MAX_RECORDED_CALLS + 7):
        log.add(CallRecord.of("server", "tool", True, 0.001))
    execution = Execution(code="1", profile=profile_for("quickjs"))
    recorder(execution, RunHandle("r", call_log=log), Result(ok=True))
    assert records == []
    await recorder.publish()
    [record] = records
    assert (record.tool_calls, len(record.calls), record.calls_left_out) == (
        MAX_RECORDED_CALLS + 7,
        MAX_RECORDED_CALLS,
        7,
    )


async def test_log_never_has_code_inputs_results_or_keys() -> None:
    """The server logs at debug level, and one of the runs fails with a message that contains the secret."""
    env = {"HUTCH_LOG_LEVEL": "debug", "HUTCH_LOG_JSON": "true", "HUTCH_API_KEY": SECRET}
    with running_server(**env) as server:
        async with connect_execbox(server.execbox, Authorization=f"Bearer {SECRET}") as client:
            await client.send(execute("result", f"console.log('{SECRET}'); '{SECRET}'"))
            assert (await client.done("result"))["result"] == SECRET
            await client.send(execute("thrown", f"throw new Error('{SECRET}')"))
            assert (await client.done("thrown"))["error"]["message"] == SECRET
            await client.send(execute("syntax", f"let {SECRET} = ;"))
            assert not (await client.done("syntax"))["ok"]
            await client.send(execute("input", f"await tools.ask('{SECRET}')", tools=("ask",)))
            await client.started("input")
            await client.send(tool_failure(await client.call("input"), "validation_error", f"not {SECRET}"))
            assert SECRET in (await client.end("input"))["error"]["message"]
        server.process.terminate()
        assert server.wait() == 0
        records = [line for line in server.seen if '"event": "run"' in line]
        assert [json.loads(line)["owner"] for line in records] == ["key"] * 4
        assert not [line for line in server.seen if SECRET in line]


async def test_runs_are_logged_unless_the_level_is_error() -> None:
    for level, count in (("warning", 1), ("error", 0)):
        with running_server(HUTCH_LOG_LEVEL=level) as server:
            async with connect_execbox(server.execbox) as client:
                await client.send(execute("a", "1"))
                assert (await client.done("a"))["ok"]
            server.process.terminate()
            assert await asyncio.to_thread(server.wait) == 0
            assert len([line for line in server.seen if "  ok     execbox    quickjs " in line]) == count


def test_log_is_plain_text_by_default() -> None:
    with running_server() as server:
        line = server.logged("serving")
        assert "isolation=" in line
        assert "\x1b" not in line


async def test_records_of_several_runs_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.kernel.records.PUBLISH_SECONDS", 3600)
    recorder, stored = recorder_of_ids()
    execution = Execution(code="1", profile=profile_for("quickjs"))
    for id in ("a", "b"):
        recorder(execution, RunHandle(id), Result(ok=True))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert stored == []
    await recorder.publish()
    assert stored == ["a", "b"]


async def test_run_is_logged_in_the_context_of_its_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Programs that use Hutch as a library add context variables to their log records with filters."""
    request_id, seen = ContextVar[str]("request_id"), list[str]()
    handler = Mock(level=logging.INFO, handle=lambda record: seen.append(request_id.get()))
    monkeypatch.setattr(logging.getLogger("hutch.runs"), "handlers", [handler])
    caplog.set_level(logging.INFO, "hutch.runs")
    recorder = RunRecorder()

    async def request(id: str) -> None:
        request_id.set(id)
        recorder(Execution(code="1", profile=profile_for("quickjs")), RunHandle(id), Result(ok=True))

    await asyncio.gather(request("a"), request("b"))
    await recorder.publish()
    assert seen == ["a", "b"]


async def test_run_is_logged_immediately_if_there_is_no_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hutch.kernel.records.PUBLISH_SECONDS", 3600)
    caplog.set_level(logging.INFO, "hutch.runs")
    RunRecorder()(Execution(code="1", profile=profile_for("quickjs")), RunHandle("a"), Result(ok=True))
    await eventually(lambda: len(caplog.records) == 1)
