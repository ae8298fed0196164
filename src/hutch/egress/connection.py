"""One connection to one server: an exchange at a time, and between them nothing may come."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import cast

from hutch.egress.exchange import Exchange

# How long a connection is kept for the next request, if its server does not say how long it would.
IDLE_SECONDS = 4.0
MOST_IDLE_SECONDS = 60.0

_TIMEOUT = re.compile(rb"(?:^|[,;\s])timeout=([0-9]{1,6})")


class Connection(asyncio.Protocol):
    """Tells `on_free` when it can be used again, and `on_gone` when it never can."""

    def __init__(
        self, host: str, on_free: Callable[[Connection], None], on_gone: Callable[[Connection], None]
    ) -> None:
        self.used = 0
        """Exchanges so far."""
        self.idle_until = 0.0
        self._host = host
        self._on_free = on_free
        self._on_gone = on_gone
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._gone = False

    def ask(self, method: str, data: bytes) -> Exchange:
        """Sends a whole request; its answer is told to the exchange."""
        assert self._transport is not None
        assert self._exchange is None
        self.used += 1
        self._exchange = exchange = Exchange(self._host, method, self._read_more)
        if self._transport.is_closing():
            self._lost()
        else:
            self._transport.write(data)
        return exchange

    def abandon(self, exchange: Exchange) -> None:
        """Nobody waits for it any more. What is under way is cut off; a later exchange is not."""
        if self._exchange is exchange:
            exchange.fail("closed", "was not waited for")
            self.abort()

    def abort(self) -> None:
        self._gone = True
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_usable(self) -> bool:
        return not self._gone and self._transport is not None and not self._transport.is_closing()

    def _read_more(self, more: bool) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading() if more else self._transport.pause_reading()

    # --- what the loop tells ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:
            # An answer that nobody asked for would be taken for that to the next request.
            self.abort()
            return
        exchange.feed(data)
        if exchange.complete or exchange.error is not None:
            self._finish(exchange)

    def eof_received(self) -> bool:
        self._lost()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()
        self._transport = None
        self._on_gone(self)

    def _lost(self) -> None:
        self._gone = True
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.end()

    def _finish(self, exchange: Exchange) -> None:
        self._exchange = None
        assert self._transport is not None
        # One that has answered before it was told everything still has the rest to come.
        if not exchange.reusable or self._transport.get_write_buffer_size() > 0 or self._gone:
            self.abort()
            return
        # The exchange may have had it paused; the end of the connection has to be noticed.
        self._transport.resume_reading()
        self.idle_until = asyncio.get_running_loop().time() + _patience(exchange)
        self._on_free(self)


def _patience(exchange: Exchange) -> float:
    """A little less than the server's, so that it does not hang up on the next request."""
    hint = next((value for name, value in exchange.headers if name == b"keep-alive"), b"")
    found = _TIMEOUT.search(hint.lower())
    if found is None:
        return IDLE_SECONDS
    return min(max(int(found[1]) - 1.0, 0.0), MOST_IDLE_SECONDS)
