"""Timeline of a run: its log lines and tool calls, with their times and contents."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hutch.session.calls.call_events import CallListener
from hutch.session.run import (
    PendingCall,
    RunClock,
    RunEvent,
    RunLog,
    ToolCallEnded,
    ToolCallStarted,
    to_milliseconds,
)
from hutch.text import cut

MAX_LOG_LINE_CHARS = 10_000
"""Length to which a recorded log line is cut."""
CALL_BYTES = 200
"""Estimated size of a recorded call without its input and output."""


class Cut(msgspec.Struct, frozen=True):
    """Replaces a value that was too long to be recorded."""

    size: int = msgspec.field(name="$cut")


def cut_json(size: int) -> Raw:
    return Raw(msgspec.json.encode(Cut(size)))


class RecordedLog(msgspec.Struct, frozen=True):
    line: str
    at_ms: float | None = None


class RecordedCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A tool call with its input and its result."""

    provider: str
    tool: str
    line: int | None = None
    start_ms: float
    duration_ms: float | None = None
    """None if the call did not end before the run."""
    ok: bool = False
    code: str | None = None
    message: str | None = None
    """Message of the error that the guest got."""
    input: Raw | UnsetType = UNSET
    output: Raw | UnsetType = UNSET


class RecordedPart(msgspec.Struct, frozen=True):
    """Log lines and tool calls of a run from before it was suspended."""

    calls: list[RecordedCall] = []
    logs: list[RecordedLog] = []


class RunTimeline(CallListener):
    """Listener that collects the log lines and tool calls of a run with their times."""

    def __init__(self, clock: RunClock, max_bytes: int, *, keeps_values: bool = True) -> None:
        """Without `keeps_values`, the timeline leaves out the inputs and results of tool calls."""
        self.keeps_values = keeps_values
        self._clock = clock
        self._bytes_left = max_bytes
        self.logs: list[RecordedLog] = []
        self.calls: dict[str, RecordedCall] = {}
        self.calls_left_out = 0
        self._started_at: float | None = None
        """Unix time at which the guest began to run. Set only if the run has been suspended since then."""

    def continue_from(self, part: RecordedPart, pending: Sequence[PendingCall]) -> None:
        """Adds the part that was recorded before the run was suspended. `pending` has the calls for which the
        run waited.
        """
        if pending:
            self._started_at = pending[0].started_at - pending[0].start_ms / 1000
        self.logs += [log for log in part.logs if self._take(len(log.line))]
        waiting = list(pending)
        for number, call in enumerate(part.calls):
            values = [value for value in (call.input, call.output) if value is not UNSET]
            if not self._take(CALL_BYTES + sum(memoryview(value).nbytes for value in values)):
                self.calls_left_out += 1
                continue
            same = (each for each in waiting if (each.provider, each.tool) == (call.provider, call.tool))
            found = next(same, None) if call.duration_ms is None else None
            if found is not None:
                waiting.remove(found)
            # The record of a call does not contain its id. Only a pending call needs an id here, so that the
            # event at its end can be matched to it.
            self.calls[f"before {number}" if found is None else found.call_id] = call

    def __call__(self, event: RunEvent) -> None:
        match event:
            case RunLog():
                self._add_log(event.line)
            case ToolCallStarted():
                self.start_call(event.call_id, event.provider, event.tool, event.line, event.input_json)
            case ToolCallEnded():
                output = None if event.output_json is UNSET else event.output_json
                code = "" if event.code is UNSET else event.code
                message = "" if event.message is UNSET else event.message
                self.end_call(event.call_id, event.ok, event.duration_ms, output, code, message)

    def _add_log(self, line: str) -> None:
        line = cut(line, MAX_LOG_LINE_CHARS)
        if self._take(len(line)):
            self.logs.append(RecordedLog(line, self._now_ms()))

    def start_call(
        self, call_id: str, provider: str, tool: str, line: int | None, input_json: Raw | UnsetType
    ) -> None:
        if not self._take(CALL_BYTES):
            self.calls_left_out += 1
            return
        self.calls[call_id] = RecordedCall(
            provider=provider,
            tool=tool,
            line=line,
            start_ms=self._now_ms(),
            input=self._bounded(input_json) if self.keeps_values else UNSET,
        )

    def end_call(
        self,
        call_id: str,
        ok: bool,
        duration_ms: float,
        output_json: Raw | bytes | None,
        code: str,
        message: str,
    ) -> None:
        call = self.calls.get(call_id)
        if call is None:
            return
        call.duration_ms, call.ok, call.code = duration_ms, ok, code or None
        if self.keeps_values:
            call.message = message or None
            call.output = UNSET if output_json is None else self._bounded(Raw(output_json))

    def _bounded(self, json: Raw | UnsetType) -> Raw | UnsetType:
        if json is UNSET:
            return UNSET
        size = memoryview(json).nbytes
        # Copy the value, because it may be a view of a longer message, which would then stay in memory.
        return json.copy() if self._take(size) else cut_json(size)

    def _take(self, size: int) -> bool:
        """Reserves bytes of the record. Returns False if the record would become too long."""
        if size > self._bytes_left:
            return False
        self._bytes_left -= size
        return True

    def _now_ms(self) -> float:
        if self._started_at is not None:
            return to_milliseconds(time.time() - self._started_at)
        return self._clock.since_start_ms()
