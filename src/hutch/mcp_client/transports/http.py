"""HTTP transports: the SDK's streamable HTTP and SSE, with limits on responses and better error messages."""

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

from hutch.mcp_client.config import HttpConfig
from hutch.mcp_client.oauth import requests as oauth_requests
from hutch.mcp_client.transports.long_messages import BodyStream, EventStream, LongResults
from hutch.telemetry.trace_context import current
from hutch.text import printable

SESSION_NOT_FOUND = "the server has forgotten the session"
MAX_ERROR_BYTES = 16 * 1024
WRITE_SECONDS = 60.0

# Silence the SDK's tracebacks in the log, because Hutch reports these errors itself.
for _name in ("mcp.client.streamable_http", "mcp.client.sse", "mcp.client.auth", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@cache
def _ssl_context() -> ssl.SSLContext:
    """Returns the TLS context. Cached, because loading takes 30 ms and a user may have many servers."""
    return httpx2.create_ssl_context()


@asynccontextmanager
async def connect(
    config: HttpConfig,
    protocol: Literal["http", "sse"],
    *,
    auth: httpx2.Auth | None,
    max_message_bytes: int,
    connect_seconds: float,
    results: LongResults,
    on_post_answered: Callable[[int, str], None],
) -> AsyncIterator[Any]:
    """Connects and yields the SDK's pair of streams. `results` restores the results of messages in these
    streams. `on_post_answered` is called with the status code and the status line of the answer to a POST
    over SSE.
    """
    own_auth = auth
    on_sse_post = on_post_answered if protocol == "sse" else None
    inspect = partial(_inspect_response, config, max_message_bytes, results, on_sse_post)

    def client(headers: object = None, timeout: object = None, auth: object = None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            # Accept no compression, because a small response could expand to a large one.
            headers={**config.headers, "accept-encoding": "identity"},
            auth=own_auth,
            verify=_ssl_context(),
            # Set no read timeout, because calls have their own timeout.
            timeout=httpx2.Timeout(connect=connect_seconds, read=None, write=WRITE_SECONDS, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=16),
            event_hooks={"request": [partial(_check_request, config)], "response": [inspect]},
        )

    if protocol == "sse":
        async with sse_client(config.url, httpx_client_factory=client) as pair:
            yield pair
    else:
        async with (
            client() as http_client,
            streamable_http_client(
                config.url, http_client=http_client, max_sse_event_size=max_message_bytes
            ) as streams,
        ):
            yield streams


async def _check_request(config: HttpConfig, request: httpx2.Request) -> None:
    if oauth_requests.is_marked(request):
        await oauth_requests.check_url(config.url, str(request.url))
    elif (trace := current.get()) is not None and request.url.host == httpx2.URL(config.url).host:
        request.headers.update(trace.headers)


async def _inspect_response(
    config: HttpConfig,
    max_message_bytes: int,
    results: LongResults,
    on_sse_post: Callable[[int, str], None] | None,
    response: httpx2.Response,
) -> None:
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        response.stream = _FailingStream(response.stream, f"the response is compressed ({encoding})")
    elif oauth_requests.is_marked(response.request):
        response.stream = BodyStream(response.stream, oauth_requests.MAX_RESPONSE_BYTES, None)
    elif on_sse_post is not None and response.request.method == "POST":
        on_sse_post(response.status_code, status_line(response))
    elif response.status_code >= 400 and response.request.method == "POST":
        if response.request.url == httpx2.URL(config.url):
            await _replace_error_body(response)
    elif response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = EventStream(response.stream, max_message_bytes, results)
    else:
        response.stream = BodyStream(response.stream, max_message_bytes, results)


def status_line(response: httpx2.Response) -> str:
    return printable(f"HTTP {response.status_code} {response.reason_phrase}").strip()


async def _replace_error_body(response: httpx2.Response) -> None:
    """Replaces the body of an HTTP error with a JSON-RPC error that has a message. Otherwise the SDK would
    only report that there was an error.
    """
    body = bytearray()
    async for part in response.stream:  # type: ignore[union-attr]
        body += part[: MAX_ERROR_BYTES - len(body)]
        if len(body) >= MAX_ERROR_BYTES:
            break
    try:
        decoded: Any = msgspec.json.decode(bytes(body))
    except (ValueError, RecursionError):
        decoded = None
    is_jsonrpc = (
        isinstance(decoded, dict)
        and decoded.get("jsonrpc") == "2.0"
        and isinstance(decoded.get("error"), dict)
    )
    if response.status_code == 404 and "mcp-session-id" in response.request.headers:
        text = _jsonrpc_error(response, SESSION_NOT_FOUND)
    else:
        text = bytes(body) if is_jsonrpc else _jsonrpc_error(response, _error_text(response, decoded, body))
    response.stream = _FixedStream(text, response.stream)
    response.headers["content-type"] = "application/json"
    for name in ("content-length", "transfer-encoding"):
        response.headers.pop(name, None)


def _error_text(response: httpx2.Response, decoded: Any, body: bytearray) -> str:
    """Returns the status line, followed by the server's error message if there is a short one."""
    message = ""
    if isinstance(decoded, dict):
        texts = (decoded.get(key) for key in ("error_description", "message", "detail", "error"))
        message = next((value for value in texts if isinstance(value, str)), "")
    elif response.headers.get("content-type", "").startswith("text/plain"):
        message = body.decode(errors="replace")
    message = printable(" ".join(message.split())[:200])
    return f"{status_line(response)}: {message}" if message else status_line(response)


def _jsonrpc_error(response: httpx2.Response, message: str) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": message, "data": {"status": response.status_code}}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})


class _FailingStream(httpx2.AsyncByteStream):
    """Body of a response that raises an error when it is read. So only this response fails, and the
    connection stays intact.
    """

    def __init__(self, stream: Any, reason: str) -> None:
        self._stream = stream
        self._reason = reason

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise httpx2.StreamError(self._reason)

    async def aclose(self) -> None:
        await self._stream.aclose()


class _FixedStream(httpx2.AsyncByteStream):
    def __init__(self, data: bytes, stream: Any) -> None:
        self._data = data
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data

    async def aclose(self) -> None:
        await self._stream.aclose()
