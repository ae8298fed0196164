"""Response of the HTTP client: decompresses, redacts and limits the body."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from time import perf_counter
from typing import NamedTuple

from hutch.egress.addresses import Url
from hutch.egress.client.connection import ClientConnection
from hutch.egress.client.http1 import HttpExchange
from hutch.egress.client.models import FetchError, FetchErrorKind, FetchLimits, Headers, RequestLogEntry
from hutch.egress.redaction import Redactor
from hutch.tasks import TimeSlices

PIECE_BYTES = 64 * 1024
ACCEPTED_ENCODINGS = "gzip, deflate"
# Maximum number of gzip members of a body. Each member costs a copy of the data that follows it.
MAX_GZIP_MEMBERS = 1024

# Additional bytes allowed for trailers and for the framing of small chunks.
MAX_FRAMING_BYTES = 1024 * 1024

_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class ResponseHead(NamedTuple):
    """Parts of a response's head that the guest sees, with secrets redacted."""

    reason: str
    url: str
    headers: Headers


async def redact_head(exchange: HttpExchange, url: Url, redactor: Redactor) -> ResponseHead:
    texts = [exchange.reason.decode("latin-1"), str(url)]
    for name, value in exchange.headers:
        texts += (name.decode("latin-1"), value.decode("latin-1").strip(" \t"))
    reason, shown_url, *headers = await redactor.texts(texts)
    return ResponseHead(reason, shown_url, list(zip(headers[::2], headers[1::2], strict=True)))


class FetchResponse:
    def __init__(
        self,
        exchange: HttpExchange,
        connection: ClientConnection,
        entry: RequestLogEntry,
        *,
        url: Url,
        redirected: bool,
        head: ResponseHead,
        redactor: Redactor,
        limits: FetchLimits,
        started: float,
        on_end: Callable[[FetchResponse], None],
    ) -> None:
        self.status = exchange.status
        self.reason = head.reason
        self.url = head.url
        self.redirected = redirected
        self.headers = head.headers
        self.ended = False
        """True if the body was read completely or abandoned."""
        self._host = url.host
        self._exchange = exchange
        self._connection = connection
        self._entry = entry
        self._redactor = redactor
        self._stream = redactor.stream()
        self._slices = TimeSlices()
        self._decoder: BodyDecoder | None = None
        self._limits = limits
        self._deadline = started + limits.max_seconds
        self._head_time = perf_counter()
        self._on_end = on_end
        self._decoded_bytes = 0
        self._pending = b""
        self._is_over = False
        self._failure: FetchError | None = None

    async def read(self, max_bytes: int = 65536) -> bytes:
        """Returns at most `max_bytes` of the body, or empty bytes at its end. Raises FetchError."""
        if self._failure is not None:
            raise self._failure
        try:
            while not self._pending and not self._is_over:
                self._pending = await self._next()
        except FetchError as error:
            raise self._fail(error) from None
        except BadEncoding as error:
            raise self._fail(FetchError("protocol", f"The answer of {self._host}: {error}.")) from None
        except BaseException:
            # Refuse further reads, because the state is undefined after a cancellation.
            self._failure = FetchError("closed", "The response was closed.")
            self.close()
            raise
        data, self._pending = self._pending[:max_bytes], self._pending[max_bytes:]
        if self._is_over and not self._pending:
            self._end()
        return data

    def close(self) -> None:
        if not self.ended:
            self._failure = self._failure or FetchError("closed", "The response was closed.")
            self._pending = b""
            self._connection.abandon(self._exchange)
            self._end(self._failure.kind)

    async def _next(self) -> bytes:
        """Returns the next piece of the body. A piece may be empty before the end."""
        decoder = self._decoder
        if decoder is None:
            self._decoder = decoder = BodyDecoder(self._encoding())
        if piece := decoder.pull():
            self._decoded_bytes += len(piece)
            if self._decoded_bytes > self._limits.max_response_bytes:
                raise self._too_large()
            piece = await self._redact(piece)
            # Detect the end together with the last piece, so that `ended` is set immediately.
            if decoder.is_exhausted and self._exchange.is_drained:
                self._is_over = True
                decoder.finish()
                piece += self._stream.end()
            return piece
        data = await self._take()
        self._entry.received_bytes = self._exchange.received
        if not data:
            self._is_over = True
            decoder.finish()
            return self._stream.end()
        if self._exchange.received > 2 * self._limits.max_response_bytes + MAX_FRAMING_BYTES:
            raise self._too_large()
        decoder.feed(data)
        return b""

    async def _redact(self, piece: bytes) -> bytes:
        """Redacts a piece of the body. Lets other tasks run meanwhile, because redacting hostile data takes
        long.
        """
        clock, parts = asyncio.get_running_loop().time, []
        for at in range(0, len(piece), PIECE_BYTES):
            for part in self._stream.steps(piece[at : at + PIECE_BYTES]):
                parts.append(part)
                await self._slices.pause()
                if self._failure is not None:  # the response was closed during the pause
                    raise self._failure
                if clock() > self._deadline:
                    raise self._timed_out()
        return b"".join(parts)

    async def _take(self) -> bytes:
        exchange = self._exchange
        if exchange.is_ready:
            return exchange.take()
        try:
            async with asyncio.timeout_at(self._deadline):
                await exchange.wait_for_data()
        except TimeoutError:
            raise self._timed_out() from None
        return exchange.take()

    def _timed_out(self) -> FetchError:
        message = f"{self._host} did not send all of its answer within {self._limits.max_seconds:g} s."
        return FetchError("timeout", message)

    def _encoding(self) -> str:
        values = [value for name, value in self._exchange.headers if name == b"content-encoding"]
        return b",".join(values).decode("latin-1")

    def _too_large(self) -> FetchError:
        limit = self._limits.max_response_bytes
        return FetchError(
            "too_large", f"The answer of {self._host} is larger than {limit} bytes (max_fetch_bytes)."
        )

    def _fail(self, error: FetchError) -> FetchError:
        self._failure = FetchError(error.kind, self._redactor.text(error.message))
        self.close()
        return self._failure

    def _end(self, error: FetchErrorKind | None = None) -> None:
        if self.ended:
            return
        self.ended = True
        self._entry.received_bytes = self._exchange.received
        self._entry.ms += (perf_counter() - self._head_time) * 1000
        if error != "closed":
            self._entry.error = error
        self._on_end(self)


