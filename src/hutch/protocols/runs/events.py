"""Events of executions as server-sent events: past events from the record, further ones as they come."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.http.sse import EventBuffer, encode_event
from hutch.protocols.runs.responses import encode_recorded, timestamp
from hutch.session.run import RunEnded, RunEvent, RunHandle, event_json
from hutch.text import format_rfc3339

if TYPE_CHECKING:
    from hutch.http.auth import AccessControl

RETRY_HINT = b"retry: 1000\n\n"
"""Delay in milliseconds after which a client connects again."""


def past_events(detail: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the events of a run up to now, in order, from its details. The last one is `end` if the run has
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
        # Lines without a time come last.
        at_ms = detail["duration_ms"] or 0.0 if log["at_ms"] is None else log["at_ms"]
        events.append((at_ms, {"type": "log", "line": log["line"]}))
    events.sort(key=lambda item: item[0])
    timed = [{**event, "run_id": run_id, "at": _after(started, at_ms)} for at_ms, event in events]
    result = [{"type": "queued", "run_id": run_id, "at": detail["created_at"]}]
    if started is not None:
        result.append({"type": "started", "run_id": run_id, "at": started, "engine": detail["engine"]})
    result += timed
    if detail["outcome"] is not None:
        result.append(_end(run_id, detail["outcome"], detail["ended_at"]))
    return result


def _after(started: str | None, milliseconds: float) -> str | None:
    if started is None:
        return None
    return format_rfc3339(datetime.fromisoformat(started) + timedelta(milliseconds=milliseconds))


def _end(run_id: str, outcome: str, at: str | None) -> dict[str, Any]:
    status = "completed" if outcome == "ok" else "failed"
    return {"type": "end", "run_id": run_id, "at": at, "status": status, "outcome": outcome}


async def encoded_events(
    detail: Mapping[str, Any], run: RunHandle | None, after: int, access: AccessControl
) -> AsyncIterator[bytes]:
    """Yields the events after number `after`. `run` is the handle if the run is in progress. In that case, no
    `await` may lie between the creation of `detail` and the first iteration, because events in between would
    be lost.
    """
    buffer = LiveEvents(run, detail, after)
    access.on_drain_expired.add(buffer.end)
    try:
        yield RETRY_HINT
        while (chunk := await buffer.next()) is not None:
            yield chunk
    finally:
        access.on_drain_expired.discard(buffer.end)
        buffer.detach()


class LiveEvents(EventBuffer):
    """Numbered events of a run, encoded. Attached to the run until `detach`."""

    def __init__(self, run: RunHandle | None, detail: Mapping[str, Any], after: int) -> None:
        super().__init__()
        self._run = run
        self._after = after
        self._number = 0
        self._shows_values = run is not None and run.timeline is not None
        if run is not None and not run.outcome:
            run.listeners.append(self._on_event)
        for event in past_events(detail):
            self._add(event["type"], encode_recorded(event))
        if run is None or run.outcome:
            self.end()

    def detach(self) -> None:
        if self._run is not None and self._on_event in self._run.listeners:
            self._run.listeners.remove(self._on_event)

    def _on_event(self, event: RunEvent) -> None:
        run = self._run
        assert run is not None
        if isinstance(event, RunEnded):
            self._add("end", msgspec.json.encode(_end(run.id, event.outcome, timestamp(event.at))))
            self.end()
        else:
            name = str(event.__struct_config__.tag)
            self._add(name, event_json(event, run.id, values=self._shows_values))

    def _add(self, name: str, json: bytes) -> None:
        self._number += 1
        if self._number > self._after:
            self.add(encode_event(name, json, self._number))
