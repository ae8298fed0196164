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
    connected,
    echo,
    exchange,
    http,
    proxied,
    serving,
    tunnelled,
)
from tests.waiting import eventually

from hutch.egress import proxy as module
from hutch.egress import resolver
from hutch.egress.policy import Policy
from hutch.egress.proxy import Proxy


@pytest.fixture
async def way(anyio_backend: object) -> AsyncIterator[tuple[Proxy, int]]:
    async with proxied() as made:
        yield made


def silent(*_: object) -> asyncio.Future[None]:
    """A server that takes connections and does nothing."""
    return asyncio.get_running_loop().create_future()


async def settled(proxy: Proxy, connections: int = 0) -> None:
    await eventually(lambda: proxy.connections == connections)


# --- tunnels ---


async def test_a_tunnel_carries_both_ways_and_counts(way: tuple[Proxy, int]) -> None:
    proxy, port = way
    async with serving(echo) as target, tunnelled(port, f"127.0.0.1:{target}") as (reader, writer):
        for word in (b"one", b"two", b"x" * 1_000_000):
            writer.write(word)
            assert await reader.readexactly(len(word)) == word
    assert proxy.sent == proxy.received == 1_000_006


async def test_what_follows_the_request_for_a_tunnel_at_once_is_carried(way: tuple[Proxy, int]) -> None:
    async with serving(echo) as target, connected(way[1]) as (reader, writer):
        writer.write(b"CONNECT localhost:%d HTTP/1.1\r\n\r\nearly" % target)
        writer.write_eof()
        assert (await reader.read()).endswith(b"\r\n\r\nearly")


async def test_a_server_that_speaks_first_is_heard_after_the_proxy(way: tuple[Proxy, int]) -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello")
        await silent()

    async with serving(greet) as target, tunnelled(way[1], f"127.0.0.1:{target}") as (reader, _):
        assert await reader.readexactly(9) == b"220 hello"


async def test_each_side_of_a_tunnel_can_end_before_the_other(way: tuple[Proxy, int]) -> None:
    async def after_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read()
        writer.write(b"heard " + said)

    async def end_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        heard.set_result(await reader.read())

    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    async with serving(after_end) as target, tunnelled(way[1], f"127.0.0.1:{target}") as (reader, writer):
        writer.write(b"this")
        writer.write_eof()
        assert await reader.read() == b"heard this"
    async with serving(end_first) as target, tunnelled(way[1], f"127.0.0.1:{target}") as (reader, writer):
        assert await reader.read() == b"bye"
        writer.write(b"and more")
        writer.write_eof()
        assert await heard == b"and more"
    await settled(way[0])


async def test_a_server_that_breaks_off_does_not_look_as_if_it_had_ended(way: tuple[Proxy, int]) -> None:
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        writer.transport.abort()

    async with serving(break_off) as target, tunnelled(way[1], f"127.0.0.1:{target}") as (reader, writer):
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_who_does_not_read_is_not_read_for(way: tuple[Proxy, int], direction: str) -> None:
    """However much one side has to say, the host keeps next to nothing of it."""
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

    async with serving(handle) as target, tunnelled(way[1], f"127.0.0.1:{target}") as (_, writer):
        writing = asyncio.ensure_future(flood(writer) if direction == "up" else silent())
        before = -1
        # Until nothing moves any more. asyncio's own reader at the end takes some, too.
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        (client,) = way[0]._clients
        ends = (client, client._server)
        assert sum(end.transport.get_write_buffer_size() for end in ends if end and end.transport) < 1 << 20
        writing.cancel()


# --- requests ---


async def test_a_request_is_passed_on_with_its_body(way: tuple[Proxy, int]) -> None:
    async with serving(http) as target:
        answer = await exchange(
            way[1], f"POST http://localhost:{target}/path?q HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc"
        )
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nPOST /path?q abc")


async def test_one_connection_carries_one_request(way: tuple[Proxy, int]) -> None:
    """A second one, for somebody else perhaps, never reaches the first one's server."""
    heard = bytearray()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                heard.extend(await reader.read())

    async with serving(listen) as target:
        first = f"GET http://127.0.0.1:{target}/1 HTTP/1.1\r\n\r\n"
        answer = await exchange(way[1], first + "GET http://other.example/2 HTTP/1.1\r\n\r\n")
    assert answer == b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
    assert heard.count(b"HTTP/1.1") == 1