# --- decompression ---


class BadEncoding(ValueError):
    """Raised if the body does not match its Content-Encoding or the encoding is not supported."""


class BodyDecoder:
    """Decodes one body. Call `feed`, then `pull` until it returns empty bytes."""

    def __init__(self, encoding: str) -> None:
        """Creates a decoder. `encoding` is the value of Content-Encoding, or empty. Raises BadEncoding."""
        names = [
            name for part in encoding.lower().split(",") if (name := part.strip()) not in ("", "identity")
        ]
        if len(names) > 1 or (names and names[0] not in ("gzip", "x-gzip", "deflate")):
            raise BadEncoding(
                f"it is encoded as {encoding[:64]!r}, but only {ACCEPTED_ENCODINGS} was asked for"
            )
        self._decompressor: zlib._Decompress | None = None
        self._is_gzip = bool(names) and names[0] != "deflate"
        self._is_identity = not names
        self._members = 0
        self._has_more_output = False
        self._is_over = False
        self._input = b""

    def feed(self, data: bytes) -> None:
        self._input = self._input + data if self._input else data

    def pull(self) -> bytes:
        """Returns decoded data, or empty bytes if more data has to be fed. Raises BadEncoding."""
        if self._is_identity or self._is_over:
            data, self._input = self._input, b""
            # Data after the end of the compressed data is ignored, as in other clients.
            return data if self._is_identity else b""
        while self._input or self._has_more_output:
            if piece := self._inflate():
                return piece
        return b""

    @property
    def is_exhausted(self) -> bool:
        return not self._input and not self._has_more_output

    def finish(self) -> None:
        """Checks that the compressed data is complete. Call it at the end of the body. Raises BadEncoding."""
        if self._decompressor is not None:
            raise BadEncoding("the compressed data is truncated")

    def _inflate(self) -> bytes:
        decompressor = self._decompressor
        if decompressor is None:
            # Another gzip member may follow the previous one. Other data after the first member is ignored.
            if self._members and not (self._is_gzip and self._input.startswith(b"\x1f")):
                self._is_over = True
                self._input = b""
                return b""
            if self._members == MAX_GZIP_MEMBERS:
                raise BadEncoding(f"it consists of more than {MAX_GZIP_MEMBERS} compressed parts")
            self._decompressor = decompressor = zlib.decompressobj(self._window())
            self._members += 1
        try:
            piece = decompressor.decompress(self._input, PIECE_BYTES)
        except zlib.error:
            raise BadEncoding("the compressed data is invalid") from None
        self._input = decompressor.unconsumed_tail
        # zlib may consume all input before it has returned all output.
        self._has_more_output = len(piece) == PIECE_BYTES
        if decompressor.eof:
            self._input = decompressor.unused_data
            self._decompressor = None
            self._has_more_output = False
        return piece

    def _window(self) -> int:
        if self._is_gzip:
            return _GZIP_WINDOW
        # Some servers send "deflate" without the zlib wrapper (RFC 9110, section 8.4.1.2).
        wrapped = self._input[0] & 0x0F == 8 and (
            len(self._input) < 2 or int.from_bytes(self._input[:2], "big") % 31 == 0
        )
        return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
