"""What a run has to tell: events in order, each handed out once, and never too many."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

MAX_PENDING_BYTES = 16 * 1024 * 1024
"""Past this, logs are left out until somebody has polled."""
MAX_POLL_BYTES = 4 * 1024 * 1024
_MAX_LOG = 64 * 1024
LEVELS = ("debug", "info", "warning", "error")


def timestamp() -> str:
    """RFC 3339, UTC, with milliseconds."""
    return f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"


class Events:
    """The events that nobody has fetched yet."""

    def __init__(self, take: Callable[[int], None] = lambda size: None) -> None:
        """`take` is told how long each is."""
        self._take = take
        self._waiting: deque[tuple[int, dict[str, Any]]] = deque()
        self._bytes = 0
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, type: str, **fields: Any) -> dict[str, Any] | None:
        """The event as it is handed out; None if there was no room for it."""
        event = {"type": type, "timestamp": timestamp(), **fields}
        if type == "log":
            event["message"] = _shortened(event["message"])
            if self._bytes > MAX_PENDING_BYTES:
                self._dropped += 1
                return None
        size = len(json.dumps(event))
        self._waiting.append((size, event))
        self._bytes += size
        self._take(size)
        return event

    def drain(self) -> list[dict[str, Any]]:
        """The next ones, as many as one answer may carry."""
        taken: list[dict[str, Any]] = []
        room = MAX_POLL_BYTES
        while self._waiting and (not taken or self._waiting[0][0] <= room):
            size, event = self._waiting.popleft()
            self._bytes -= size
            room -= size
            taken.append(event)
        if self._dropped and self._bytes <= MAX_PENDING_BYTES:
            message = f"{self._dropped} log events were left out: nobody fetched them"
            self._dropped = 0
            taken.append({"type": "log", "timestamp": timestamp(), "level": "warning", "message": message})
        return taken


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_LOG else f"{text[:_MAX_LOG]}…"
