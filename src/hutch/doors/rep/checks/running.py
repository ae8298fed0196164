"""Poll (5.3), events (7), and the end of runs: by themselves, cancelled (5.4, 10), with their runtime."""

from __future__ import annotations

import json
from datetime import datetime
from time import monotonic
from typing import Any

from hutch.doors.rep.checks.outcome import Check, Failed
from hutch.doors.rep.checks.subject import Seen, Subject
from hutch.doors.rep.codes import METHOD_NOT_FOUND, RpcError

CANCEL_SECONDS = 5.0
LEAVE_SECONDS = 5.0
_STATES = ("started", "succeeded", "failed")


async def completes(on: Subject) -> None:
    seen = await on.completed(await on.talk())
    if seen.last.status != "completed":
        raise Failed(f"expected completed, got {seen.last.status}: {json.dumps(seen.last.summary)[:120]}")


async def events_are_events(on: Subject) -> None:
    for number, event in enumerate((await on.completed(await on.talk())).events):
        wrong = _wrong_with(event)
        if wrong:
            raise Failed(f"events[{number}]: {wrong}")


def _wrong_with(event: Any) -> str | None:
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        return f"expected an object with a type, got {json.dumps(event)[:80]}"
    if not _is_moment(event.get("timestamp")):
        return f"timestamp: expected RFC 3339, got {json.dumps(event.get('timestamp'))[:40]}"
    if event["type"] == "log":
        missing = [name for name in ("level", "message") if not isinstance(event.get(name), str)]
        return f"expected a text as {', '.join(missing)} of a log" if missing else None
    if event["type"] == "step" and not isinstance(event.get("step_id"), str):
        return "step_id: expected a text"
    if event["type"] == "step" and event.get("state") not in _STATES:
        return f"state: expected {', '.join(_STATES)}, got {json.dumps(event.get('state'))[:40]}"
    return None


def _is_moment(text: Any) -> bool:
    try:
        return isinstance(text, str) and datetime.fromisoformat(text).tzinfo is not None
    except ValueError:
        return False


async def tells_of_steps(on: Subject) -> None:
    seen = await on.completed(await on.talk())
    if not any(each.get("type") == "step" for each in seen.events if isinstance(each, dict)):
        raise Failed("expected events of the type step, got none")


async def tells_each_event_once(on: Subject) -> None:
    talk = await on.talk()
    seen = await on.completed(talk)
    again = (await talk.result("Poll", run_id=seen.run_id)).get("events")
    if again:
        raise Failed(f"expected no events after the last, got {json.dumps(again)[:80]}")


async def counts_steps(on: Subject) -> None:
    summary = (await on.completed(await on.talk())).last.summary
    for name in ("completed_steps", "failed_steps"):
        if isinstance(summary.get(name), bool) or not isinstance(summary.get(name), int):
            raise Failed(f"summary.{name}: expected an integer, got {json.dumps(summary.get(name))[:40]}")


async def stays_over(on: Subject) -> None:
    talk = await on.talk()
    seen = await on.completed(talk)
    status = (await talk.result("Poll", run_id=seen.run_id)).get("status")
    if status != seen.last.status:
        raise Failed(f"expected {seen.last.status} again, got {json.dumps(status)}")


async def refuses_unknown_runs(on: Subject) -> None:
    talk = await on.talk()
    await talk.refusal("Poll", run_id="no-such-run")
    await talk.still_answers()


async def fails(on: Subject) -> None:
    seen = await _failed(on)
    if seen.last.status != "failed":
        raise Failed(f"expected failed, got {seen.last.status}")


async def tells_why_it_failed(on: Subject) -> None:
    error = (await _failed(on)).last.summary.get("error")
    if not isinstance(error, dict) or error.get("code") != 2001:
        raise Failed(f"summary.error: expected one with the code 2001, got {json.dumps(error)[:80]}")
    data = error.get("data")
    if not isinstance(error.get("message"), str) or not isinstance(data, dict):
        raise Failed("summary.error: expected a message, and data as an object")
    if not isinstance(data.get("step_id"), str) or data.get("attempt") != 0:
        raise Failed(f"summary.error.data: expected step_id and attempt 0, got {json.dumps(data)[:80]}")