async def test_a_chunked_body_is_passed_on_as_it_is_and_cut_where_it_is_wrong(way: tuple[Proxy, int]) -> None:
    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + body)

    async with serving(listen) as target:
        head = f"POST http://127.0.0.1:{target}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        assert (await exchange(way[1], head + "3\r\nabc\r\n0\r\n\r\n")).endswith(b"3\r\nabc\r\n0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            await exchange(way[1], head + "3\r\nabcdef\r\n0\r\n\r\n")


async def test_what_comes_before_the_answer_is_passed_on(way: tuple[Proxy, int]) -> None:
    async def go_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + await reader.readexactly(3))

    async with serving(go_on) as target, connected(way[1]) as (reader, writer):
        url = f"http://127.0.0.1:{target}/"
        writer.write(f"POST {url} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert await reader.read() == b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc"


async def test_web_sockets_work_through_tunnels_and_requests(way: tuple[Proxy, int]) -> None:
    async def answer(connection: websockets.ServerConnection) -> None:
        async for text in connection:
            await connection.send(f"heard {text!s}")

    async with websockets.serve(answer, "127.0.0.1", 0) as server:
        target = next(iter(server.sockets)).getsockname()[1]
        url = f"ws://127.0.0.1:{target}/"
        async with websockets.connect(url, proxy=f"http://127.0.0.1:{way[1]}") as client:
            await client.send("a")
            assert await client.recv() == "heard a"
        async with connected(way[1]) as (reader, writer):
            writer.write(
                f"GET http://127.0.0.1:{target}/ HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n".encode()
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
            # A masked text frame, "a".
            writer.write(b"\x81\x81\0\0\0\0a")
            assert await reader.readexactly(9) == b"\x81\x07heard a"


# --- refusals ---


async def test_what_is_refused_is_said_so_in_words_and_to_who_wants_to_know() -> None:
    refusals: list[str] = []
    expected = "10.0.0.1 is a private address; the operator can allow it with the setting egress_allow."
    async with proxied(Policy("public"), refusals) as (_, port):
        for asked in ("CONNECT 10.0.0.1:443 HTTP/1.1", "GET http://0xa.1/ HTTP/1.1"):
            answer = await exchange(port, f"{asked}\r\n\r\n")
            head, _, body = answer.decode().partition("\r\n\r\n")
            assert head.startswith("HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\n")
            assert "\r\nX-Hutch-Egress: refused" in head
            assert body == f"{expected}\n"
    assert refusals == [expected] * 2


async def test_every_request_is_judged_anew() -> None:
    async with serving(http) as target, proxied(Policy("public", (f"127.0.0.1:{target}",))) as (_, port):
        first = await exchange(port, f"GET http://127.0.0.1:{target}/redirect HTTP/1.1\r\n\r\n")
        assert b"\r\nLocation: http://10.0.0.1/\r\n" in first
        assert b" 403 " in await exchange(port, "GET http://10.0.0.1/ HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("GET / HTTP/1.1", 400),
        ("GET http://a/ HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked", 400),
        ("GET http://a/ HTTP/9", 505),
        ("\x16\x03\x01", 400),
        ("GET http://a/ HTTP/1.1\r\nX: " + "x" * 70_000, 431),
        ("x" * 70_000, 431),
    ],
)
async def test_what_is_not_http_is_refused(way: tuple[Proxy, int], asked: str, status: int) -> None:
    assert (await exchange(way[1], f"{asked}\r\n\r\n")).startswith(f"HTTP/1.1 {status} ".encode())


async def test_a_refusal_arrives_although_the_request_goes_on(way: tuple[Proxy, int]) -> None:
    body = b"x" * 5_000_000
    head = b"POST http://10.0.0.1/ HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
    assert b"a private address" in await exchange(way[1], head + body)
    await settled(way[0])


async def test_nobody_there_is_bad_gateway(way: tuple[Proxy, int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    answer = (await exchange(way[1], f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n")).decode()
    assert answer.startswith("HTTP/1.1 502 Bad Gateway\r\n")
    assert f"127.0.0.1:{port} cannot be reached: connection refused." in answer


async def test_an_unknown_name_is_bad_gateway_and_a_slow_one_a_timeout(
    way: tuple[Proxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await exchange(way[1], "GET http://no.invalid/ HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"no.invalid cannot be resolved" in answer
    monkeypatch.setattr(resolver, "RESOLVE_SECONDS", 0)
    assert (await exchange(way[1], "GET http://slow.invalid/ HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 504 ")


@pytest.mark.parametrize(
    "said", [b"", b"HTTP/1.1 200 OK\r\nCont", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"x" * 70_000]
)
async def test_an_answer_that_is_none_is_bad_gateway(way: tuple[Proxy, int], said: bytes) -> None:
    async def mumble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)

    async with serving(mumble) as target:
        answer = await exchange(way[1], f"GET http://127.0.0.1:{target}/ HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 502 ")


# --- bounds ---


async def test_connections_are_bounded_and_the_rest_wait_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 2)
    async with serving(http) as target, serving(echo) as other, proxied() as (proxy, port):
        async with tunnelled(port, f"127.0.0.1:{other}"), tunnelled(port, f"127.0.0.1:{other}"):
            waiting = [
                asyncio.ensure_future(exchange(port, f"GET http://127.0.0.1:{target}/{n} HTTP/1.1\r\n\r\n"))
                for n in range(10)
            ]
            done, _ = await asyncio.wait(waiting, timeout=0.1)
            assert not done
            assert proxy.connections == 2
        answers = await asyncio.gather(*waiting)
    assert [answer.decode().split()[-2:] for answer in answers] == [["GET", f"/{n}"] for n in range(10)]


async def test_who_asks_nothing_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.05)
    async with proxied() as (proxy, port), connected(port) as (reader, writer):
        writer.write(b"GET http://a/ HTTP/1.1\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await settled(proxy)


async def test_silence_ends_a_tunnel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.1)
    async with serving(echo) as target, proxied() as (proxy, port):
        async with tunnelled(port, f"127.0.0.1:{target}") as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read()
        await settled(proxy)


async def test_a_client_that_is_gone_leaves_nothing_behind(
    way: tuple[Proxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER_SECONDS", 0.05)
    ended = asyncio.Event()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(65536):
                pass
        finally:
            ended.set()

    async with serving(wait) as target:
        for asked in (f"CONNECT 127.0.0.1:{target}", f"GET http://127.0.0.1:{target}/"):
            async with connected(way[1]) as (_, writer):
                writer.write(f"{asked} HTTP/1.1\r\n\r\n".encode())
                await settled(way[0], 1)
            await settled(way[0])
            await ended.wait()
            ended.clear()


def sockets() -> set[str]:
    links = (link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return {str(target) for target in links if str(target).startswith("socket:")}


async def test_closing_cuts_everything_and_leaves_no_socket() -> None:
    before = sockets()
    async with serving(echo) as target, proxied() as (proxy, port), contextlib.AsyncExitStack() as stack:
        ends = [await stack.enter_async_context(tunnelled(port, f"127.0.0.1:{target}")) for _ in range(5)]
        idle, _ = await stack.enter_async_context(connected(port))
        await settled(proxy, 6)
        await proxy.close()
        assert proxy.connections == 0
        for reader in (*(reader for reader, _ in ends), idle):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
    await eventually(lambda: sockets() == before)


async def test_closing_ends_what_is_still_being_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def resolve(*_: object) -> list[object]:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return []

    monkeypatch.setattr(module, "resolve", resolve)
    async with proxied() as (proxy, port), connected(port) as (_, writer):
        writer.write(b"CONNECT a.example:443 HTTP/1.1\r\n\r\n")
        await began.wait()
        await proxy.close()
        assert ended.is_set()


async def test_the_machine_own_proxy_settings_do_not_matter(
    way: tuple[Proxy, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(http) as target:
        assert b" 200 " in await exchange(way[1], f"GET http://127.0.0.1:{target}/ HTTP/1.1\r\n\r\n")


def test_what_is_local_is_allowed_in_these_tests_alone() -> None:
    assert Policy("public") != LOCAL
