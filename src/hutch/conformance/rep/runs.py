"""Checks of `Runtime.Poll` (5.3), events (7), cancellation (5.4, 10), health (5.5) and shutdown (3.1)."""

from __future__ import annotations

import json
from datetime import datetime
from time import monotonic
from typing import Any

from hutch.conformance.outcome import Check, CheckFailed
from hutch.conformance.rep.target import FinishedRun, RuntimeTarget
from hutch.protocols.rep.jsonrpc import METHOD_NOT_FOUND, RpcError

CANCEL_SECONDS = 5.0
EXIT_SECONDS = 5.0
_STATES = ("started", "succeeded", "failed")


async def completes(target: RuntimeTarget) -> None:
    run = await target.run_completing(await target.connect())
    if run.last.status != "completed":
        raise CheckFailed(f"expected completed, got {run.last.status}: {json.dumps(run.last.summary)[:120]}")


async def events_are_valid(target: RuntimeTarget) -> None:
    for number, event in enumerate((await target.run_completing(await target.connect())).events):
        problem = _event_problem(event)
        if problem:
            raise CheckFailed(f"events[{number}]: {problem}")


def _event_problem(event: Any) -> str | None:
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return f"expected an object with a type, got {json.dumps(event)[:80]}"
    if not _is_timestamp(event.get("timestamp")):
        return f"timestamp: expected RFC 3339, got {json.dumps(event.get('timestamp'))[:40]}"
    if event["type"] == "log":
        missing = [name for name in ("level", "message") if not isinstance(event.get(name), str)]
        return f"expected a string as {', '.join(missing)} of a log" if missing else None
    if event["type"] == "step" and not isinstance(event.get("step_id"), str):
        return "step_id: expected a string"
    if event["type"] == "step" and event.get("state") not in _STATES:
        return f"state: expected {', '.join(_STATES)}, got {json.dumps(event.get('state'))[:40]}"
    return None


def _is_timestamp(text: Any) -> bool:
    try:
        return isinstance(text, str) and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


async def reports_steps(target: RuntimeTarget) -> None:
    run = await target.run_completing(await target.connect())
    if not any(event.get("type") == "step" for event in run.events if isinstance(event, dict)):
        raise CheckFailed("expected events of the type step, got none")


async def reports_events_once(target: RuntimeTarget) -> None:
    connection = await target.connect()
    run = await target.run_completing(connection)
    later = (await connection.result("Poll", run_id=run.run_id)).get("events")
    if later:
        raise CheckFailed(f"expected no events after the last, got {json.dumps(later)[:80]}")


async def counts_steps(target: RuntimeTarget) -> None:
    summary = (await target.run_completing(await target.connect())).last.summary
    for name in ("completed_steps", "failed_steps"):
        if isinstance(summary.get(name), bool) or not isinstance(summary.get(name), int):
            raise CheckFailed(
                f"summary.{name}: expected an integer, got {json.dumps(summary.get(name))[:40]}"
            )


async def keeps_status(target: RuntimeTarget) -> None:
    connection = await target.connect()
    run = await target.run_completing(connection)
    status = (await connection.result("Poll", run_id=run.run_id)).get("status")
    if status != run.last.status:
        raise CheckFailed(f"expected {run.last.status} again, got {json.dumps(status)}")


async def refuses_unknown_runs(target: RuntimeTarget) -> None:
    connection = await target.connect()
    await connection.error("Poll", run_id="no-such-run")
    await connection.expect_alive()


async def step_failure_fails_run(target: RuntimeTarget) -> None:
    run = await _run_failing(target)
    if run.last.status != "failed":
        raise CheckFailed(f"expected failed, got {run.last.status}")


async def failed_run_has_error(target: RuntimeTarget) -> None:
    error = (await _run_failing(target)).last.summary.get("error")
    if not isinstance(error, dict) or error.get("code") != 2001:
        raise CheckFailed(f"summary.error: expected one with the code 2001, got {json.dumps(error)[:80]}")
    data = error.get("data")
    if not isinstance(error.get("message"), str) or not isinstance(data, dict):
        raise CheckFailed("summary.error: expected a message, and data as an object")
    if not isinstance(data.get("step_id"), str) or data.get("attempt") != 0:
        raise CheckFailed(f"summary.error.data: expected step_id and attempt 0, got {json.dumps(data)[:80]}")


