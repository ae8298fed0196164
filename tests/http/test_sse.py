"""Server-sent events: format, headers, heartbeats, disconnects, shutdown and the buffer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp
from tests.support.processes import TIMEOUT_SECONDS

from hutch.http import sse
from hutch.http.sse import EventBuffer, encode_comment, encode_event, event_stream


class Client:
    """Receives a response in this process. The test can make the client disconnect."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self.disconnected = asyncio.Event()
        self._changed = asyncio.Event()

    async def get(self, app: ASGIApp, method: str = "GET") -> None:
        await app({"type": "http", "method": method, "headers": []}, self._receive, self._send)

    async def wait_for(self, text: bytes) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while text not in self.body:
                self._changed.clear()
                await self._changed.wait()

    async def _receive(self) -> dict[str, Any]:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message["body"]
            self.ended = not message["more_body"]
        self._changed.set()


class Events:
    """Stream of two events. The second one is sent when the test releases it."""

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.closed = asyncio.Event()

    async def stream(self) -> AsyncIterator[bytes]:
        try:
            yield encode_event("first", b"1")
            await self.released.wait()
            yield encode_event("last", b"2")
        finally:
            self.closed.set()


# --- format ---


def test_event_has_a_name_data_and_an_optional_number() -> None:
    assert encode_event("log", b'{"a":1}') == b'event: log\ndata: {"a":1}\n\n'
    assert encode_event("step", b"{}", 7) == b"id: 7\nevent: step\ndata: {}\n\n"
    assert encode_comment("still here") == b": still here\n\n"


def test_neither_data_nor_name_can_forge_an_event() -> None:
    forged = encode_event("a\r\nevent: end\n", b'[\n\n1,\r\n\r\n"\\n"\n\nevent: end]')
    assert forged == b'event: aevent: end\ndata: [  1,    "\\n"  event: end]\n\n'


# --- streams ---


async def test_stream_is_not_cached_or_buffered_by_proxies() -> None:
    client, events = Client(), Events()
    events.released.set()
    await client.get(event_stream(events.stream()))
    assert client.status == 200
    assert client.headers.items() >= {
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-store"),
        ("x-accel-buffering", "no"),
    }
    assert client.body == b"event: first\ndata: 1\n\nevent: last\ndata: 2\n\n"
    assert client.ended


async def test_head_request_gets_headers_and_starts_nothing() -> None:
    client, events = Client(), Events()
    await client.get(event_stream(events.stream()), "HEAD")
    assert (client.headers["content-type"], client.body) == ("text/event-stream; charset=utf-8", b"")
    assert client.ended


async def test_events_are_sent_at_once_with_heartbeats_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.01)
    client, events = Client(), Events()
    getting = asyncio.create_task(client.get(event_stream(events.stream())))
    await client.wait_for(b"event: first\ndata: 1\n\n: still running\n\n: still running\n\n")
    events.released.set()
    await getting
    assert client.body.endswith(b"event: last\ndata: 2\n\n")


async def test_disconnect_closes_the_events() -> None:
    client, events = Client(), Events()
    getting = asyncio.create_task(client.get(event_stream(events.stream())))
    await client.wait_for(b"first")
    client.disconnected.set()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await getting
    assert events.closed.is_set()


async def test_signal_does_not_end_a_stream_before_its_events_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a signal, sse-starlette would end all streams of the process. Hutch lets the streams finish while
    the server drains.
    """
    monkeypatch.setattr(AppStatus, "should_exit", True)
    client, events = Client(), Events()
    getting = asyncio.create_task(client.get(event_stream(events.stream())))
    await client.wait_for(b"first")
    done, _ = await asyncio.wait((getting,), timeout=0.3)
    assert not done
    events.released.set()
    await getting
    assert client.body.endswith(b"event: last\ndata: 2\n\n")


async def test_events_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client, events = Client(), Events()
    events.released.set()
    await client.get(event_stream(events.stream()))
    assert "event: first" not in caplog.text


# --- buffer ---


async def test_buffer_returns_all_events_since_the_last_call() -> None:
    buffer = EventBuffer()
    waiting = asyncio.create_task(buffer.next())
    await asyncio.sleep(0)
    buffer.add(b"a")
    buffer.add(b"b")
    assert await waiting == b"ab"
    buffer.add(b"c")
    buffer.end()
    assert await buffer.next() == b"c"
    assert await buffer.next() is None


async def test_buffer_is_limited_and_counts_dropped_events() -> None:
    buffer = EventBuffer()
    event = b"x" * 1000
    for _ in range(2_000):
        buffer.add(event)
    data = await buffer.next()
    assert data is not None
    kept = data.count(b"x") // 1000
    assert kept == sse.MAX_BUFFER_BYTES // 1000
    note = b": %d events were dropped: they came faster than they were read\n\n" % (2_000 - kept)
    assert data == event * kept + note
    buffer.add(event)
    assert await buffer.next() == event


async def test_single_event_may_exceed_the_limit() -> None:
    buffer = EventBuffer()
    large = b"x" * (2 * sse.MAX_BUFFER_BYTES)
    buffer.add(large)
    assert await buffer.next() == large
