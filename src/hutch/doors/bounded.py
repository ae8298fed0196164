"""uvicorn's HTTP, with bounds on a request beside its body: how much of it is kept, how long it may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
# From the connection, or from the first byte after the request before, to the end of the head.
HEAD_SECONDS = 20.0


class BoundedHttp(HttpToolsProtocol):
    """Cuts off whoever sends a head, or trailers, without an end, or a head that does not come to its end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept = 0
        self._in_head = True
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._expect_head()
        self._kept += len(data)
        super().data_received(data)
        if self._kept > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        # In the same data as the end of the request before.
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._kept = 0
        self._in_head = False
        self._has_head()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._kept = 0
        self._in_head = True
        super().on_message_complete()

    def _expect_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _has_head(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        # Until there is one, uvicorn has None there, whatever its types say.
        latest: Any = self.cycle
        if latest is not None and not latest.response_complete:
            # An earlier request of this connection is still being answered.
            self._expect_head()
        else:
            self.transport.close()
