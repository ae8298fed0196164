"""Events of executions as server-sent events: past events from the record, then new events as they occur."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from hutch.http.sse import EventBuffer, encode_event
from hutch.kernel.execution import Execution
from hutch.protocols.runs.responses import ActiveRun, encode_recorded
from hutch.session.run import RunEnded, RunEvent, RunHandle, event_json
from hutch.store.tables.run_search import status_of
from hutch.text import format_rfc3339, format_unix_time

if TYPE_CHECKING:
    from hutch.http.auth import AccessControl

MAX_FOLLOWERS = 10
"""Maximum number of clients that follow one run. Each event is added to all of their buffers at once."""
MAX_CHUNK_EVENTS = 250
"""Number of past events that are encoded at a time. Other requests are served in between."""
RETRY_HINT = b"retry: 1000\n\n"
"""Delay in milliseconds after which a client connects again."""


def past_events(detail: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the past events of a run in order, from its details. The last event is `end` if the run has
    ended.
    """
    run_id = detail["run_id"]
    events: list[tuple[float, dict[str, Any]]] = []
    started = detail["started_at"]
    for number, call in enumerate(detail["tool_calls"]):
        start = call["start_ms"] or 0.0
        names = ("provider", "tool", "line", "input")
        fields = {name: call[name] for name in names if name in call}
        events.append((start, {"type": "tool_call_started", "call": str(number), **fields}))
        if call["duration_ms"] is not None:
            fields = {name: call[name] for name in ("ok", "duration_ms", "code", "output") if name in call}
            end = start + call["duration_ms"]
            events.append((end, {"type": "tool_call_ended", "call": str(number), **fields}))
    for log in detail.get("logs", ()):
        # Place lines without a time at the end of the run.
        at_ms = detail["duration_ms"] or 0.0 if log["at_ms"] is None else log["at_ms"]
        events.append((at_ms, {"type": "log", "line": log["line"]}))
    events.sort(key=lambda item: item[0])
    begin = None if started is None else datetime.fromisoformat(started)
    timed = [{**event, "run_id": run_id, "at": _after(begin, at_ms)} for at_ms, event in events]
    result = [{"type": "queued", "run_id": run_id, "at": detail["created_at"]}]
    if started is not None:
        result.append({"type": "started", "run_id": run_id, "at": started, "engine": detail["engine"]})
    result += timed
    if detail["outcome"] is not None:
        result.append(_end(run_id, detail["outcome"], detail["ended_at"]))
    return result


def _after(started: datetime | None, milliseconds: float) -> str | None:
    return None if started is None else format_rfc3339(started + timedelta(milliseconds=milliseconds))


def _end(run_id: str, outcome: str, at: str | None) -> dict[str, Any]:
    return {"type": "end", "run_id": run_id, "at": at, "status": status_of(outcome), "outcome": outcome}


async def encoded_events(follower: LiveEvents, access: AccessControl) -> AsyncIterator[bytes]:
    access.on_drain_expired.add(follower.end)
    try:
        yield RETRY_HINT
        for past in follower.past_chunks():
            yield past
            await asyncio.sleep(0)
        while (chunk := await follower.next()) is not None:
            yield chunk
    finally:
        access.on_drain_expired.discard(follower.end)
        follower.detach()


class TooManyFollowers(Exception):
    """The run already has MAX_FOLLOWERS followers."""


class LiveEvents(EventBuffer):
    """Numbered events of a run, encoded. Attached to the run until `detach`, or until the run ends."""

    # Cache of the last encoded event, because all followers of a run encode the same event. Contains the
    # event, whether its values are shown, and its JSON text.
    _encoded: ClassVar[tuple[RunEvent, bool, bytes] | None] = None

    def __init__(self, run: RunHandle | None, detail: Mapping[str, Any], after: int, offset: int = 0) -> None:
        """Prepares the events after number `after`, and adds `offset` to their numbers. `run` is the handle
        of a run in progress, otherwise None. Raises TooManyFollowers.
        """
        super().__init__()
        if run is not None and sum(map(_is_follower, run.listeners)) >= MAX_FOLLOWERS:
            raise TooManyFollowers
        self._run = run
        self._after = after
        self._offset = offset
        self._shows_values = run is not None and run.timeline is not None and run.timeline.keeps_values
        if run is not None and not run.outcome:
            run.listeners.append(self._on_event)
        self._past = past_events(detail)
        self._number = len(self._past)
        if run is None or run.outcome:
            self.end()

    @classmethod
    def of_active(cls, execution: Execution, run: RunHandle, after: int, offset: int = 0) -> LiveEvents:
        """Returns the events of a run in progress. Raises TooManyFollowers.

        Makes the run's details here, because an event that occurs between making the details and attaching to
        the run would be lost.
        """
        detail = ActiveRun(execution, run).detail()
        if run.outcome:
            ended_at = format_unix_time(run.started_at + (run.clock.ended or 0.0))
            detail |= {"outcome": run.outcome, "ended_at": ended_at}
        return cls(run, detail, after, offset)

    def past_chunks(self) -> Iterator[bytes]:
        """Yields the encoded events that occurred before this object was created. Later events are in the
        buffer.
        """
        for start in range(self._after, len(self._past), MAX_CHUNK_EVENTS):
            chunk = self._past[start : start + MAX_CHUNK_EVENTS]
            yield b"".join(
                encode_event(event["type"], encode_recorded(event), number)
                for number, event in enumerate(chunk, start + 1 + self._offset)
            )

    @property
    def number(self) -> int:
        """Number of the last event, with the offset."""
        return self._number + self._offset

    def detach(self) -> None:
        if self._run is not None and self._on_event in self._run.listeners:
            self._run.listeners.remove(self._on_event)

    def _on_event(self, event: RunEvent) -> None:
        run = self._run
        assert run is not None
        if isinstance(event, RunEnded):
            self._add("end", msgspec.json.encode(_end(run.id, event.outcome, format_unix_time(event.at))))
            self.end()
        else:
            name = str(event.__struct_config__.tag)
            self._add(name, self._encode(event, run))

    def _encode(self, event: RunEvent, run: RunHandle) -> bytes:
        encoded = LiveEvents._encoded
        if encoded is None or encoded[0] is not event or encoded[1] != self._shows_values:
            json = event_json(event, run.id, values=self._shows_values)
            if run.redactor is not None:
                json = run.redactor.text(json.decode()).encode()
            encoded = LiveEvents._encoded = (event, self._shows_values, json)
        return encoded[2]

    def _add(self, name: str, json: bytes) -> None:
        self._number += 1
        if self._number > self._after:
            self.add(encode_event(name, json, self.number))


def _is_follower(listener: Callable[[RunEvent], None]) -> bool:
    return isinstance(getattr(listener, "__self__", None), LiveEvents)
