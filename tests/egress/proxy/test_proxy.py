from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import websockets
from tests.egress.servers import (
    LOCAL,
    echo,
    echo_http,
    exchange,
    open_connection,
    open_tunnel,
    run_proxy,
    run_server,
)
from tests.support.waiting import eventually

from hutch.egress import resolver
from hutch.egress.policy import EgressPolicy
from hutch.egress.proxy import forwarding
from hutch.egress.proxy import proxy as proxy_module
from hutch.egress.proxy.proxy import EgressProxy


@pytest.fixture
async def proxy_and_port(anyio_backend: object) -> AsyncIterator[tuple[EgressProxy, int]]:
    async with run_proxy() as made:
        yield made


def silent(*_: object) -> asyncio.Future[None]:
    """Handler of a server that neither reads nor writes."""
    return asyncio.get_running_loop().create_future()


async def settled(proxy: EgressProxy, connections: int = 0) -> None:
    await eventually(lambda: proxy.connections == connections)


async def test_tunnel_forwards_both_ways_and_counts_bytes(proxy_and_port: tuple[EgressProxy, int]) -> None:
    proxy, port = proxy_and_port
    async with run_server(echo) as target, open_tunnel(port, f"127.0.0.1:{target}") as (reader, writer):
        for word in (b"one", b"two", b"x" * 1_000_000):
            writer.write(word)
            assert await reader.readexactly(len(word)) == word
    assert proxy.sent_bytes == proxy.received_bytes == 1_000_006


async def test_data_sent_with_the_connect_request_is_forwarded(
    proxy_and_port: tuple[EgressProxy, int],
) -> None:
    async with run_server(echo) as target, open_connection(proxy_and_port[1]) as (reader, writer):
        writer.write(b"CONNECT localhost:%d HTTP/1.1\r\n\r\nearly" % target)
        writer.write_eof()
        assert (await reader.read()).endswith(b"\r\n\r\nearly")


async def test_server_may_send_first(proxy_and_port: tuple[EgressProxy, int]) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello")
        await silent()

    async with (
        run_server(greet) as target,
        open_tunnel(proxy_and_port[1], f"127.0.0.1:{target}") as (reader, _),
    ):
        assert await reader.readexactly(9) == b"220 hello"


async def test_tunnel_can_be_half_closed_from_either_side(proxy_and_port: tuple[EgressProxy, int]) -> None:
    async def after_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(b"heard " + data)

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        received.set_result(await reader.read())

    received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    async with (
        run_server(after_end) as target,
        open_tunnel(proxy_and_port[1], f"127.0.0.1:{target}") as (reader, writer),
    ):
        writer.write(b"this")
        writer.write_eof()
        assert await reader.read() == b"heard this"
    async with (
        run_server(end_first) as target,
        open_tunnel(proxy_and_port[1], f"127.0.0.1:{target}") as (reader, writer),
    ):
        assert await reader.read() == b"bye"
        writer.write(b"and more")
        writer.write_eof()
        assert await received == b"and more"
    await settled(proxy_and_port[0])


async def test_reset_by_the_server_does_not_look_like_a_regular_end(
    proxy_and_port: tuple[EgressProxy, int],
) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()

    async with (
        run_server(break_off) as target,
        open_tunnel(proxy_and_port[1], f"127.0.0.1:{target}") as (reader, writer),
    ):
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_unread_data_is_not_buffered(proxy_and_port: tuple[EgressProxy, int], direction: str) -> None:
    """The proxy buffers less than a megabyte, even if one side sends more."""
    chunk = b"x" * 65536
    written = 0

    async def flood(writer: asyncio.StreamWriter) -> None:
        nonlocal written
        while True:
            writer.write(chunk)
            await writer.drain()
            written += len(chunk)

    async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (flood(writer) if direction == "down" else silent())

    async with (
        run_server(handle) as target,
        open_tunnel(proxy_and_port[1], f"127.0.0.1:{target}") as (_, writer),
    ):
        writing = asyncio.ensure_future(flood(writer) if direction == "up" else silent())
        before = -1
        # Wait until no more data is transferred. Then the buffers of the proxy and of the receiver are full.
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        (client,) = proxy_and_port[0]._clients
        ends = (client, client._server)
        assert sum(end.transport.get_write_buffer_size() for end in ends if end and end.transport) < 1 << 20
        writing.cancel()


