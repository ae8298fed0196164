"""Asynchronous runs in the format of all runs, and `POST /runs`, which adds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from hutch.http.auth import key_advice
from hutch.http.errors import ApiError
from hutch.http.middleware.run_headers import RUN_ID_HEADER
from hutch.protocols.runs.events import RETRY_HINT, LiveEvents, encoded_events
from hutch.protocols.runs.responses import JsonBody, ended_detail, ended_entry, timestamp
from hutch.queue.requests import OPTION_NAMES, REPLAYED_HEADER, parse_options, queue_caller
from hutch.store.models import RunRow
from hutch.store.tables.run_search import status_of
from hutch.text import cut

if TYPE_CHECKING:
    from starlette.responses import Response

    from hutch.http.auth import AccessControl
    from hutch.http.endpoint import RequestContext
    from hutch.protocols.runs.catalog import FoundRun
    from hutch.queue.queue import RunQueue
    from hutch.store.tables.queue.queued_runs import QueuedRunRow

POLL_SECONDS = 0.5
"""Interval at which a follower looks whether a queued run has started."""
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
            created_at=timestamp(row.created_at / 1000),
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
    return None if milliseconds is None else timestamp(milliseconds / 1000)


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
    access: AccessControl,
) -> AsyncIterator[bytes]:
    """Yields the events of a run that has not started on this server. A run on another server yields its
    events only after its end.

    `find` returns the run and its details.
    """
    yield RETRY_HINT
    waiting = LiveEvents(None, detail, after)
    for chunk in waiting.past_chunks():
        yield chunk
    after = max(after, 1)
    while not access.is_draining:
        found, detail = await find()
        if found.active is not None or found.queued is None or not found.queued.is_open:
            run = None if found.active is None else found.active[1]
            async for chunk in encoded_events(LiveEvents(run, detail, after), access):
                yield chunk
            return
        await asyncio.sleep(POLL_SECONDS)
