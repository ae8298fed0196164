"""Decodes long messages of HTTP servers in pieces.

The SDK decodes a whole message in one step: 8 MB of quotes would stall the event loop for 40 to 80 ms. So the
SDK gets a short message with a reference in place of the result.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import msgspec
from mcp.types import PARSE_ERROR

from hutch.session.json_value import MAX_DEPTH, ExcessiveJson, NotJsonSafe, encode_decoded_value
from hutch.session.large_json import LARGE_TEXT_BYTES, decode_large_value
from hutch.strict_json import find_excess

TOO_LARGE = "the response is larger than"
# Message of the SDK for an oversized event.
SSE_TOO_LARGE = "Server-sent event exceeded"
MAX_SDK_VALUES = 50_000
"""Maximum number of values in a message that the SDK validates. It validates a message in one step: 100,000
values take 60 ms.
"""
MAX_EVENT_LINES = 10_000
MAX_REFERENCES = 16
_REFERENCE = "hutch/reference"
_EXCESS = f"{TOO_LARGE} {MAX_SDK_VALUES} values or {MAX_DEPTH} levels"

# The id is near the start of a response, `{"jsonrpc":"2.0","id":7,…`, or at its end,
# `…,"jsonrpc":"2.0","id":7}`. The pattern matches all ids that this client uses.
VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID = rb'"id"\s*:\s*(\d{1,20}|"[ +\w]{1,20}")'
ID_FIRST = re.compile(rb"\s*\{\s*(?:" + VERSION + rb"\s*,\s*)?" + _ID + rb"\s*[,}]\s*")
ID_LAST = re.compile(rb",\s*" + _ID + rb"\s*(?:,\s*" + VERSION + rb"\s*)?\}\s*$")
_MAX_TAIL_BYTES = 256

# An empty line ends a server-sent event.
_EVENT_END = re.compile(rb"\n\r?\n|\r\r")
_EVENT_END_BYTES = 3


def response_id(line: bytes) -> int | str | None:
    """Returns the id in a long response without decoding it, or None if it is neither at the start nor at the
    end.
    """
    match = ID_FIRST.match(line) or ID_LAST.search(line, len(line) - _MAX_TAIL_BYTES)
    return None if match is None else msgspec.json.decode(match[1])


class LongResults:
    """Decoded results of the long messages of one connection. `restore` puts each result into the message
    that the SDK has read.
    """

    def __init__(self) -> None:
        self._results: dict[str, dict[str, Any]] = {}

    async def shorten(self, text: bytes) -> bytes:
        """Returns a short JSON text of a message for the SDK. If a message is too large or malformed, returns
        an error response to its request instead. Raises StreamError if the id of the request cannot be read.
        """
        if len(text) <= LARGE_TEXT_BYTES:
            if find_excess(text, MAX_DEPTH, MAX_SDK_VALUES) is not None:
                raise httpx2.StreamError(_EXCESS)
            return text
        try:
            message = await decode_large_value(text, MAX_SDK_VALUES)
        except NotJsonSafe as problem:
            is_excess = isinstance(problem, ExcessiveJson)
            reason = _EXCESS if is_excess else f"the result is not valid MCP: {problem}"
            if (id := response_id(text)) is None:
                raise httpx2.StreamError(reason) from None
            error = {"code": PARSE_ERROR, "message": reason}
            return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "error": error})
        if not isinstance(message, dict):
            raise httpx2.StreamError("the response is not valid JSON-RPC")
        return encode_decoded_value(self._shorten(message))

    def _shorten(self, message: dict[str, Any]) -> dict[str, Any]:
        """Returns a copy of the message that has only the fields that the SDK needs to accept or refuse the
        message. The copy also leaves out long values of these fields.
        """
        short: dict[str, Any] = {
            name: value
            for name in ("jsonrpc", "id", "method")
            if isinstance(value := message.get(name), int) or (isinstance(value, str) and len(value) < 100)
        }
        result, error = message.get("result"), message.get("error")
        if isinstance(result, dict):
            # A server must not be able to name the result of another request, so the reference is a random
            # value.
            reference = os.urandom(16).hex()
            # The SDK passes on each message immediately. So if there are many results, the oldest belong to
            # messages that the SDK has refused.
            while len(self._results) >= MAX_REFERENCES:
                del self._results[next(iter(self._results))]
            self._results[reference] = result
            short["result"] = {_REFERENCE: reference}
        elif isinstance(error, dict):
            text = error.get("message")
            message_text = text[:1_000] if isinstance(text, str) else None
            short["error"] = {"code": error.get("code"), "message": message_text}
        return short

    def restore(self, result: dict[str, Any]) -> dict[str, Any]:
        """Returns the result of a shortened message. Returns any other result unchanged."""
        reference = result.get(_REFERENCE)
        return self._results.pop(reference, result) if isinstance(reference, str) else result


class BodyStream(httpx2.AsyncByteStream):
    """Body of a response that is one message."""

    def __init__(self, stream: Any, max_message_bytes: int, results: LongResults | None) -> None:
        """Without `results`, only the size of the message is limited."""
        self._stream = stream
        self._max_message_bytes = max_message_bytes
        self._results = results

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for part in self._stream:
            body += part
            if len(body) > self._max_message_bytes:
                raise httpx2.StreamError(f"{TOO_LARGE} {self._max_message_bytes} bytes")
        yield bytes(body) if self._results is None else await self._results.shorten(bytes(body))

    async def aclose(self) -> None:
        await self._stream.aclose()


class EventStream(httpx2.AsyncByteStream):
    """Body of a response that consists of server-sent events with one message each."""

    def __init__(self, stream: Any, max_message_bytes: int, results: LongResults) -> None:
        self._stream = stream
        self._max_message_bytes = max_message_bytes
        self._results = results

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for part in self._stream:
            searched = max(0, len(rest) - _EVENT_END_BYTES)
            rest += part
            while end := _events_end(rest, searched):
                with memoryview(rest) as view:
                    events = bytes(view[:end])
                del rest[:end]
                searched = 0
                yield events if end <= LARGE_TEXT_BYTES else await self._shorten(events)
            if len(rest) > self._max_message_bytes:
                raise httpx2.SSEError(f"{SSE_TOO_LARGE} {self._max_message_bytes} bytes")
        yield bytes(rest) if len(rest) <= LARGE_TEXT_BYTES else await self._shorten(bytes(rest))

    async def _shorten(self, event: bytes) -> bytes:
        """Returns the event with a shorter message."""
        # Each of these steps takes 2 to 12 ms for 8 MB. A regular expression would take 80 ms.
        await asyncio.sleep(0)
        lines = event.split(b"\n", MAX_EVENT_LINES)
        await asyncio.sleep(0)
        # Split again if a line ends with a carriage return alone, which is allowed.
        if any(b"\r" in line[:-1] for line in lines):
            lines = event.replace(b"\r", b"\n").split(b"\n", MAX_EVENT_LINES)
        if len(lines) > MAX_EVENT_LINES:
            raise httpx2.SSEError(f"{SSE_TOO_LARGE} {MAX_EVENT_LINES} lines")
        await asyncio.sleep(0)
        data = b"\n".join(line[5:] for line in lines if line.startswith(b"data:"))
        await asyncio.sleep(0)
        message = await self._results.shorten(data)
        others = [
            line.rstrip() for line in lines if line.startswith((b"event:", b"id:")) and len(line) < 1_000
        ]
        return b"\n".join([*others, b"data:" + message, b"", b""])

    async def aclose(self) -> None:
        await self._stream.aclose()


def _events_end(text: bytearray, searched: int) -> int:
    """Returns the end offset of the complete events in a short text, or of the first event in a long text.
    Returns 0 if no event is complete.
    """
    if len(text) <= LARGE_TEXT_BYTES:
        return max(
            at + len(end) if (at := text.rfind(end)) >= 0 else 0 for end in (b"\n\n", b"\n\r\n", b"\r\r")
        )
    match = _EVENT_END.search(text, searched)
    return 0 if match is None else match.end()
