"""The HTTP transports: the SDK's streamable HTTP and SSE, over a client that bounds and explains answers."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache, partial
from typing import Any, Literal

import httpx2
import msgspec
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INTERNAL_ERROR

from hutch.upstream.entries import Endpoint

TOO_LARGE = "the answer is larger than"
# What the SDK says when one event of a stream is.
SSE_TOO_LARGE = "Server-sent event exceeded"
SESSION_GONE = "the server has forgotten the session"
REFUSAL_BYTES = 16 * 1024
WRITE_SECONDS = 60.0

# What goes wrong there ends in an error of ours; tracebacks of it in the log would only tell it twice.
for _name in ("mcp.client.streamable_http", "mcp.client.sse", "mcp.client.auth", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@cache
def _authorities() -> ssl.SSLContext:
    """Read once: it takes 30 ms, and a user may have many servers."""
    return httpx2.create_ssl_context()


@asynccontextmanager
async def connect(
    endpoint: Endpoint,
    protocol: Literal["http", "sse"],
    *,
    auth: httpx2.Auth | None,
    limit: int,
    connect_seconds: float,
    on_refused: Callable[[int, str], None],
) -> AsyncIterator[Any]:
    """The SDK's pair of streams. `on_refused` hears of the status, in words too, when SSE refuses a post."""
    ours = auth
    examine = partial(_examine, endpoint, limit, on_refused if protocol == "sse" else None)

    def client(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            # Compressed, a small answer could be a large one.
            headers={**endpoint.headers, "accept-encoding": "identity"},
            auth=ours,
            verify=_authorities(),
            # How long a call takes is bounded by who calls.
            timeout=httpx2.Timeout(connect=connect_seconds, read=None, write=WRITE_SECONDS, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=16),
            event_hooks={"response": [examine]},
        )

    if protocol == "sse":
        async with sse_client(endpoint.url, httpx_client_factory=client) as pair:
            yield pair
    else:
        async with (
            client() as made,
            streamable_http_client(endpoint.url, http_client=made, max_sse_event_size=limit) as streams,
        ):
            yield streams


async def _examine(
    endpoint: Endpoint,
    limit: int,
    on_refused: Callable[[int, str], None] | None,
    response: httpx2.Response,
) -> None:
    """Sees every answer before anybody else does, its body not yet read."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        response.stream = _Unreadable(response.stream, f"the answer is compressed ({encoding})")
    elif response.status_code >= 400 and response.request.method == "POST":
        if on_refused is not None:
            on_refused(response.status_code, status(response))
        elif response.request.url == httpx2.URL(endpoint.url):
            await _explain(response)
    elif not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _Bounded(response.stream, limit)


def status(response: httpx2.Response) -> str:
    return f"HTTP {response.status_code} {response.reason_phrase}".strip()


async def _explain(response: httpx2.Response) -> None:
    """The SDK reads errors of JSON-RPC, and of all others says only that there was one."""
    body = bytearray()
    async for part in response.stream:  # type: ignore[union-attr]
        body += part[: REFUSAL_BYTES - len(body)]
        if len(body) >= REFUSAL_BYTES:
            break
    try:
        said: Any = msgspec.json.decode(bytes(body))
    except (ValueError, RecursionError):
        said = None
    known = isinstance(said, dict) and said.get("jsonrpc") == "2.0" and isinstance(said.get("error"), dict)
    if response.status_code == 404 and "mcp-session-id" in response.request.headers:
        text = _error(response, SESSION_GONE)
    else:
        text = bytes(body) if known else _error(response, _words(response, said, body))
    response.stream = _Replaced(text, response.stream)
    response.headers["content-type"] = "application/json"
    for name in ("content-length", "transfer-encoding"):
        response.headers.pop(name, None)


def _words(response: httpx2.Response, said: Any, body: bytearray) -> str:
    """The status, with what the server said of it as far as that is short and plain."""
    words = ""
    if isinstance(said, dict):
        found = (said.get(key) for key in ("error_description", "message", "detail", "error"))
        words = next((each for each in found if isinstance(each, str)), "")
    elif response.headers.get("content-type", "").startswith("text/plain"):
        words = body.decode(errors="replace")
    words = " ".join(words.split())[:200]
    return f"{status(response)}: {words}" if words else status(response)


def _error(response: httpx2.Response, message: str) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": message, "data": {"status": response.status_code}}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})


class _Unreadable(httpx2.AsyncByteStream):
    """An error of this kind spoils one answer and leaves the connection as it is."""

    def __init__(self, stream: Any, reason: str) -> None:
        self._stream = stream
        self._reason = reason

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise httpx2.StreamError(self._reason)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, stream: Any, limit: int) -> None:
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for part in self._stream:
            size += len(part)
            if size > self._limit:
                raise httpx2.StreamError(f"{TOO_LARGE} {self._limit} bytes")
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Replaced(httpx2.AsyncByteStream):
    def __init__(self, data: bytes, stream: Any) -> None:
        self._data = data
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data

    async def aclose(self) -> None:
        await self._stream.aclose()
