"""An answer as a guest gets it: decoded, scrubbed, and no larger than it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter

from hutch.egress.connection import Connection
from hutch.egress.decoding import BadEncoding, Decoder
from hutch.egress.exchange import Exchange
from hutch.egress.fetch import FetchError, FetchLimits, Headers, Hop, Kind
from hutch.egress.redaction import Redactor
from hutch.egress.urls import Url

# What framing may take besides the body: chunks of a few bytes each, and trailers.
MAX_FRAMING = 1024 * 1024


class Reply:
    """The head is there; the body is read as it comes."""

    def __init__(
        self,
        exchange: Exchange,
        connection: Connection,
        hop: Hop,
        *,
        url: Url,
        redirected: bool,
        redactor: Redactor,
        limits: FetchLimits,
        started: float,
        on_end: Callable[[Reply], None],
    ) -> None:
        self.status = exchange.status
        self.reason = redactor.text(exchange.reason.decode("latin-1"))
        self.url = redactor.text(str(url))
        self.redirected = redirected
        self.headers: Headers = redactor.headers(
            (name.decode("latin-1"), value.decode("latin-1").strip(" \t")) for name, value in exchange.headers
        )
        self.ended = False
        """Whether everything was read, or nothing more can be."""
        self._host = url.host
        self._exchange = exchange
        self._connection = connection
        self._hop = hop
        self._redactor = redactor
        self._stream = redactor.stream()
        self._decoder: Decoder | None = None
        self._limits = limits
        self._deadline = started + limits.seconds
        self._answered = perf_counter()
        self._on_end = on_end
        self._decoded = 0
        self._ready = b""
        self._over = False
        self._failure: FetchError | None = None

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Some of the body, at most so much; empty at its end. Raises FetchError."""
        if self._failure is not None:
            raise self._failure
        try:
            while not self._ready and not self._over:
                self._ready = await self._next()
        except FetchError as error:
            raise self._fail(error) from None
        except BadEncoding as error:
            raise self._fail(FetchError("protocol", f"The answer of {self._host}: {error}.")) from None
        except BaseException:
            # Cancelled: what was half-way cannot be read on.
            self._failure = FetchError("closed", "The answer is no longer read.")
            self.close()
            raise
        data, self._ready = self._ready[:max_bytes], self._ready[max_bytes:]
        if self._over and not self._ready:
            self._end()
        return data

    def close(self) -> None:
        """Nobody reads on. What is still to come is cut off."""
        if not self.ended:
            self._failure = self._failure or FetchError("closed", "The answer is no longer read.")
            self._ready = b""
            self._connection.abandon(self._exchange)
            self._end(self._failure.kind)

    async def _next(self) -> bytes:
        """The next piece, or nothing, also where that is not the end."""
        decoder = self._decoder
        if decoder is None:
            self._decoder = decoder = Decoder(self._encoding())
        if piece := decoder.pull():
            self._decoded += len(piece)
            if self._decoded > self._limits.response_bytes:
                raise self._too_large()
            piece = self._stream.feed(piece)
            # So that who reads the last of it sees at once that it was.
            if decoder.exhausted and self._exchange.drained:
                self._over = True
                decoder.finish()
                piece += self._stream.end()
            return piece
        data = await self._take()
        self._hop.received_bytes = self._exchange.received
        if not data:
            self._over = True
            decoder.finish()
            return self._stream.end()
        if self._exchange.received > 2 * self._limits.response_bytes + MAX_FRAMING:
            raise self._too_large()
        decoder.feed(data)
        return b""

    async def _take(self) -> bytes:
        exchange = self._exchange
        if exchange.ready:
            return exchange.take()
        try:
            async with asyncio.timeout_at(self._deadline):
                await exchange.more()
        except TimeoutError:
            what = f"{self._host} did not send all of its answer within {self._limits.seconds:g} s."
            raise FetchError("timeout", what) from None
        return exchange.take()

    def _encoding(self) -> str:
        values = [value for name, value in self._exchange.headers if name == b"content-encoding"]
        return b",".join(values).decode("latin-1")

    def _too_large(self) -> FetchError:
        most = self._limits.response_bytes
        return FetchError(
            "too_large", f"The answer of {self._host} is larger than {most} bytes (fetch_bytes)."
        )

    def _fail(self, error: FetchError) -> FetchError:
        self._failure = FetchError(error.kind, self._redactor.text(error.message))
        self.close()
        return self._failure

    def _end(self, error: Kind | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        self._hop.received_bytes = self._exchange.received
        self._hop.ms += (perf_counter() - self._answered) * 1000
        if error != "closed":
            self._hop.error = error
        self._on_end(self)
