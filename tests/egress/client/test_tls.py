"""The HTTP client against servers with wrong certificates, hostile handshakes and truncated responses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.egress.recording_server import (
    Credentials,
    make_request,
    open_session,
    read_all,
    run_http_client,
)
from tests.egress.servers import SECONDS, run_proxy, run_server
from tests.support.network.certificates import certificates
from tests.support.stalls import LoopStalls, repeat_on_stall
from tests.support.waiting import eventually

from hutch.egress.client.client import FetchClient
from hutch.egress.client.models import FetchError, InjectedHeader
from hutch.egress.client.tls import MAX_OVERHEAD_BYTES


def server_context(certificate: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate or certificates().server)
    return context


@contextlib.contextmanager
def threaded_server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Runs a server in threads, so that its work does not count as a stall of the event loop."""

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

    def handle(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(SECONDS)
            serve(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture(params=["direct", "proxy"])
async def client(request: pytest.FixtureRequest, anyio_backend: object) -> AsyncIterator[FetchClient]:
    async with contextlib.AsyncExitStack() as stack:
        url = None
        if request.param == "proxy":
            _, port = await stack.enter_async_context(run_proxy())
            url = f"http://127.0.0.1:{port}"
        yield await stack.enter_async_context(run_http_client(proxy_url=url))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def failure(client: FetchClient, port: int, **limits: float) -> FetchError:
    credentials = Credentials(**{"127.0.0.1": [InjectedHeader("apikey", "hunter22", "c1")]})

    async def fetch() -> None:
        session = open_session(client, credentials, **limits)
        await read_all(await session.send(make_request(f"https://127.0.0.1:{port}/")))

    with pytest.raises(FetchError) as caught:
        await fetch()
    return caught.value


# --- certificates ---


@pytest.mark.parametrize("fault", sorted(certificates().bad))
async def test_bad_certificate_is_refused_before_anything_is_sent(client: FetchClient, fault: str) -> None:
    received: list[bytes] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.read())

    async with run_server(record, server_context(certificates().bad[fault])) as port:
        error = await failure(client, port)
    assert error.kind == "tls"
    assert error.message.startswith("The certificate of 127.0.0.1 is not trusted: ")
    assert b"".join(received) == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_valid_certificate_is_accepted(client: FetchClient, version: ssl.TLSVersion) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        # Make `drain` wait until the whole answer is sent, because the server closes the connection
        # afterwards.
        writer.transport.set_write_buffer_limits(0)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 3_000_000)
        await writer.drain()

    context = server_context()
    context.maximum_version = version
    async with run_server(answer, context) as port:
        response = await open_session(client).send(make_request(f"https://127.0.0.1:{port}/"))
        assert len(await read_all(response)) == 3_000_000


# --- handshakes ---


def record(kind: int, content: bytes) -> bytes:
    return struct.pack("!BHH", kind, 0x0303, len(content)) + content


HELLO_REQUESTS = record(22, b"\0" * 16_000)


@pytest.mark.parametrize(
    ("data", "repeat"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 1),
        (record(21, b"\x02\x28"), 1),
        (record(21, b"\x01\x5a"), 10_000),
        (record(22, b""), 10_000),
        (record(20, b"\x01"), 10_000),
        (record(22, b"\x02\xff\xff\xff" + b"x" * 16_000), 1_000),
        (record(22, b"\x0b\xff\xff\xff" + b"x" * 16_000), 1_000),
        (HELLO_REQUESTS, 1_000),
    ],
    ids=[
        "plain HTTP",
        "fatal alert",
        "warnings",
        "empty records",
        "change of cipher",
        "long hello",
        "long certificate",
        "hello requests",
    ],
)
async def test_invalid_handshake_fails_at_once(client: FetchClient, data: bytes, repeat: int) -> None:
    def send(connection: socket.socket) -> None:
        connection.recv(1)
        for _ in range(repeat):
            connection.sendall(data)
        while connection.recv(65536):
            pass

    with threaded_server(send) as port:
        # Count open files after the first request. The first request opens files that stay open, such as the
        # files of the event loop.
        await failure(client, port)
        before = open_files()
        assert (await failure(client, port)).kind in ("tls", "unreachable")
        await eventually(lambda: open_files() <= before)


@repeat_on_stall
async def test_endless_handshakes_do_not_block_the_event_loop() -> None:
    def flood(connection: socket.socket) -> None:
        connection.recv(1)
        while True:
            connection.sendall(HELLO_REQUESTS * 16)

    with threaded_server(flood) as port:
        async with run_http_client() as client, LoopStalls() as stalls:
            errors = await asyncio.gather(*(failure(client, port) for _ in range(8)))
    assert {error.message for error in errors} == {
        f"TLS with 127.0.0.1 failed: it sent more than {MAX_OVERHEAD_BYTES // 1024} KiB without an answer."
    }
    stalls.assert_short()


@repeat_on_stall
async def test_endless_session_tickets_end_the_connection() -> None:
    context = server_context()
    context.num_tickets = 4_000

    def flood(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            while secured.recv(65536):
                pass

    with threaded_server(flood) as port:
        async with run_http_client() as client, LoopStalls() as stalls:
            error = await failure(client, port)
    assert error.kind == "unreachable"
    stalls.assert_short()


@pytest.mark.parametrize("data", [b"", b"\x16\x03", record(22, b"\x02\0\0\x50")])
async def test_handshake_that_does_not_continue_times_out(client: FetchClient, data: bytes) -> None:
    def wait(connection: socket.socket) -> None:
        connection.recv(1)
        connection.sendall(data)
        while connection.recv(65536):
            pass

    with threaded_server(wait) as port:
        await failure(client, port, max_seconds=0.1)
        before = open_files()
        assert (await failure(client, port, max_seconds=0.1)).kind == "timeout"
        await eventually(lambda: open_files() <= before)


# --- ends of responses ---


async def test_response_cut_without_a_closure_alert_is_truncated(client: FetchClient) -> None:
    context = server_context()

    def cut(connection: socket.socket) -> None:
        secured = context.wrap_socket(connection, server_side=True)
        secured.recv(65536)
        secured.sendall(b"HTTP/1.1 200 OK\r\n\r\nhalf")
        socket.socket(fileno=secured.detach()).close()

    with threaded_server(cut) as port:
        error = await failure(client, port)
    assert error.message == "127.0.0.1 closed the connection in the middle of its answer."


async def test_response_may_end_with_a_closure_alert(client: FetchClient) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nwhole")
        await writer.drain()

    async with run_server(answer, server_context()) as port:
        response = await open_session(client).send(make_request(f"https://127.0.0.1:{port}/"))
        assert await read_all(response) == b"whole"
