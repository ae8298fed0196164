"""The HTTP protocol of `hutch serve`: pipelining, limits on input, `Host`, and refused connections."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from starlette.types import Message, Receive, Scope, Send
from tests.egress.servers import SECONDS, open_connection
from tests.hostile.processes import resident_bytes
from tests.http.server.asgi_server import serve_bounded
from tests.support.processes import ServeProcess
from tests.support.waiting import eventually

from hutch.http.server import connections, uvicorn_protocols
from hutch.http.server.connections import ConnectionLimits
from hutch.http.server.uvicorn_protocols import MAX_HELD_BYTES

MIB = 1024 * 1024


class Application:
    """Answers each request with its method, path, headers and body. Answers requests of `/slow` only after
    `go` is set.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.seen: list[Message] = []
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.disconnected = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.accept"})
            while (await receive())["type"] != "websocket.disconnect":
                pass
            return
        self.paths.append(scope["path"])
        if scope["path"] == "/early":
            await self._respond(send, b"early")
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        if scope["path"] == "/slow":
            self.started.set()
            disconnect = asyncio.create_task(receive())  # type: ignore[arg-type]
            disconnect.add_done_callback(lambda _: self.disconnected.set())
            await asyncio.wait(
                {disconnect, asyncio.create_task(self.go.wait())}, return_when=asyncio.FIRST_COMPLETED
            )
        headers = b",".join(b"%s=%s" % header for header in scope["headers"])
        await self._respond(send, b"<%s %s %s>" % (scope["path"].encode(), headers, body))

    async def _respond(self, send: Send, body: bytes) -> None:
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
async def app(anyio_backend: object) -> Application:
    return Application()


@pytest.fixture
async def port(app: Application) -> AsyncIterator[int]:
    async with serve_bounded(app) as port:
        yield port


def get(path: str = "/", *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


SLOW = get("/slow")
LAST = get("/last", "Connection: close")


async def exchange(port: int, data: bytes) -> str:
    async with open_connection(port) as (reader, writer):
        writer.write(data)
        return (await reader.read()).decode("latin-1")


def statuses(text: str) -> list[str]:
    return re.findall(r"HTTP/1\.1 (\d+)", text)


# --- pipelining ---


async def test_pipelined_requests_are_answered_in_order(port: int) -> None:
    body = "x" * 3_000
    posts = [
        f"POST /{number} HTTP/1.1\r\nHost: x\r\nContent-Length: 3000\r\n\r\n{body}" for number in range(20)
    ]
    chunked = "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n"
    data = "".join(posts).encode() + get("/between") * 500 + chunked.encode() + LAST
    text = await exchange(port, data)
    answered = re.findall(r"<(/\w+) ", text)
    assert answered == [*(f"/{number}" for number in range(20)), *["/between"] * 500, "/c", "/last"]
    assert text.count(f" {body}>") == 20
    assert " abc>" in text


async def test_later_requests_wait_unparsed_until_earlier_ones_are_answered(
    app: Application, port: int
) -> None:
    async with open_connection(port) as (reader, writer):
        writer.write(SLOW + get() * 1_000)
        await app.started.wait()
        app.go.set()
        writer.write(LAST)
        assert (await reader.read()).count(b"HTTP/1.1 200") == 1_002


def test_pipelined_requests_cost_little_memory(server: ServeProcess) -> None:
    """The client does not read the responses. It sends as much as the server reads, but at most 30 MB."""
    address = urlsplit(server.url)
    before = resident_bytes(server.process.pid)
    with socket.create_connection((address.hostname, address.port), 1) as connection:
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 30_000_000:
                sent += connection.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000)
        assert resident_bytes(server.process.pid) - before < 30 * MIB
    assert sent < 30_000_000


async def test_body_behind_an_unanswered_request_is_not_stored(app: Application, port: int) -> None:
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n"
    async with open_connection(port) as (_, writer):
        writer.write(SLOW)
        await app.started.wait()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_HELD_BYTES)
        writer.write(head + b"x" * 50 * MIB)
        # Exchange many requests with another client, so that the server has had time to read all the data.
        for _ in range(50):
            await exchange(port, LAST)
        assert writer.transport.get_write_buffer_size() > 30 * MIB