async def test_request_is_forwarded_with_its_body(proxy_and_port: tuple[EgressProxy, int]) -> None:
    async with run_server(echo_http) as target:
        answer = await exchange(
            proxy_and_port[1],
            f"POST http://localhost:{target}/path?q HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        )
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nPOST /path?q abc")


async def test_one_connection_carries_one_request(proxy_and_port: tuple[EgressProxy, int]) -> None:
    """A second request on the connection may be for another server. The proxy must not send this request to
    the first server.
    """
    received = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                received.extend(await reader.read())

    async with run_server(listen) as target:
        first = f"GET http://127.0.0.1:{target}/1 HTTP/1.1\r\n\r\n"
        answer = await exchange(proxy_and_port[1], first + "GET http://other.example/2 HTTP/1.1\r\n\r\n")
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    assert received.count(b"HTTP/1.1") == 1


async def test_chunked_body_is_forwarded_and_aborted_at_an_invalid_chunk(
    proxy_and_port: tuple[EgressProxy, int],
) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)

    async with run_server(listen) as target:
        head = f"POST http://127.0.0.1:{target}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await exchange(proxy_and_port[1], head + "3\r\nabc\r\n0\r\n\r\n")).endswith(
            b"3\r\nabc\r\n0\r\n\r\n"
        )
        with pytest.raises(ConnectionResetError):
            await exchange(proxy_and_port[1], head + "3\r\nabcdef\r\n0\r\n\r\n")


