"""uvicorn's HTTP, with bounds on a request beside its body: how much of it is kept, how long it may take."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hutch.doors.heads import MAX_HEAD_BYTES, HeadClock


class BoundedHttp(HttpToolsProtocol):
    """Cuts off whoever sends a head, or trailers, without an end, or a head that does not come to its end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._kept = 0
        self._in_head = True
        self._clock = HeadClock(self._too_slow)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._clock.start()

    def connection_lost(self, exc: Exception | None) -> None:
        self._clock.stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._clock.start()
        self._kept += len(data)
        super().data_received(data)
        if self._kept > MAX_HEAD_BYTES:
            self.transport.abort()

    def on_message_begin(self) -> None:
        # In the same data as the end of the request before.
        self._clock.start()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._kept = 0
        self._in_head = False
        self._clock.stop()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._kept = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._kept = 0
        self._in_head = True
        super().on_message_complete()

    def _too_slow(self) -> None:
        # Until there is one, uvicorn has None there, whatever its types say.
        latest: Any = self.cycle
        if latest is not None and not latest.response_complete:
            # An earlier request of this connection is still being answered.
            self._clock.start()
        else:
            self.transport.close()
