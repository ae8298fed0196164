"""Asynchronous runs in the format of all runs, and `POST /runs`, which adds them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from hutch.http.auth import key_advice
from hutch.http.errors import ApiError
from hutch.http.middleware.run_headers import RUN_ID_HEADER
from hutch.protocols.runs.events import RETRY_HINT, LiveEvents, TooManyFollowers, encoded_events, past_events
from hutch.protocols.runs.responses import JsonBody, ended_detail, ended_entry
from hutch.queue.requests import OPTION_NAMES, REPLAYED_HEADER, parse_options, queue_caller
from hutch.store.models import RunRow
from hutch.store.tables.run_search import status_of
from hutch.text import cut, format_unix_time

if TYPE_CHECKING:
    from starlette.responses import Response

    from hutch.http.auth import AccessControl
    from hutch.http.endpoint import RequestContext
    from hutch.protocols.runs.catalog import FoundRun
    from hutch.queue.queue import RunQueue
    from hutch.store.tables.queue.followers import FollowedEvents
    from hutch.store.tables.queue.queued_runs import QueuedRunRow

POLL_SECONDS = 0.5
"""Interval at which a follower looks whether a queued run has started, or still runs at the other server."""
LAST_EVENTS_SECONDS = 2.0
"""Time that a follower waits for the last events of a run that has ended at another server."""
_ENGINES = {"tool": "npm", "script": "script", "flow": "hutch"}
_RUN_FIELDS = {"async", "kind", "request"}


class QueuedRun:
    """List entry of a run that is queued or runs on another server."""

    tools: Sequence[str] = ()
    hosts: Sequence[str] = ()

    def __init__(self, row: QueuedRunRow) -> None:
        self._row = RunRow(
            run_id=row.run_id,
            owner=row.owner,
            protocol=row.protocol,
            engine=_ENGINES.get(row.kind, "quickjs"),
            label=row.label,
            created_at=format_unix_time(row.created_at / 1000),
            duration_ms=0.0,
            outcome="ok",
        )
        is_running = row.state == "running"
        started_at = _time(row.started_at) if is_running else None
        self._details = {"started_at": started_at, "ended_at": _time(row.ended_at)}
        state = "running" if is_running else "pending"
        if row.outcome is not None:
            state = status_of(row.outcome)
        self._open = {
            "state": state,
            "status": state,
            "outcome": row.outcome,
            "duration_ms": None,
            "recorded": None,
            "error": None,
        }
        self.detail: dict[str, Any] = {**ended_detail(self._row, self._details, {}), **self._open}

    @property
    def entry(self) -> dict[str, Any]:
        return {**ended_entry(self._row, self._details), **self._open}


def queue_fields(row: QueuedRunRow) -> dict[str, Any]:
    """Returns the fields about the queue in the details of a run."""
    return {
        "kind": row.kind,
        "state": row.state,
        "source": row.source,
        "priority": row.priority,
        "attempts": row.attempts,
        "max_attempts": row.max_attempts,
        "created_at": _time(row.created_at),
        "due_at": _time(row.due_at),
        "deadline_at": _time(row.deadline_at),
        "ended_at": _time(row.ended_at),
        "outcome": row.outcome,
        "idempotency_key": row.idempotency_key,
    }


def _time(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else format_unix_time(milliseconds / 1000)


async def add_run(context: RequestContext, body: dict[str, Any], queue: RunQueue) -> Response:
    """Adds an asynchronous run of any kind. Responds when the run is stored."""
    if body.get("async") is not True:
        message = "async: expected true; POST /run, /execute-tool and so on respond with the result"
        raise ApiError("invalid_request", message)
    if unknown := body.keys() - _RUN_FIELDS - {*OPTION_NAMES}:
        expected = ", ".join(sorted(_RUN_FIELDS | {*OPTION_NAMES}))
        raise ApiError(
            "invalid_request", f"{cut(min(unknown), 40)}: unknown field; expected one of {expected}"
        )
    handler = queue.handlers.get(str(body.get("kind")))
    if handler is None:
        kinds = ", ".join(sorted(queue.handlers))
        raise ApiError(
            "invalid_request", f"kind: expected one of {kinds}, got {str(body.get('kind'))[:40]!r}"
        )
    if not context.caller.may(handler.protocol):
        scope = handler.protocol
        raise ApiError("forbidden", f"This key lacks the scope {scope}; {key_advice(scope)}")
    request = body.get("request")
    if not isinstance(request, dict):
        raise ApiError("invalid_request", "request: expected an object")
    caller = queue_caller(context.caller)
    options = parse_options(body, context.request.headers, queue.targets)
    accepted = await queue.submit(await handler.parse(request, caller), caller, options)
    status_url = f"/runs/{quote(accepted.run_id)}"
    headers = {RUN_ID_HEADER: accepted.run_id, "Location": status_url}
    if not accepted.is_new:
        headers[REPLAYED_HEADER] = "true"
    return JsonBody({"runId": accepted.run_id, "statusUrl": status_url}, 202, headers)


async def result_of(queue: RunQueue, row: QueuedRunRow) -> Any:
    """Returns the result of an asynchronous run as raw JSON, or None if the run has no result."""
    body = await queue.result(row.run_id)
    return None if body is None else msgspec.Raw(body)


async def queued_events(
    find: Callable[[], Awaitable[tuple[FoundRun, dict[str, Any]]]],
    detail: dict[str, Any],
    after: int,
    queue: RunQueue,
    access: AccessControl,
) -> AsyncIterator[bytes]:
    """Yields the events of a run that has not started, or that another server executes.

    `find` returns the run and its details.
    """
    yield RETRY_HINT
    past = LiveEvents(None, detail, after)
    for chunk in past.past_chunks():
        yield chunk
    position = _Position(max(after, past.number))
    run_id: str = detail["run_id"]
    while not access.is_draining:
        row = await queue.find(run_id)
        found, detail = await find()
        if row is not None and found.active is not None:
            position.move_to(row.generation)
            with contextlib.suppress(TooManyFollowers):
                follower = LiveEvents.of_active(*found.active, position.after, position.offset)
                async for chunk in encoded_events(follower, access):
                    yield chunk
                return
        elif found.queued is None or not found.queued.is_open:
            # Always send the last event. The record may have fewer events than were sent, because it does not
            # contain the progress of tools.
            start = min(position.number, len(past_events(detail)) - 1)
            for chunk in LiveEvents(None, detail, start).past_chunks():
                yield chunk
            return
        elif found.queued.state == "running":
            position.move_to(found.queued.generation)
            async with contextlib.aclosing(_remote_events(found.queued, position, queue, access)) as remote:
                async for events in remote:
                    yield events.data
                    if events.is_end:
                        return
        await asyncio.sleep(POLL_SECONDS)


class _Position:
    """Position of a follower in the events of a run that may be started several times."""

    def __init__(self, number: int) -> None:
        self.number = number
        """Number of the last event that was sent."""
        self.after = number
        self.offset = 0
        self._generation: int | None = None

    def move_to(self, generation: int) -> None:
        """Computes `after` and `offset` for one start of the run. The events of a restarted run continue the
        numbers of the start before. Its first event, `queued`, is skipped, because the follower has it
        already.
        """
        if self._generation not in (None, generation):
            self.offset, self.after = self.number - 1, 1
        else:
            self.after = self.number - self.offset
        self._generation = generation


async def _remote_events(
    row: QueuedRunRow, position: _Position, queue: RunQueue, access: AccessControl
) -> AsyncGenerator[FollowedEvents]:
    """Yields events from the server that executes a run, until that server does not have the run any more."""
    follower = await queue.remote_events.follow(row.run_id, position.after, position.offset)
    if follower is None:
        return
    try:
        seconds, has_events = POLL_SECONDS, False
        while not access.is_draining:
            events = await follower.next(seconds)
            if events is not None:
                if events.part == 0 and (has_events or await _has_new_start(row, queue)):
                    return  # another server executes the run now and may number its events anew
                has_events = True
                position.number = max(position.number, events.number)
                yield events
            elif seconds == LAST_EVENTS_SECONDS:
                return
            else:
                now = await queue.find(row.run_id)
                if now is None or (now.state, now.generation) != ("running", row.generation):
                    if not has_events or (now is not None and now.is_open):
                        return
                    # Wait for the last events, because the other server stores them just after the end of the
                    # run.
                    seconds = LAST_EVENTS_SECONDS
    finally:
        queue.remote_events.leave(follower)


async def _has_new_start(row: QueuedRunRow, queue: RunQueue) -> bool:
    now = await queue.find(row.run_id)
    return now is not None and now.generation != row.generation
