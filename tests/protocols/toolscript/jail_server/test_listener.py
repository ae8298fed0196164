"""The HTTP server of a jail, which forwards requests to a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.egress.servers import SECONDS, open_connection, run_server
from tests.http.server.asgi_server import serve_bounded
from tests.http.server.test_uvicorn_protocols import AMBIGUOUS_HEADERS, INVALID_CHUNKS

from hutch.http.server import connections
from hutch.protocols.toolscript.gateway.remote import RemoteGateway
from hutch.protocols.toolscript.jail_server import http1, listener
from hutch.protocols.toolscript.jail_server.http1 import JailRequest, JailResponse
from hutch.protocols.toolscript.jail_server.listener import JailListener


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body() + request.headers.get("x-hutch-run", "-").encode())


ECHO = Starlette(routes=[Route("/", echo, methods=["POST"])])
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n!"


class AsgiGateway:
    """Gateway that passes requests from a jail to an ASGI application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def handle(self, run_id: str | None, request: JailRequest, response: JailResponse) -> None:
        body = [request.take_body()]
        started: list[Message] = []

        async def receive() -> Message:
            if body:
                return {"type": "http.request", "body": body.pop(), "more_body": False}
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.append(message)
            elif message.get("more_body") or len(started) > 1:
                if len(started) == 1:
                    started.append(message)
                    await response.start(started[0]["status"], started[0].get("headers", []))
                await response.write(message.get("body", b""))
                if not message.get("more_body"):
                    await response.end()
            else:
                await response.send(started[0]["status"], started[0]["headers"], message.get("body", b""))

        scope = {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "raw_path": request.raw_path,
            "query_string": request.query,
            "headers": request.headers,
        }
        if not request.header(b"x-hutch-run"):
            scope["headers"] = [*request.headers, (b"x-hutch-run", (run_id or "").encode())]
        await self._app(scope, receive, send)


