"""Minimal HTTP client for a remote gateway.

It is used instead of a client library, because importing a library takes longer than most scripts run.
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

from hutch.egress.client.connection import ClientConnection
from hutch.egress.client.http1 import HttpExchange
from hutch.egress.client.models import FetchError
from hutch.errors import InvalidExecution

RESPONSE_SECONDS = 30.0

# Matches URLs that need no escaping in a request line.
_is_printable_ascii = re.compile(r"[!-~]+").fullmatch

RawHeaders = Iterable[tuple[bytes, bytes]]


class GatewayResponse(msgspec.Struct, frozen=True):
    """A complete response of a gateway."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class GatewayClient:
    """Client of one gateway. Reuses idle connections."""

    def __init__(self, url: str, headers: RawHeaders = ()) -> None:
        """`headers` are sent with every `get` and `post`. Raises InvalidExecution if `url` is invalid."""
        self.url = parse_gateway_url(url)
        self._prefix = self.url.path.rstrip("/")
        self._headers = [(b"host", self.url.netloc.encode()), *headers]
        self._free: list[ClientConnection] = []
        self._open: set[ClientConnection] = set()
        self._ssl: ssl.SSLContext | None = None
        self._closed = False

    @property
    def port(self) -> int:
        return self.url.port or (443 if self.url.scheme == "https" else 80)

    async def get(self, path: str) -> GatewayResponse:
        return await self._complete("GET", path, b"")

    async def post(self, path: str, value: Any) -> GatewayResponse:
        return await self._complete("POST", path, msgspec.json.encode(value))

    async def _complete(self, method: str, path: str, body: bytes) -> GatewayResponse:
        headers = [*self._headers, (b"accept", b"*/*"), (b"content-type", b"application/json")]
        try:
            async with (
                asyncio.timeout(RESPONSE_SECONDS),
                self.request(method, path, headers, body) as exchange,
            ):
                return GatewayResponse(
                    exchange.status, b"".join([part async for part in body_parts(exchange)])
                )
        except TimeoutError:
            raise FetchError("timeout", f"no response within {RESPONSE_SECONDS:g} s") from None

    @asynccontextmanager
    async def request(
        self, method: str, path: str, headers: RawHeaders, body: bytes
    ) -> AsyncIterator[HttpExchange]:
        """Sends a request. Yields when the head of the response has arrived. An unread body is discarded.
        Raises FetchError.
        """
        lines = [f"{method} {self._prefix}{path} HTTP/1.1".encode()]
        lines += [name + b": " + value for name, value in headers if name.lower() != b"content-length"]
        if body or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d" % len(body))
        connection = await self._connection()
        exchange = connection.send(method, b"\r\n".join([*lines, b"", body]))
        try:
            await exchange.wait_for_head()
            yield exchange
        finally:
            connection.abandon(exchange)

    async def _connection(self) -> ClientConnection:
        now = asyncio.get_running_loop().time()
        while self._free:
            connection = self._free.pop()
            if connection.is_usable and connection.idle_until > now:
                return connection
            connection.abort()
        if self._closed:
            raise FetchError("closed", "the client is closed")
        return await self._connect()

    async def _connect(self) -> ClientConnection:
        host = self.url.hostname or ""
        connection = ClientConnection(host, self._free.append, self._open.discard)
        ssl_context = self._ssl_context() if self.url.scheme == "https" else None
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, host, self.port, ssl=ssl_context
            )
        except ssl.SSLError as error:
            raise FetchError("tls", error.reason or str(error)) from None
        except (OSError, UnicodeError) as error:
            raise FetchError("unreachable", getattr(error, "strerror", None) or str(error)) from None
        self._open.add(connection)
        if self._closed:
            connection.abort()
        return connection

    def _ssl_context(self) -> ssl.SSLContext:
        """Loads the CA certificates on first use. This takes 50 ms and is only needed for HTTPS."""
        self._ssl = self._ssl or ssl.create_default_context()
        return self._ssl

    async def close(self) -> None:
        self._closed = True
        for connection in list(self._open):
            connection.abort()


async def body_parts(exchange: HttpExchange) -> AsyncIterator[bytes]:
    """Yields the body of a response as it arrives. Raises FetchError."""
    while not exchange.is_drained:
        await exchange.wait_for_data()
        if part := exchange.take():
            yield part


def parse_gateway_url(url: str) -> SplitResult:
    reason = "expected something like http://localhost:4111"
    try:
        parsed = urlsplit(url)
        if "@" in parsed.netloc:
            reason = "a token is set in HUTCH_API_KEY, not in the URL"
        # Accessing the port also validates it.
        elif (
            parsed.scheme in ("http", "https")
            and parsed.hostname
            and parsed.port != 0
            and _is_printable_ascii(url)
        ):
            return parsed
    except ValueError as error:
        reason = str(error)
    raise InvalidExecution("--gateway-url", f"{url!r} is not a gateway URL; {reason}")
