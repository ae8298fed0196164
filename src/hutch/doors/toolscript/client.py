"""Asks a gateway elsewhere. Little more than a connection: a client for everything takes longer to load than
most scripts take to run.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from hutch.egress.connection import Connection
from hutch.egress.exchange import Exchange
from hutch.egress.fetch import FetchError
from hutch.errors import InvalidExecution

ANSWER_SECONDS = 30.0

# What can stand in the first line of a request as it is.
_CLEAN = re.compile(r"[!-~]+").fullmatch

RawHeaders = Iterable[tuple[bytes, bytes]]


class Answer(msgspec.Struct, frozen=True):
    """Of a gateway."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class Client:
    """Of one gateway. Connections that are free again are kept for the next request."""

    def __init__(self, url: str, headers: RawHeaders = ()) -> None:
        """`headers` go with `get` and `post`. Raises InvalidExecution."""
        self.url = checked_url(url)
        self._prefix = self.url.path.rstrip("/")
        self._headers = [(b"host", self.url.netloc.encode()), *headers]
        self._free: list[Connection] = []
        self._open: set[Connection] = set()
        self._trust: ssl.SSLContext | None = None
        self._closed = False

    @property
    def port(self) -> int:
        return self.url.port or (443 if self.url.scheme == "https" else 80)

    async def get(self, path: str) -> Answer:
        """Raises FetchError."""
        return await self._whole("GET", path, b"")

    async def post(self, path: str, value: Any) -> Answer:
        """Raises FetchError."""
        return await self._whole("POST", path, msgspec.json.encode(value))

    async def _whole(self, method: str, path: str, body: bytes) -> Answer:
        headers = [*self._headers, (b"accept", b"*/*"), (b"content-type", b"application/json")]
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self.ask(method, path, headers, body) as exchange:
                return Answer(exchange.status, b"".join([part async for part in parts(exchange)]))
        except TimeoutError:
            raise FetchError("timeout", f"no answer within {ANSWER_SECONDS:g} s") from None

    @asynccontextmanager
    async def ask(self, method: str, path: str, headers: RawHeaders, body: bytes) -> AsyncIterator[Exchange]:
        """The head of the answer is there; its body is to be read, or is cut off. Raises FetchError."""
        lines = [f"{method} {self._prefix}{path} HTTP/1.1".encode()]
        lines += [name + b": " + value for name, value in headers if name.lower() != b"content-length"]
        if body or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d" % len(body))
        connection = await self._connection()
        exchange = connection.ask(method, b"\r\n".join([*lines, b"", body]))
        try:
            await exchange.answered()
            yield exchange
        finally:
            connection.abandon(exchange)

    async def _connection(self) -> Connection:
        now = asyncio.get_running_loop().time()
        while self._free:
            kept = self._free.pop()
            if kept.is_usable and kept.idle_until > now:
                return kept
            kept.abort()
        if self._closed:
            raise FetchError("closed", "we are being closed")
        return await self._connect()

    async def _connect(self) -> Connection:
        host = self.url.hostname or ""
        made = Connection(host, self._free.append, self._open.discard)
        trust = self._trusted() if self.url.scheme == "https" else None
        try:
            await asyncio.get_running_loop().create_connection(lambda: made, host, self.port, ssl=trust)
        except ssl.SSLError as error:
            raise FetchError("tls", error.reason or str(error)) from None
        except (OSError, UnicodeError) as error:
            raise FetchError("unreachable", getattr(error, "strerror", None) or str(error)) from None
        self._open.add(made)
        if self._closed:
            made.abort()
        return made

    def _trusted(self) -> ssl.SSLContext:
        """Whom to trust takes 50 ms to read, and nobody is asked for a certificate over plain HTTP."""
        self._trust = self._trust or ssl.create_default_context()
        return self._trust

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._open):
            connection.abort()


async def parts(exchange: Exchange) -> AsyncIterator[bytes]:
    """The body of an answer as it comes. Raises FetchError."""
    while not exchange.drained:
        await exchange.more()
        if part := exchange.take():
            yield part


def checked_url(url: str) -> SplitResult:
    """Raises InvalidExecution."""
    why = "one looks like http://localhost:4111"
    try:
        parsed = urlsplit(url)
        if "@" in parsed.netloc:
            why = "a token is set in HUTCH_API_KEY, not in the URL"
        # The port is read when it is asked for.
        elif parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0 and _CLEAN(url):
            return parsed
    except ValueError as error:
        why = str(error)
    raise InvalidExecution("--gateway-url", f"{url!r} is no URL of a gateway: {why}")
