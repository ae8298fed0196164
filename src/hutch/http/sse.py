"""Server-sent events."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from hutch.text import printable

if TYPE_CHECKING:
    from sse_starlette import EventSourceResponse

# Interval of comments, which keep proxies from closing an idle connection.
HEARTBEAT_SECONDS = 15.0
HEARTBEAT = "still running"
# If the buffer is larger than this, further events are dropped.
MAX_BUFFER_BYTES = 1024 * 1024

# At debug level, sse_starlette logs every event, and events may contain secrets.
logging.getLogger("sse_starlette.sse").setLevel(logging.INFO)


def event_stream(events: AsyncIterator[bytes]) -> EventSourceResponse:
    """Streams encoded events until the iterator ends or the client disconnects. A disconnect closes the
    iterator.

    A shutdown does not end the stream. The iterator must end by itself, because only the iterator knows
    whether the shutdown should wait for its work.
    """
    # Imported here because it loads uvicorn, which commands that only read events do not need.
    from sse_starlette import EventSourceResponse, ServerSentEvent

    return EventSourceResponse(
        events,
        sep="\n",
        ping=HEARTBEAT_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment=HEARTBEAT, sep="\n"),
        # With the default of 0, sse-starlette would end all streams of the process as soon as uvicorn handles
        # a signal.
        shutdown_grace_period=math.inf,
    )


def encode_event(name: str, json: bytes, number: int | None = None) -> bytes:
    """Encodes an event. Line breaks in JSON are insignificant, so they become spaces."""
    safe_name = printable(name, replacement="")
    id = "" if number is None else f"id: {number}\n"
    data = json.replace(b"\r", b" ").replace(b"\n", b" ")
    return f"{id}event: {safe_name}\ndata: ".encode() + data + b"\n\n"


def encode_comment(text: str) -> bytes:
    return f": {text}\n\n".encode()


class EventBuffer:
    """Buffers encoded events until they are read. Drops further events while the buffer is full."""

    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._ended = False
        self._changed = asyncio.Event()

    def add(self, encoded: bytes) -> None:
        # Always accept a single event, whatever its size.
        if self._events and self._size + len(encoded) > MAX_BUFFER_BYTES:
            self._dropped += 1
        else:
            self._events.append(encoded)
            self._size += len(encoded)
        self._changed.set()

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    @property
    def has_ended(self) -> bool:
        """True if the stream has ended and all events were read."""
        return self._ended and not self._events

    async def next(self) -> bytes | None:
        """Waits for events. Returns all events since the last call, or None at the end of the stream."""
        if not self._events and not self._ended:
            self._changed.clear()
            await self._changed.wait()
        return self._take() or None

    def _take(self) -> bytes:
        data = b"".join(self._events)
        if self._dropped:
            data += encode_comment(
                f"{self._dropped} events were dropped: they came faster than they were read"
            )
        self._events.clear()
        self._size = self._dropped = 0
        return data
