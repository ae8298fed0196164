"""What a wrapper's `fetch` calls: the broker as three tools, `send`, `read` and `drop`.

A response has the number that the guest gave its request. Its first part goes along with its head, so that
most take one call; and what the guest does not read stays here, for whoever is given the response.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from hutch.egress.broker import Fetching
from hutch.egress.fetch import FetchError, Headers, Request
from hutch.egress.reply import Reply
from hutch.errors import ToolError
from hutch.session.providers import Provider
from hutch.session.tools import Tool, ToolContext

INLINE_BYTES = 256 * 1024
PART_BYTES = 256 * 1024
# Of all responses of a run together, for the one that it may return unread.
KEPT_BYTES = 4 * 1024 * 1024
# What is meant to be read as it comes is not waited for.
_AS_IT_COMES = ("text/event-stream", "application/x-ndjson", "application/stream+json")

T = TypeVar("T")


class _Body(msgspec.Struct):
    text: str | None = None
    base64: str | None = None

    def data(self) -> bytes:
        if self.text is not None:
            return self.text.encode("utf-8", "replace")
        try:
            return base64.b64decode(self.base64 or "", validate=True)
        except (binascii.Error, ValueError):
            raise ToolError("send: the body is no base64", "validation_error") from None


class _Send(msgspec.Struct):
    id: int
    method: str
    url: str
    headers: list[tuple[str, str]]
    redirect: Literal["follow", "manual", "error"]
    body: _Body | None = None


class _One(msgspec.Struct):
    id: int


class _Taken:
    """A response on its way to the guest."""

    def __init__(self, reply: Reply) -> None:
        self.reply = reply
        self.first = b""
        self.fault: FetchError | None = None
        """What went wrong after the head: it is told to whoever reads on."""
        self.reading = False


class Last(msgspec.Struct):
    """The response that came last, for those wrappers that throw what they got away."""

    status: int
    reason: str
    headers: Headers


class Upstream:
    """One run's way to other people's servers."""

    def __init__(self, fetching: Fetching) -> None:
        self.last: Last | None = None
        self.fault: FetchError | None = None
        """The failure that came last."""
        self._fetching = fetching
        self._taken: dict[int, _Taken] = {}
        self._sending: dict[int, asyncio.Task[Any] | None] = {}
        self._kept = 0

    def provider(self) -> Provider:
        tools: dict[str, Callable[[Any], Awaitable[bytes]]] = {
            "send": self._send,
            "read": self._read,
            "drop": self._drop,
        }
        return Provider("upstream", {name: Tool(name, partial(_call, do)) for name, do in tools.items()})

    async def body(self, number: int) -> bytes:
        """The whole body of a response that the guest left unread. Raises FetchError."""
        taken = self._taken.get(number)
        if taken is None or taken.reading:
            raise FetchError("closed", "The wrapper returned a response whose body is gone.")
        parts = [taken.first]
        if taken.fault is not None:
            raise taken.fault
        while not taken.reply.ended:
            parts.append(await taken.reply.read(PART_BYTES))
        return b"".join(parts)

    # --- the tools ---

    async def _send(self, input: Any) -> bytes:
        asked = _read_as(_Send, input, "send")
        if asked.id in self._taken or asked.id in self._sending:
            raise ToolError("send: there is such a request already", "validation_error")
        body = None if asked.body is None else asked.body.data()
        request = Request(
            method=asked.method, url=asked.url, headers=asked.headers, body=body, redirect=asked.redirect
        )
        self._sending[asked.id] = asyncio.current_task()
        try:
            reply = await self._fetching.send(request)
            self.last = Last(reply.status, reply.reason, reply.headers)
            self.fault = None
            taken = self._taken[asked.id] = _Taken(reply)
            await _read_first(taken)
        except FetchError as error:
            self.fault = error
            return msgspec.json.encode({"error": error.message})
        finally:
            self._sending.pop(asked.id, None)
        self.fault = taken.fault
        first = taken.first
        self._kept += len(first)
        kept = self._kept <= KEPT_BYTES
        if not kept:
            taken.first = b""
        head = {
            "status": reply.status,
            "statusText": reply.reason,
            "url": reply.url,
            "redirected": reply.redirected,
            "headers": reply.headers,
            "kept": kept,
        }
        return msgspec.json.encode({**head, **_part(first), "last": _is_last(taken)})

    async def _read(self, input: Any) -> bytes:
        taken = self._taken.get(_read_as(_One, input, "read").id)
        if taken is None or taken.reading:
            raise ToolError("read: there is no such response, or it is being read", "validation_error")
        taken.reading = True
        try:
            if taken.fault is not None:
                raise taken.fault
            part = b"" if taken.reply.ended else await taken.reply.read(PART_BYTES)
        except FetchError as error:
            self.fault = taken.fault = error
            return msgspec.json.encode({"error": error.message})
        finally:
            taken.reading = False
        taken.first = b""
        return msgspec.json.encode({**_part(part), "last": taken.reply.ended})

    async def _drop(self, input: Any) -> bytes:
        """Nobody waits for it any more."""
        number = _read_as(_One, input, "drop").id
        task = self._sending.get(number)
        if task is not None:
            task.cancel()
        if (taken := self._taken.get(number)) is not None:
            taken.reply.close()
        return b"null"


async def _call(do: Callable[[Any], Awaitable[bytes]], input: Any, _: ToolContext) -> bytes:
    return await do(input)


async def _read_first(taken: _Taken) -> None:
    """Up to what goes along with the head; a failure is for whoever reads on."""
    reply = taken.reply
    kind = next((value for name, value in reply.headers if name == "content-type"), "")
    if kind.partition(";")[0].strip().lower() in _AS_IT_COMES:
        return
    parts: list[bytes] = []
    room = INLINE_BYTES
    try:
        while room > 0 and not reply.ended:
            parts.append(await reply.read(room))
            room -= len(parts[-1])
    except FetchError as error:
        taken.fault = error
    taken.first = b"".join(parts)


def _is_last(taken: _Taken) -> bool:
    return taken.reply.ended and taken.fault is None


def _part(data: bytes) -> dict[str, str]:
    """As text where it is text, which is less to write and nothing to decode."""
    if not data:
        return {}
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _read_as(kind: type[T], input: Any, tool: str) -> T:
    try:
        return msgspec.convert(input, kind)
    except msgspec.ValidationError as error:
        raise ToolError(f"{tool}: {error}", "validation_error") from None