async def test_interim_responses_are_forwarded(proxy_and_port: tuple[EgressProxy, int]) -> None:
    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + await reader.readexactly(3))

    async with run_server(go_on) as target, open_connection(proxy_and_port[1]) as (reader, writer):
        url = f"http://127.0.0.1:{target}/"
        writer.write(f"POST {url} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert await reader.read() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"


async def test_web_sockets_work_through_tunnels_and_requests(proxy_and_port: tuple[EgressProxy, int]) -> None:
    async def answer(connection: websockets.ServerConnection) -> None:
        async for text in connection:
            await connection.send(f"heard {text!s}")

    async with websockets.serve(answer, "127.0.0.1", 0) as server:
        target = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{target}/"
        async with websockets.connect(url, proxy=f"http://127.0.0.1:{proxy_and_port[1]}") as client:
            await client.send("a")
            assert await client.recv() == "heard a"
        async with open_connection(proxy_and_port[1]) as (reader, writer):
            writer.write(
                f"GET http://127.0.0.1:{target}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            # Send a masked WebSocket frame with the text "a".
            writer.write(b"\x81\x81\0\0\0\0a")
            assert await reader.readexactly(9) == b"\x81\x07heard a"


async def test_refusal_is_explained_and_reported() -> None:
    refusals: list[str] = []
    expected = "10.0.0.1 is a private address; the operator can allow it with the setting egress_allow."
    async with run_proxy(EgressPolicy("public"), refusals) as (_, port):
        for request_line in ("CONNECT 10.0.0.1:443 HTTP/1.1", "GET http://0xa.1/ HTTP/1.1"):
            answer = await exchange(port, f"{request_line}\r\n\r\n")
            head, _, body = answer.decode().partition("\r\n\r\n")
            assert head.startswith("HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\n")
            assert "\r\nX-Hutch-Egress: EACCES" in head
            assert body == f"{expected}\n"
    assert refusals == [expected] * 2


async def test_every_request_is_checked() -> None:
    async with (
        run_server(echo_http) as target,
        run_proxy(EgressPolicy("public", (f"127.0.0.1:{target}",))) as (_, port),
    ):
        first = await exchange(port, f"GET http://127.0.0.1:{target}/redirect HTTP/1.1\r\n\r\n")
        assert b"\r\nLocation: http://10.0.0.1/\r\n" in first
        assert b" 403 " in await exchange(port, "GET http://10.0.0.1/ HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1", 400),
        ("GET http://a/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        ("GET http://a/ HTTP/9", 505),
        ("\x16\x03\x01", 400),
        ("GET http://a/ HTTP/1.1\r\nX: " + "x" * 70_000, 431),
        ("x" * 70_000, 431),
    ],
)
async def test_invalid_http_is_rejected(
    proxy_and_port: tuple[EgressProxy, int], head: str, status: int
) -> None:
    assert (await exchange(proxy_and_port[1], f"{head}\r\n\r\n")).startswith(f"HTTP/1.1 {status} ".encode())


async def test_refusal_arrives_while_the_request_continues(proxy_and_port: tuple[EgressProxy, int]) -> None:
    body = b"x" * 5_000_000
    head = b"POST http://10.0.0.1/ HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert b"a private address" in await exchange(proxy_and_port[1], head + body)
    await settled(proxy_and_port[0])


async def test_unreachable_server_is_bad_gateway(proxy_and_port: tuple[EgressProxy, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    answer = (await exchange(proxy_and_port[1], f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).decode()
    assert answer.startswith("HTTP/1.1 502 Bad Gateway\r\n")
    assert f"127.0.0.1:{port} cannot be reached: connection refused." in answer


async def test_unknown_name_is_bad_gateway_and_slow_lookup_is_a_timeout(
    proxy_and_port: tuple[EgressProxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await exchange(proxy_and_port[1], "GET http://no.invalid/ HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"no.invalid cannot be resolved" in answer
    monkeypatch.setattr(resolver, "RESOLVE_SECONDS", 0)
    assert (await exchange(proxy_and_port[1], "GET http://slow.invalid/ HTTP/1.1\r\n\r\n")).startswith(
        b"HTTP/1.1 504 "
    )


async def test_errors_have_the_codes_of_node(
    proxy_and_port: tuple[EgressProxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"SSH-2.0-x\r\n\r\n")

    def lookup(name: str) -> list[str]:
        number = socket.EAI_NONAME if name == "no.invalid" else socket.EAI_AGAIN
        raise socket.gaierror(number, "no address")

    monkeypatch.setattr(resolver, "lookup", lookup)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        refused = gone.getsockname()[1]
    async with run_server(reset) as resetting, run_server(close) as closing, run_server(mumble) as mumbling:
        for host, code in {
            "10.0.0.1": "EACCES",
            "no.invalid": "ENOTFOUND",
            "down.invalid": "EAI_AGAIN",
            f"127.0.0.1:{refused}": "ECONNREFUSED",
            f"127.0.0.1:{resetting}": "ECONNRESET",
            f"127.0.0.1:{closing}": "UND_ERR_SOCKET",
            f"127.0.0.1:{mumbling}": "HPE_INVALID_CONSTANT",
        }.items():
            answer = await exchange(proxy_and_port[1], f"GET http://{host}/ HTTP/1.1\r\n\r\n")
            assert f"\r\nX-Hutch-Egress: {code}\r\n".encode() in answer, host


async def test_last_failure_of_a_tunnel_is_explained_without_another_attempt(
    proxy_and_port: tuple[EgressProxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def lookup(name: str) -> list[str]:
        asked.append(name)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(resolver, "lookup", lookup)
    monkeypatch.setattr(proxy_module, "MAX_FAILURES", 2)
    port = proxy_and_port[1]
    unknown = await exchange(port, "EXPLAIN one.invalid:443 HTTP/1.1\r\n\r\n")
    assert unknown.startswith(b"HTTP/1.1 404 ")
    failed = [
        await exchange(port, f"CONNECT {name}.invalid:443 HTTP/1.1\r\n\r\n") for name in ("one", "two", "six")
    ]
    assert asked == ["one.invalid", "two.invalid", "six.invalid"]
    explained = [
        await exchange(port, f"EXPLAIN {name}.invalid:443 HTTP/1.1\r\n\r\n") for name in ("one", "two", "six")
    ]
    assert explained[0].startswith(b"HTTP/1.1 404 ")
    assert explained[1:] == failed[1:]
    assert len(asked) == 3


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1 200 OK\r\nCont", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000]
)
async def test_invalid_response_is_bad_gateway(proxy_and_port: tuple[EgressProxy, int], data: bytes) -> None:
    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(data)

    async with run_server(mumble) as target:
        answer = await exchange(proxy_and_port[1], f"GET http://127.0.0.1:{target}/ HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")


async def test_connections_are_limited_and_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "MAX_CONNECTIONS", 2)
    async with run_server(echo_http) as target, run_server(echo) as other, run_proxy() as (proxy, port):
        async with open_tunnel(port, f"127.0.0.1:{other}"), open_tunnel(port, f"127.0.0.1:{other}"):
            waiting = [
                asyncio.ensure_future(exchange(port, f"GET http://127.0.0.1:{target}/{n} HTTP/1.1\r\n\r\n"))
                for n in range(10)
            ]
            done, _ = await asyncio.wait(waiting, timeout=0.1)
            assert not done
            assert proxy.connections == 2
        answers = await asyncio.gather(*waiting)
    assert [answer.decode().split()[-2:] for answer in answers] == [["GET", f"/{n}"] for n in range(10)]


async def test_client_without_a_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "HEAD_SECONDS", 0.05)
    async with run_proxy() as (proxy, port), open_connection(port) as (reader, writer):
        writer.write(b"GET http://a/ HTTP/1.1\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await settled(proxy)


async def test_idle_tunnel_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "IDLE_SECONDS", 0.1)
    async with run_server(echo) as target, run_proxy() as (proxy, port):
        # `open_tunnel` is in this block, too. On a busy machine, the idle limit may pass before the tunnel is
        # open.
        with pytest.raises(ConnectionResetError):
            async with open_tunnel(port, f"127.0.0.1:{target}") as (reader, _):
                await reader.read()
        await settled(proxy)


async def test_disconnected_client_leaves_nothing_behind(
    proxy_and_port: tuple[EgressProxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "LINGER_SECONDS", 0.05)
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                pass
        finally:
            ended.set()

    async with run_server(wait) as target:
        for request_line in (f"CONNECT 127.0.0.1:{target}", f"GET http://127.0.0.1:{target}/"):
            async with open_connection(proxy_and_port[1]) as (_, writer):
                writer.write(f"{request_line} HTTP/1.1\r\n\r\n".encode())
                await settled(proxy_and_port[0], 1)
            await settled(proxy_and_port[0])
            await ended.wait()
            ended.clear()


def sockets() -> set[str]:
    links = (link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return {str(target) for target in links if str(target).startswith("socket:")}


async def test_close_aborts_everything_and_leaves_no_socket() -> None:
    before = sockets()
    async with run_server(echo) as target, run_proxy() as (proxy, port), contextlib.AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(open_tunnel(port, f"127.0.0.1:{target}")) for _ in range(5)]
        idle, _ = await stack.enter_async_context(open_connection(port))
        await settled(proxy, 6)
        await proxy.close()
        assert proxy.connections == 0
        for reader in (*(reader for reader, _ in ends), idle):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    await eventually(lambda: sockets() == before)


async def test_close_cancels_connection_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def resolve(*_: object) -> list[object]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    monkeypatch.setattr(proxy_module, "resolve", resolve)
    async with run_proxy() as (proxy, port), open_connection(port) as (_, writer):
        writer.write(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
        await began.wait()
        await proxy.close()
        assert ended.is_set()


async def test_proxy_settings_of_the_machine_are_ignored(
    proxy_and_port: tuple[EgressProxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with run_server(echo_http) as target:
        assert b" 200 " in await exchange(
            proxy_and_port[1], f"GET http://127.0.0.1:{target}/ HTTP/1.1\r\n\r\n"
        )


def test_local_addresses_are_allowed_only_in_these_tests() -> None:
    assert EgressPolicy("public") != LOCAL