async def _run_failing(target: RuntimeTarget) -> FinishedRun:
    ir = target.failing_flow()
    connection = await target.connect()
    return await target.wait_finished(connection, await target.start(connection, ir, target.new_id()))


async def cancels(target: RuntimeTarget) -> None:
    ir = target.lasting_flow()
    connection = await target.connect_new()
    try:
        run_id = await target.start(connection, ir, target.new_id())
        status = (await connection.result("Poll", run_id=run_id)).get("status")
        if status not in ("pending", "running"):
            raise CheckFailed(f"expected the lasting flow to be running, got {json.dumps(status)}")
        started = monotonic()
        if (await connection.result("Cancel", run_id=run_id)).get("ok") is not True:
            raise CheckFailed("Cancel: expected ok: true")
        run = await target.wait_finished(connection, run_id)
        if run.last.status != "failed":
            raise CheckFailed(f"expected failed, got {run.last.status}")
        if monotonic() - started > CANCEL_SECONDS:
            raise CheckFailed(f"expected the run to end within {CANCEL_SECONDS:g} s")
    finally:
        await connection.close()


async def ignores_late_cancel(target: RuntimeTarget) -> None:
    connection = await target.connect()
    run = await target.run_completing(connection)
    if (await connection.result("Cancel", run_id=run.run_id)).get("ok") is not True:
        raise CheckFailed("Cancel: expected ok: true")
    status = (await connection.result("Poll", run_id=run.run_id)).get("status")
    if status != run.last.status:
        raise CheckFailed(f"expected {run.last.status}, got {json.dumps(status)}")


async def is_healthy(target: RuntimeTarget) -> None:
    connection = await target.connect()
    try:
        result = await connection.call("Health")
    except RpcError as error:
        if error.code == METHOD_NOT_FOUND:
            return
        raise CheckFailed(f"expected ok: true, or -32601, got {error.code}: {error.message}") from None
    if not isinstance(result, dict) or result.get("ok") is not True:
        raise CheckFailed(f"expected ok: true, got {json.dumps(result)[:80]}")


async def exits_after_input(target: RuntimeTarget) -> None:
    connection = await target.connect_new()
    try:
        await connection.expect_alive()
        if not await connection.exits_after_input(EXIT_SECONDS):
            raise CheckFailed(f"still running {EXIT_SECONDS:g} s after its input ended")
    finally:
        await connection.close()


async def exits_during_run(target: RuntimeTarget) -> None:
    ir = target.lasting_flow()
    connection = await target.connect_new()
    try:
        await target.start(connection, ir, target.new_id())
        if not await connection.exits_after_input(EXIT_SECONDS):
            raise CheckFailed(f"still running {EXIT_SECONDS:g} s after its input ended")
    finally:
        await connection.close()


CHECKS = (
    Check("a run ends as completed", completes, "5.3"),
    Check("events have a type, an RFC 3339 timestamp, and the fields of their type", events_are_valid, "7"),
    Check("steps are reported by events", reports_steps, "7", required=False),
    Check("each event is reported once", reports_events_once, "5.3", required=False),
    Check("the summary counts completed and failed steps", counts_steps, "5.3", required=False),
    Check("a finished run keeps its status", keeps_status, "5.3", required=False),
    Check("polling an unknown run is an error", refuses_unknown_runs, "5.3", required=False),
    Check("a failed step fails the run", step_failure_fails_run, "5.3"),
    Check(
        "a failed run has an error with code 2001, step and attempt",
        failed_run_has_error,
        "6",
        required=False,
    ),
    Check("Cancel ends a run within 5 s", cancels, "5.4"),
    Check("Cancel does not change a finished run", ignores_late_cancel, "5.4", required=False),
    Check("Health is answered, or is an unknown method", is_healthy, "5.5"),
    Check("the runtime exits when its input ends", exits_after_input, "3.1", required=False),
    Check("the runtime exits when its input ends during a run", exits_during_run, "3.1", required=False),
)