async def test_disconnect_of_a_pipelining_client_reaches_the_running_request(
    app: Application, port: int
) -> None:
    async with open_connection(port) as (_, writer):
        writer.write(SLOW + get("/never"))
        await app.started.wait()
    async with asyncio.timeout(SECONDS):
        await app.disconnected.wait()
    assert app.paths == ["/slow"]


@pytest.mark.parametrize(
    "broken",
    [
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        get("/execbox", "Connection: upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    ],
    ids=["not HTTP", "no host", "invalid chunk", "WebSocket"],
)
async def test_error_is_sent_after_the_responses_to_earlier_requests(
    app: Application, port: int, broken: bytes
) -> None:
    async with open_connection(port) as (reader, writer):
        writer.write(SLOW + get("/second") + broken)
        await app.started.wait()
        app.go.set()
        text = (await reader.read()).decode()
    assert statuses(text) == ["200", "200", "400"]
    assert app.paths == ["/slow", "/second"]


async def test_error_does_not_become_part_of_a_started_response(port: int) -> None:
    data = b"POST /early HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with open_connection(port) as (reader, writer):
        writer.write(data)
        assert (await reader.readuntil(b"early")).endswith(b"\r\n\r\nearly")
        writer.write(b"zz\r\n")
        assert statuses((await reader.read()).decode()) in ([], ["400"])


# --- input that other parsers read differently ---


AMBIGUOUS_HEADERS = [
    ["Content-Length: 1", "Content-Length: 2"],
    ["Content-Length: 1", "Content-Length: 1"],
    ["Content-Length: 1, 1"],
    ["Content-Length: +1"],
    ["Content-Length: 0x1"],
    ["Content-Length: 99999999999999999999"],
    ["Content-Length: 1", "Transfer-Encoding: chunked"],
    ["Transfer-Encoding: chunked", "Content-Length: 1"],
    ["Transfer-Encoding: chunked, identity"],
    ["Transfer-Encoding: xchunked"],
    ["Transfer-Encoding: identity"],
    ["Transfer-Encoding : chunked"],
    ["X: a", " folded"],
    ["X: a", "\tTransfer-Encoding: chunked"],
    ["X\0: a"],
    ["X: a\0b"],
    ["X: a\rb"],
    ["X y: a"],
    [": a"],
]


@pytest.mark.parametrize("lines", AMBIGUOUS_HEADERS, ids=repr)
async def test_ambiguous_request_is_refused(app: Application, port: int, lines: list[str]) -> None:
    smuggled = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    head = "\r\n".join(["POST / HTTP/1.1", "Host: localhost", *lines, "", ""])
    text = await exchange(port, f"{head}0\r\n\r\n{smuggled}".encode("latin-1"))
    assert statuses(text) == ["400"]
    assert "/smuggled" not in app.paths


INVALID_CHUNKS = [
    "zz\r\n",
    "-1\r\n",
    "0x1\r\na\r\n",
    "1\r\nab\r\n",
    "1 \r\na\r\n",
    "1\na\n",
    "1;a\nb\r\n",
    "f" * 17 + "\r\n",
    "\r\n",
]


@pytest.mark.parametrize("chunks", INVALID_CHUNKS, ids=repr)
async def test_invalid_chunk_is_refused(app: Application, port: int, chunks: str) -> None:
    head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    text = await exchange(port, f"{head}{chunks}0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert statuses(text) == ["400"]
    assert "/smuggled" not in app.paths


async def test_chunk_extensions_and_trailers_are_ignored(port: int) -> None:
    data = (
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'1;a="b"\r\nx\r\n0\r\nX-Hutch-Run: 1\r\nHost: evil.example\r\nAuthorization: Bearer a\r\n\r\n'
    )
    text = await exchange(port, data)
    assert text.endswith("</ host=localhost,transfer-encoding=chunked,connection=close x>")


async def test_number_of_headers_is_limited(port: int) -> None:
    assert statuses(await exchange(port, get("/", *["a:"] * 255, "Connection: close")))[-1] == "431"
    assert statuses(await exchange(port, get("/", *["a:"] * 200, "Connection: close"))) == ["200"]


async def test_ignored_upgrade_does_not_lose_the_next_request(app: Application, port: int) -> None:
    upgrade = get("/first", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAM")
    text = await exchange(port, upgrade + get("/second") + LAST)
    assert statuses(text) == ["200"] * 3
    assert app.paths == ["/first", "/second", "/last"]


async def test_unread_body_must_end_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
    async with open_connection(port) as (reader, writer):
        writer.write(b"POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
        await reader.readuntil(b"early")
        writer.write(b"x")
        assert await reader.read() == b""


# --- Host (RFC 9112, section 3.2; RFC 9110, section 7.2) ---


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        [""],
        ["localhost", "localhost"],
        ["localhost", "evil.example"],
        ["localhost, evil.example"],
        ["user@localhost"],
        ["user:password@localhost"],
        ["evil.example@localhost"],
        ["local host"],
        ["localhost evil.example"],
        ["localhost/"],
        ["localhost?"],
        ["localhost#"],
        ["localhost\\"],
        ["localhost.."],
        [".localhost"],
        ["."],
        ["localhost:x"],
        ["localhost:-1"],
        ["localhost:+80"],
        ["localhost:65536"],
        ["localhost:000080"],
        ["localhost:80:80"],
        ["[::1"],
        ["::1"],
        ["[::1]x"],
        ["[127.0.0.1]"],
        ["[::1%25lo]"],
        ["[vX.a]"],
        ["l\u00f6calhost"],
        ["%6cocalhost"],
    ],
    ids=repr,
)
async def test_invalid_host_is_refused(app: Application, port: int, hosts: list[str]) -> None:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    for target in ("/", "http://localhost/"):
        text = await exchange(port, f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode("latin-1"))
        assert statuses(text) == ["400"]
        assert '"code":"INVALID_REQUEST","message":"Host: expected ' in text
    assert app.paths == []


@pytest.mark.parametrize(
    "host", ["localhost.", "LOCALHOST:", "localhost:0", "a_b.example:65535", "127.0.0.1", "[::1]", "[::1]:80"]
)
async def test_valid_host_is_accepted(port: int, host: str) -> None:
    data = f"GET / HTTP/1.1\r\nHost: \t{host} \r\nConnection: close\r\n\r\n"
    assert f"</ host={host}," in await exchange(port, data.encode())


async def test_http_1_0_needs_no_host(port: int) -> None:
    assert "</  >" in await exchange(port, b"GET / HTTP/1.0\r\n\r\n")
    two = b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n"
    assert statuses(await exchange(port, two)) == ["400"]


@pytest.mark.parametrize(
    ("target", "path", "host"),
    [
        ("http://evil.example/a?b=c", "/a", "evil.example"),
        ("HTTPS://Evil.Example:1/a", "/a", "Evil.Example:1"),
        ("http://evil.example", "/", "evil.example"),
        ("http://evil.example?b", "/", "evil.example"),
    ],
)
async def test_host_of_an_absolute_url_replaces_the_header(
    port: int, target: str, path: str, host: str
) -> None:
    data = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert f"<{path} host={host},connection=close " in await exchange(port, data.encode())


@pytest.mark.parametrize(
    "target",
    [
        "http://user@localhost/",
        "http://localhost:x/",
        "http:///a",
        "http://",
        "ftp://localhost/",
        "localhost:80",
        "http:localhost",
        "a",
        "http://a\\b/",
    ],
)
async def test_invalid_target_is_refused(app: Application, port: int, target: str) -> None:
    text = await exchange(port, f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert statuses(text) == ["400"]
    assert app.paths == []


# --- limits on connections ---


async def test_idle_connections_are_closed_for_new_ones(app: Application) -> None:
    async with serve_bounded(app, ConnectionLimits(5, 5)) as port, contextlib.AsyncExitStack() as stack:
        slow_body = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        beginnings = [SLOW, b"", b"GET /", slow_body, get()]
        connections = [await stack.enter_async_context(open_connection(port)) for _ in beginnings]
        for (_, writer), beginning in zip(connections, beginnings, strict=True):
            writer.write(beginning)
        await app.started.wait()
        for _ in range(8):
            reader, writer = await stack.enter_async_context(open_connection(port))
            writer.write(get())
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        # The server has closed the idle connections, but not the connection whose request it is answering.
        for reader, _ in connections[1:4]:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        app.go.set()
        assert (await connections[0][0].readline()).startswith(b"HTTP/1.1 200")


async def test_busy_connections_are_kept_and_further_ones_refused(app: Application) -> None:
    limits = ConnectionLimits(3, 3)
    upgrade = get(
        "/",
        "Connection: upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: " + "A" * 22 + "==",
    )
    async with serve_bounded(app, limits) as port, contextlib.AsyncExitStack() as stack:
        busy = [await stack.enter_async_context(open_connection(port)) for _ in range(3)]
        for (_, writer), request in zip(busy, (upgrade, SLOW, SLOW), strict=True):
            writer.write(request)
        assert (await busy[0][0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        await eventually(lambda: app.paths == ["/slow", "/slow"])
        async with open_connection(port) as (reader, writer):
            writer.write(get())
            text = (await reader.read()).decode()
        assert statuses(text) == ["503"]
        assert "retry-after: 1" in text
        assert '"code":"BUSY"' in text
        # A closed WebSocket frees its place.
        busy[0][1].close()
        await eventually(lambda: limits.connections == 2)
        assert statuses(await exchange(port, LAST)) == ["200"]


async def test_client_that_does_not_read_can_be_closed(app: Application) -> None:
    async with serve_bounded(app, ConnectionLimits(1, 1)) as port, open_connection(port) as (_, writer):
        body = b"x" * 8 * MIB
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        writer.transport.pause_reading()
        await eventually(lambda: app.paths == ["/"])
        async with asyncio.timeout(SECONDS):
            while statuses(await exchange(port, LAST)) != ["200"]:
                pass


async def test_refused_connections_do_not_accumulate(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.http.server.connections.MAX_LINGERING", 2)
    limits = ConnectionLimits(1, 1)
    async with serve_bounded(app, limits) as port, contextlib.AsyncExitStack() as stack:
        _, writer = await stack.enter_async_context(open_connection(port))
        writer.write(SLOW)
        await app.started.wait()
        refused = [await stack.enter_async_context(open_connection(port)) for _ in range(4)]
        texts = []
        for reader, _ in refused:
            with contextlib.suppress(ConnectionError):
                texts.append(await reader.readline())
        assert sorted(texts)[-2:] == [b"HTTP/1.1 503 Service Unavailable\r\n"] * 2
        assert not any(sorted(texts)[:-2])


# --- unread bodies ---


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_client_that_sends_a_body_to_its_end_gets_an_early_response(port: int, connection: str) -> None:
    size = 20 * MIB
    async with open_connection(port) as (reader, writer):
        head = (
            f"POST /early HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\nContent-Length: {size}\r\n\r\n"
        )
        writer.write(head.encode())
        for _ in range(size // MIB):
            writer.write(bytes(MIB))
            await writer.drain()
        assert (await reader.readuntil(b"\r\n\r\nearly")).startswith(b"HTTP/1.1 200")
        if connection == "close":
            assert await reader.read() == b""


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_body_is_discarded_up_to_a_maximum(
    port: int, connection: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn_protocols, "MAX_DISCARDED_BYTES", MIB)
    async with open_connection(port) as (_, writer):
        head = f"POST /early HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n"
        writer.write(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(ConnectionError):
            await send_endlessly(writer)


async def send_endlessly(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"100000\r\n%b\r\n" % bytes(MIB))
        await writer.drain()


async def test_rest_of_a_body_must_arrive_in_time(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.1)
    async with open_connection(port) as (reader, writer):
        writer.write(b"POST /early HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 9\r\n\r\n")
        assert (await reader.read()).endswith(b"early")