@contextlib.asynccontextmanager
async def jail_port(gateway: Any, run_id: str = "a run") -> AsyncIterator[int]:
    """Starts the listener of a jail. Yields the port at which a script would find the gateway."""
    listener = socket.create_server(("127.0.0.1", 0))
    jail = JailListener(listener, gateway)
    jail.run_id = run_id
    try:
        yield listener.getsockname()[1]
    finally:
        jail.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Returns whether the peer closes the connection without sending more data."""
    async with asyncio.timeout(SECONDS):
        with contextlib.suppress(ConnectionError):
            return await reader.read() == b""
    return True


Front = Callable[[], contextlib.AbstractAsyncContextManager[int]]
"""Starts a server: the listener of a jail, or uvicorn."""


@contextlib.asynccontextmanager
async def uvicorn_port() -> AsyncIterator[int]:
    """Serves ECHO with uvicorn, as `hutch serve` does. Adds the header with the id of the run to requests.
    Yields the port.
    """

    async def with_run_id(scope: Scope, receive: Receive, send: Send) -> None:
        await ECHO({**scope, "headers": [*scope["headers"], (b"x-hutch-run", b"a run")]}, receive, send)

    async with serve_bounded(with_run_id) as port:
        yield port


@pytest.fixture(params=["jail", "serve"])
def front(request: pytest.FixtureRequest) -> Front:
    if request.param == "serve":
        return uvicorn_port
    return lambda: jail_port(AsgiGateway(ECHO))


# --- HTTP/1.1 ---


async def exchange(port: int, data: bytes) -> bytes:
    """Sends data. Returns everything that arrives until the peer closes the connection."""
    async with open_connection(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(data)
        return await reader.read()


LAST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nConnection: close\r\n\r\n?"


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with jail_port(AsgiGateway(ECHO)) as port:
        data = await exchange(port, REQUEST + REQUEST + LAST)
    assert [part[:1] for part in data.split(b"\r\n\r\n")[1:]] == [b"!", b"!", b"?"]


async def test_too_many_pipelined_requests_abort_the_connection() -> None:
    async with jail_port(AsgiGateway(ECHO)) as port, open_connection(port) as (reader, writer):
        writer.write(REQUEST * (http1.MAX_PIPELINED + 2))
        assert await is_closed(reader)


async def test_connection_is_kept_alive() -> None:
    async with (
        jail_port(AsgiGateway(ECHO)) as port,
        open_connection(port) as (reader, writer),
        asyncio.timeout(SECONDS),
    ):
        for _ in range(3):
            writer.write(REQUEST)
            assert b"!a run" in await reader.readuntil(b"!a run")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"hello\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n!!", b"400"),
        (b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
    ],
    ids=["not HTTP", "upgrade", "two lengths", "no host in the URL"],
)
async def test_invalid_request_is_rejected_and_the_connection_closed(data: bytes, status: bytes) -> None:
    async with jail_port(AsgiGateway(ECHO)) as port:
        assert (await exchange(port, data)).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    "lines",
    [*AMBIGUOUS_HEADERS, *(["Transfer-Encoding: chunked", "", chunks] for chunks in INVALID_CHUNKS)],
    ids=repr,
)
async def test_ambiguous_request_is_rejected(lines: list[str]) -> None:
    asked: list[str] = []

    async def record(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        await ECHO(scope, receive, send)

    head = "\r\n".join(["POST / HTTP/1.1", "Host: x", *lines, "", ""]) + "0\r\n\r\n"
    smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    async with jail_port(AsgiGateway(record)) as port:
        assert (await exchange(port, (head + smuggled).encode("latin-1"))).startswith(b"HTTP/1.1 400")
    assert asked == []


async def test_chunked_response_is_streamed_completely() -> None:
    async def in_parts(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one ", b"", b"two"):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    async with (
        jail_port(AsgiGateway(in_parts)) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for method, expected in (("GET", "one two"), ("HEAD", ""), ("GET", "one two")):
            assert (await client.request(method, "/")).text == expected


async def test_failing_application_returns_500() -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("secret")

    async with jail_port(AsgiGateway(failing)) as port:
        data = await exchange(port, REQUEST)
    assert data.startswith(b"HTTP/1.1 500")
    assert b"secret" not in data


async def test_requests_after_a_closing_response_are_ignored() -> None:
    asked: list[str] = []

    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        raise RuntimeError("no")

    async with jail_port(AsgiGateway(failing)) as port:
        data = await exchange(port, REQUEST + REQUEST)
    assert data.count(b"HTTP/1.1 500") == 1
    assert asked == ["/"]


async def test_heads_count_towards_the_byte_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_BODY_BYTES", 10_000)
    head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:\r\n" * 100 + b"\r\n"
    async with jail_port(AsgiGateway(ECHO)) as port:
        assert (await exchange(port, head)).startswith(b"HTTP/1.1 413")


async def test_too_many_headers_are_rejected() -> None:
    head = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 300 + b"\r\n"
    async with jail_port(AsgiGateway(ECHO)) as port:
        assert (await exchange(port, head)).startswith(b"HTTP/1.1 400")


async def test_jail_that_ends_during_a_connect_is_closed() -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    address = taken.getsockname()
    jail = JailListener(taken, AsgiGateway(ECHO))
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(*address)
        jail.close()
        writer.write(REQUEST)
        assert await is_closed(reader)
        writer.close()


async def test_expect_continue_is_answered() -> None:
    async with (
        jail_port(AsgiGateway(ECHO)) as port,
        open_connection(port) as (reader, writer),
        asyncio.timeout(SECONDS),
    ):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"!")
        assert b"!a run" in await reader.readuntil(b"!a run")


# --- limits ---


async def test_connections_above_the_limit_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)
    asked: list[None] = []

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(None)
        await ECHO(scope, receive, send)

    async with (
        jail_port(AsgiGateway(counted)) as port,
        contextlib.AsyncExitStack() as stack,
        asyncio.timeout(SECONDS),
    ):
        kept = [await stack.enter_async_context(open_connection(port)) for _ in range(5)]
        for _, writer in kept:
            writer.write(REQUEST)
        for reader, _ in kept[:2]:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        # The next request of an already accepted connection is served before any waiting connection.
        kept[0][1].write(REQUEST)
        while (await kept[0][0].readline()) != b"":
            if len(asked) == 3:
                break
        for index, (reader, _) in enumerate(kept[2:]):
            assert len(asked) == 3 + index
            kept[index][1].close()
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_free_slot_is_given_to_the_next_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 1)
    async with jail_port(AsgiGateway(ECHO)) as port:
        for _ in range(3):
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                assert (await client.post("/", content=b"!")).text == "!a run"


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nX: ",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
    ],
    ids=["address", "header", "trailer"],
)
async def test_endless_head_is_cut_off(beginning: bytes, front: Front) -> None:
    async with front() as port, open_connection(port) as (reader, writer):
        writer.write(beginning)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"x" * connections.MAX_HEAD_BYTES)
                await writer.drain()
        assert await is_closed(reader)


@pytest.mark.parametrize(
    ("first", "beginning"),
    [
        (b"", b""),
        (b"", b"GET / HT"),
        (REQUEST, b"\r\n"),
        (REQUEST, b"GET / HTTP/1.1\r\nX: "),
        (REQUEST + b"G", b""),
    ],
    ids=[
        "nothing",
        "partial head",
        "line break after a request",
        "partial second head",
        "first byte with a request",
    ],
)
async def test_slow_head_is_cut_off(
    first: bytes, beginning: bytes, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    async with front() as port, open_connection(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(first)
        if first:
            assert b"!a run" in await reader.readuntil(b"!a run")
        writer.write(beginning)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""


async def test_body_and_response_may_take_longer_than_the_head_timeout(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    async with front() as port, open_connection(port) as (reader, writer), asyncio.timeout(SECONDS):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n!")
        await asyncio.sleep(0.2)
        writer.write(b"!")
        assert b"!!a run" in await reader.readuntil(b"a run")


async def test_body_does_not_count_as_head(front: Front) -> None:
    body = b"x" * (4 * connections.MAX_HEAD_BYTES)
    async with front() as port, httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for _ in range(2):
            assert (await client.post("/", content=body)).content == body + b"a run"


async def test_open_requests_of_a_jail_share_a_byte_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener, "MAX_BODY_BYTES", 100_000)
    async with (
        jail_port(AsgiGateway(ECHO)) as port,
        open_connection(port) as (_, writer),
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client,
    ):
        for _ in range(3):
            assert (await client.post("/", content=b"x" * 90_000)).status_code == 200
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n" + b"x" * 50_000)
        await writer.drain()
        async with asyncio.timeout(SECONDS):
            while (await client.post("/", content=b"x" * 90_000)).status_code != 413:
                pass
        assert (await client.post("/", content=b"x" * 40_000)).status_code == 200


# --- remote gateway ---


@contextlib.asynccontextmanager
async def remote_gateway(port: int) -> AsyncIterator[int]:
    """Yields the port at which a script would find the remote gateway."""
    gateway = RemoteGateway(f"http://127.0.0.1:{port}", None)
    try:
        async with jail_port(gateway) as near:
            yield near
    finally:
        await gateway.close()


async def test_remote_gateway_gets_the_scripts_request_and_run_id() -> None:
    async with (
        jail_port(AsgiGateway(ECHO), "another run") as remote,
        remote_gateway(remote) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert (await client.post("/", content=b"hello ")).text == "hello a run"


async def test_oversized_body_is_rejected_before_forwarding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_BODY_BYTES", 10_000)
    async with (
        remote_gateway(1) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert (await client.post("/", content=b"x" * 11_000)).status_code == 413


async def test_truncated_remote_response_is_noticed() -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")

    async with (
        run_server(break_off) as remote,
        remote_gateway(remote) as port,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get("/")


async def test_disconnecting_script_cancels_its_remote_call() -> None:
    asked, disconnected = asyncio.Event(), asyncio.Event()

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        disconnected.set()

    async with (
        jail_port(AsgiGateway(handle)) as remote,
        remote_gateway(remote) as port,
        asyncio.timeout(SECONDS),
    ):
        async with open_connection(port) as (_, writer):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await asked.wait()
        await disconnected.wait()
