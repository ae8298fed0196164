"""Server-sent events: what a tool says while it runs, for one reader, who may be slow."""

from __future__ import annotations

import asyncio
from collections import deque

from hutch.session.jsonvalue import encode_value

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-store",
    # nginx would hold events back until it has a page of them.
    "X-Accel-Buffering": "no",
}
# After so long a silence a comment tells proxies that somebody is still there.
HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": still running\n\n"
# What waits for a reader; what comes then is left out, and stands in the result all the same.
MAX_WAITING_BYTES = 1024 * 1024


def event(name: str, json: bytes) -> bytes:
    """One event. JSON has line breaks between its parts only, where a space does as well."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.replace(b"\r", b" ").replace(b"\n", b" "))


class Feed:
    """Events as they come, until the end."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._ended = False
        self._news = asyncio.Event()

    def log(self, line: str) -> None:
        self._add(event("log", encode_value({"line": line})))

    def partial(self, json: bytes) -> None:
        self._add(event("partial", b'{"value":%b}' % json))

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self) -> bytes | None:
        """What came since the last time, or a sign of life; None at the end."""
        if not self._waiting and not self._ended:
            self._news.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                return HEARTBEAT
        return self._take() or None

    def _add(self, raw: bytes) -> None:
        # One is never too much, however long.
        if self._waiting and self._size + len(raw) > MAX_WAITING_BYTES:
            self._left_out += 1
        else:
            self._waiting.append(raw)
            self._size += len(raw)
        self._news.set()

    def _take(self) -> bytes:
        taken = b"".join(self._waiting)
        if self._left_out:
            taken += b": %d events were left out: they came faster than they were read\n\n" % self._left_out
        self._waiting.clear()
        self._size = self._left_out = 0
        return taken