async def _failed(on: Subject) -> Seen:
    ir = on.failing()
    talk = await on.talk()
    return await on.to_the_end(talk, await on.start(talk, ir, on.new_id()))


async def cancels(on: Subject) -> None:
    ir = on.lasting()
    talk = await on.fresh()
    try:
        run_id = await on.start(talk, ir, on.new_id())
        status = (await talk.result("Poll", run_id=run_id)).get("status")
        if status not in ("pending", "running"):
            raise Failed(f"expected a run that takes long to be running, got {json.dumps(status)}")
        began = monotonic()
        if (await talk.result("Cancel", run_id=run_id)).get("ok") is not True:
            raise Failed("Cancel: expected ok: true")
        seen = await on.to_the_end(talk, run_id)
        if seen.last.status != "failed":
            raise Failed(f"expected failed, got {seen.last.status}")
        if monotonic() - began > CANCEL_SECONDS:
            raise Failed(f"expected an end within {CANCEL_SECONDS:g} s")
    finally:
        await talk.close()


async def cancels_what_is_over(on: Subject) -> None:
    talk = await on.talk()
    seen = await on.completed(talk)
    if (await talk.result("Cancel", run_id=seen.run_id)).get("ok") is not True:
        raise Failed("Cancel: expected ok: true")
    status = (await talk.result("Poll", run_id=seen.run_id)).get("status")
    if status != seen.last.status:
        raise Failed(f"expected that it is still {seen.last.status}, got {json.dumps(status)}")


async def is_healthy(on: Subject) -> None:
    talk = await on.talk()
    try:
        result = await talk.call("Health")
    except RpcError as error:
        if error.code == METHOD_NOT_FOUND:
            return
        raise Failed(f"expected ok: true, or -32601, got {error.code}: {error.message}") from None
    if not isinstance(result, dict) or result.get("ok") is not True:
        raise Failed(f"expected ok: true, got {json.dumps(result)[:80]}")


async def leaves(on: Subject) -> None:
    talk = await on.fresh()
    try:
        await talk.still_answers()
        if not await talk.left(LEAVE_SECONDS):
            raise Failed(f"expected it to end, but it goes on {LEAVE_SECONDS:g} s after its input ended")
    finally:
        await talk.close()


async def leaves_a_run(on: Subject) -> None:
    ir = on.lasting()
    talk = await on.fresh()
    try:
        await on.start(talk, ir, on.new_id())
        if not await talk.left(LEAVE_SECONDS):
            raise Failed(f"expected it to end, but it goes on {LEAVE_SECONDS:g} s after its input ended")
    finally:
        await talk.close()


CHECKS = (
    Check("a run comes to its end, and is completed", "5.3", True, completes),
    Check(
        "events have a type, an RFC 3339 timestamp, and what their type wants", "7", True, events_are_events
    ),
    Check("events tell of steps", "7", False, tells_of_steps),
    Check("each event is told once", "5.3", False, tells_each_event_once),
    Check("the summary counts completed and failed steps", "5.3", False, counts_steps),
    Check("a run that is over stays so", "5.3", False, stays_over),
    Check("an unknown run is an error", "5.3", False, refuses_unknown_runs),
    Check("a step that fails has the run fail", "5.3", True, fails),
    Check("a failed run tells why: 2001, the step and the attempt", "6", False, tells_why_it_failed),
    Check("Cancel ends a run within 5 s", "5.4", True, cancels),
    Check("Cancel changes nothing for a run that is over", "5.4", False, cancels_what_is_over),
    Check("Health is answered, or is an unknown method", "5.5", True, is_healthy),
    Check("it ends when its input does", "3.1", False, leaves),
    Check("it ends when its input does, also with a run", "3.1", False, leaves_a_run),
)
