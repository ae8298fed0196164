"""Buffers the events of a run until they are polled."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from hutch.text import now_rfc3339

MAX_PENDING_BYTES = 16 * 1024 * 1024
"""Limit for pending events. Above it, log events are dropped until the next poll."""
MAX_POLL_BYTES = 512 * 1024
"""Limit for the events of one response, which the orchestrator decodes at once."""
_MAX_LOG_CHARS = 64 * 1024
LOG_LEVELS = ("debug", "info", "warning", "error")


class RunEventBuffer:
    """Events that have not been polled yet. Each event is returned once, in order."""

    def __init__(self, on_bytes: Callable[[int], None] = lambda size: None) -> None:
        """`on_bytes` is called with the size of each event."""
        self._on_bytes = on_bytes
        self._pending: deque[tuple[int, dict[str, Any]]] = deque()
        self._bytes = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, type: str, **fields: Any) -> dict[str, Any] | None:
        """Adds an event and returns it with its timestamp. Returns None if the event was dropped."""
        event = {"type": type, "timestamp": now_rfc3339(), **fields}
        if type == "log":
            event["message"] = _truncated(event["message"])
            if self._bytes > MAX_PENDING_BYTES:
                self._dropped += 1
                return None
        size = len(json.dumps(event))
        self._pending.append((size, event))
        self._bytes += size
        self._on_bytes(size)
        return event

    def drain(self) -> list[dict[str, Any]]:
        """Removes and returns as many events as fit into one response."""
        events: list[dict[str, Any]] = []
        bytes_left = MAX_POLL_BYTES
        while self._pending and (not events or self._pending[0][0] <= bytes_left):
            size, event = self._pending.popleft()
            self._bytes -= size
            bytes_left -= size
            events.append(event)
        if self._dropped and self._bytes <= MAX_PENDING_BYTES:
            message = f"{self._dropped} log events were dropped because they were not polled in time"
            self._dropped = 0
            events.append({"type": "log", "timestamp": now_rfc3339(), "level": "warning", "message": message})
        return events


def _truncated(text: str) -> str:
    return text if len(text) <= _MAX_LOG_CHARS else f"{text[:_MAX_LOG_CHARS]}…"
