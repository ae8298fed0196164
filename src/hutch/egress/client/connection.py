"""Client connection that handles one exchange at a time and accepts no data in between."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import cast

from hutch.egress.client.http1 import HttpExchange

# Time for which an idle connection is kept if the server does not send a Keep-Alive timeout.
IDLE_SECONDS = 4.0
MAX_IDLE_SECONDS = 60.0

_TIMEOUT = re.compile(rb"(?:^|[,;\s])timeout=([0-9]{1,6})")


class ClientConnection(asyncio.Protocol):
    """Connection to a server. Calls `on_free` when the connection can be reused, and `on_closed` when it is
    closed.
    """

    def __init__(
        self,
        host: str,
        on_free: Callable[[ClientConnection], None],
        on_closed: Callable[[ClientConnection], None],
    ) -> None:
        self.idle_until = 0.0
        self.on_data: Callable[[], None] | None = None
        """Called when data is received."""
        self._host = host
        self._on_free = on_free
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._exchange: HttpExchange | None = None
        self._is_closed = False

    def send(self, method: str, data: bytes) -> HttpExchange:
        """Sends a complete request and returns the exchange that receives the response."""
        assert self._transport is not None
        assert self._exchange is None
        self._exchange = exchange = HttpExchange(self._host, method, self._set_reading)
        if self._transport.is_closing():
            self._end_exchange()
        else:
            self._transport.write(data)
        return exchange

    def abandon(self, exchange: HttpExchange) -> None:
        """Closes the connection if the exchange is still in progress. Does nothing if a later exchange uses
        the connection.
        """
        if self._exchange is exchange:
            exchange.fail("closed", "did not answer before the request was abandoned")
            self.abort()

    def abort(self) -> None:
        self._is_closed = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_usable(self) -> bool:
        return not self._is_closed and self._transport is not None and not self._transport.is_closing()

    def _set_reading(self, enabled: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading() if enabled else self._transport.pause_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.on_data is not None:
            self.on_data()
        exchange = self._exchange
        if exchange is None:
            # Close the connection, because unsolicited data would be mistaken for the response to the next
            # request.
            self.abort()
            return
        exchange.feed(data)
        if exchange.is_complete or exchange.error is not None:
            self._finish(exchange)

    def eof_received(self) -> bool:
        self._end_exchange(is_regular=True)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_exchange()
        self._transport = None
        self._on_closed(self)

    def _end_exchange(self, *, is_regular: bool = False) -> None:
        self._is_closed = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end(is_regular=is_regular)

    def _finish(self, exchange: HttpExchange) -> None:
        self._exchange = None
        assert self._transport is not None
        # If some of the request is still unsent, the server has responded before it received the whole
        # request.
        if not exchange.is_reusable or self._transport.get_write_buffer_size() > 0 or self._is_closed:
            self.abort()
            return
        # Resume reading if the exchange has paused it. Otherwise the end of the connection would go
        # unnoticed.
        self._transport.resume_reading()
        self.idle_until = asyncio.get_running_loop().time() + _idle_seconds(exchange)
        self._on_free(self)


def _idle_seconds(exchange: HttpExchange) -> float:
    """Returns how long to keep the connection: less than the server's timeout, so that the server does not
    close the connection during the next request.
    """
    hint = next((value for name, value in exchange.headers if name == b"keep-alive"), b"")
    match = _TIMEOUT.search(hint.lower())
    if match is None:
        return IDLE_SECONDS
    return min(max(int(match[1]) - 1.0, 0.0), MAX_IDLE_SECONDS)
