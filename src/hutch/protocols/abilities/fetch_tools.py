"""Host tools for the `fetch` of a wrapper: `send`, `read` and `drop`.

The guest identifies its requests by numbers. The first part of a body is sent together with the status and
the headers, so most responses need only one call. The host keeps bodies that the guest has not read. If the
wrapper returns such a response, the host uses the kept body.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from hutch.egress.client.client import FetchSession
from hutch.egress.client.models import FetchError, FetchRequest, Headers
from hutch.egress.client.response import FetchResponse
from hutch.errors import ToolError
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import Tool, ToolContext

INLINE_BYTES = 256 * 1024
PART_BYTES = 256 * 1024
# Limit for the first parts of bodies that the host keeps after it has sent them to the guest, for all
# responses of a run together. The host needs a kept part if the wrapper returns the response without reading
# it.
MAX_KEPT_BYTES = 4 * 1024 * 1024
# Content types of streams. The host delivers a stream as it arrives, without waiting for a first part.
_STREAM_TYPES = ("text/event-stream", "application/x-ndjson", "application/stream+json")

T = TypeVar("T")


class _RequestBody(msgspec.Struct):
    text: str | None = None
    base64: str | None = None

    def data(self) -> bytes:
        if self.text is not None:
            return self.text.encode("utf-8", "replace")
        try:
            return base64.b64decode(self.base64 or "", validate=True)
        except (binascii.Error, ValueError):
            raise ToolError("send: the body is not base64", "validation_error") from None


class _SendInput(msgspec.Struct):
    id: int
    method: str
    url: str
    headers: list[tuple[str, str]]
    redirect: Literal["follow", "manual", "error"]
    body: _RequestBody | None = None


class _ResponseInput(msgspec.Struct):
    id: int


class _OpenResponse:
    """A response that the guest may still read."""

    def __init__(self, reply: FetchResponse) -> None:
        self.reply = reply
        self.first = b""
        self.error: FetchError | None = None
        """Error that occurred after the headers. It is reported when the guest continues reading."""
        self.reading = False


class LastResponse(msgspec.Struct):
    """The most recent response. If a wrapper discards a failed response and throws an error, the caller gets
    the status and the headers of this one.
    """

    status: int
    reason: str
    headers: Headers


class FetchTools:
    """Provider of the `fetch` tools for one run."""

    def __init__(self, session: FetchSession) -> None:
        self.last: LastResponse | None = None
        self.error: FetchError | None = None
        """The most recent failure of a request."""
        self._session = session
        self._responses: dict[int, _OpenResponse] = {}
        self._sending: dict[int, asyncio.Task[Any] | None] = {}
        self._kept_bytes = 0

    def provider(self) -> Provider:
        tools: dict[str, Callable[[Any], Awaitable[bytes]]] = {
            "send": self._send,
            "read": self._read,
            "drop": self._drop,
        }
        provider = Provider(
            "upstream", {name: Tool(name, partial(_call, tool)) for name, tool in tools.items()}
        )
        # Hide these tool calls in traces, because traces already show the HTTP requests that the calls send.
        provider.is_internal = True
        return provider

    async def body(self, response_id: int) -> bytes:
        """Reads the whole body of a response that the guest has not started to read. Raises FetchError."""
        response = self._responses.get(response_id)
        if response is None or response.reading:
            raise FetchError("closed", "The wrapper returned a response whose body has been read or dropped.")
        parts = [response.first]
        if response.error is not None:
            raise response.error
        while not response.reply.ended:
            parts.append(await response.reply.read(PART_BYTES))
        return b"".join(parts)

    # --- tools ---

    async def _send(self, input: Any) -> bytes:
        parsed = _parse_input(_SendInput, input, "send")
        if parsed.id in self._responses or parsed.id in self._sending:
            raise ToolError("send: this id is already used", "validation_error")
        body = None if parsed.body is None else parsed.body.data()
        request = FetchRequest(
            method=parsed.method, url=parsed.url, headers=parsed.headers, body=body, redirect=parsed.redirect
        )
        self._sending[parsed.id] = asyncio.current_task()
        try:
            reply = await self._session.send(request)
            self.last = LastResponse(reply.status, reply.reason, reply.headers)
            self.error = None
            response = self._responses[parsed.id] = _OpenResponse(reply)
            await _read_first_part(response)
        except FetchError as error:
            self.error = error
            return msgspec.json.encode({"error": error.message})
        finally:
            self._sending.pop(parsed.id, None)
        self.error = response.error
        first = response.first
        self._kept_bytes += len(first)
        kept = self._kept_bytes <= MAX_KEPT_BYTES
        if not kept:
            response.first = b""
        head = {
            "status": reply.status,
            "statusText": reply.reason,
            "url": reply.url,
            "redirected": reply.redirected,
            "headers": reply.headers,
            "kept": kept,
        }
        return msgspec.json.encode({**head, **_encode_part(first), "last": _is_complete(response)})

    async def _read(self, input: Any) -> bytes:
        response = self._responses.get(_parse_input(_ResponseInput, input, "read").id)
        if response is None or response.reading:
            raise ToolError(
                "read: there is no such response, or it is already being read", "validation_error"
            )
        response.reading = True
        try:
            if response.error is not None:
                raise response.error
            part = b"" if response.reply.ended else await response.reply.read(PART_BYTES)
        except FetchError as error:
            self.error = response.error = error
            return msgspec.json.encode({"error": error.message})
        finally:
            response.reading = False
        response.first = b""
        return msgspec.json.encode({**_encode_part(part), "last": response.reply.ended})

    async def _drop(self, input: Any) -> bytes:
        """Closes a response that the guest no longer needs, or cancels its request."""
        response_id = _parse_input(_ResponseInput, input, "drop").id
        task = self._sending.get(response_id)
        if task is not None:
            task.cancel()
        if (response := self._responses.get(response_id)) is not None:
            response.reply.close()
        return b"null"


async def _call(tool: Callable[[Any], Awaitable[bytes]], input: Any, _: ToolContext) -> bytes:
    return await tool(input)


async def _read_first_part(response: _OpenResponse) -> None:
    """Reads the part of the body that is sent with the headers. A failure is reported when the guest
    continues reading.
    """
    reply = response.reply
    content_type = next((value for name, value in reply.headers if name == "content-type"), "")
    if content_type.partition(";")[0].strip().lower() in _STREAM_TYPES:
        return
    parts: list[bytes] = []
    remaining = INLINE_BYTES
    try:
        while remaining > 0 and not reply.ended:
            parts.append(await reply.read(remaining))
            remaining -= len(parts[-1])
    except FetchError as error:
        response.error = error
    response.first = b"".join(parts)


def _is_complete(response: _OpenResponse) -> bool:
    return response.reply.ended and response.error is None


def _encode_part(data: bytes) -> dict[str, str]:
    """Encodes data as text if possible, because text is shorter than Base64 and needs no decoding."""
    if not data:
        return {}
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _parse_input(input_type: type[T], input: Any, tool: str) -> T:
    try:
        return msgspec.convert(input, input_type)
    except msgspec.ValidationError as error:
        raise ToolError(f"{tool}: {error}", "validation_error") from None
