"""Connections of the HTTP client: reuse by one owner, limits, TLS."""

from __future__ import annotations

import asyncio

import pytest
from tests.egress.recording_server import (
    RecordedRequest,
    RecordingServer,
    http_response,
    make_request,
    open_session,
    read_all,
    run_http_client,
    run_recording_server,
    send_and_close,
    send_and_hang,
)
from tests.egress.servers import SECONDS, run_server
from tests.support.waiting import eventually

from hutch.egress import resolver
from hutch.egress.client.client import FetchClient
from hutch.egress.client.models import FetchError
from hutch.settings import Settings

SECRET = "Bearer sk-abcdefghijklmnop"


async def test_connection_is_reused_without_resolving_again(
    server: RecordingServer, client: FetchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[str] = []
    real = resolver.lookup
    monkeypatch.setattr(resolver, "lookup", lambda name: [*map(str, received.append(name) or real(name))])
    for _ in range(5):
        session = open_session(client)
        await read_all(await session.send(make_request(server.url("/", "localhost"))))
        await session.close()
    assert received == ["localhost"]
    assert {each.connection for each in server.requests} == {1}


async def test_connections_are_not_shared_between_owners(
    server: RecordingServer, client: FetchClient
) -> None:
    for owner in ("one", "two", "one", "two"):
        await read_all(await open_session(client, owner=owner).send(make_request(server.url())))
    assert [each.connection for each in server.requests] == [1, 2, 1, 2]


async def test_concurrent_requests_use_separate_connections(
    server: RecordingServer, client: FetchClient
) -> None:
    session = open_session(client)

    async def one(number: int) -> bytes:
        return await read_all(
            await session.send(make_request(server.url(f"/{number}"), ("X-Number", str(number))))
        )

    bodies = await asyncio.gather(*map(one, range(20)))
    assert all(f"x-number: {number}\n".encode() in body for number, body in enumerate(bodies))


async def test_idle_connection_closed_by_the_server_is_replaced(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/last"] = send_and_close(http_response(body=b"x"))
    session = open_session(client)
    for method in ("GET", "POST"):
        await read_all(await session.send(make_request(server.url("/last"))))
        await eventually(lambda: client.pool.open == 0)
        response = await session.send(make_request(server.url("/last"), method=method))
        assert await read_all(response) == b"x"
        await eventually(lambda: client.pool.open == 0)


async def test_request_that_may_have_been_processed_is_not_repeated(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/close"] = send_and_close(b"")
    session = open_session(client)
    await read_all(await session.send(make_request(server.url())))
    with pytest.raises(FetchError, match="closed the connection without an answer"):
        await session.send(make_request(server.url("/close"), method="POST"))
    assert [received.target for received in server.requests] == ["/", "/close"]
    await read_all(await session.send(make_request(server.url())))
    with pytest.raises(FetchError, match="closed the connection without an answer"):
        await session.send(make_request(server.url("/close")))
    # The GET of `/close` is sent on the idle connection and repeated on a new connection.
    assert [received.target for received in server.requests] == ["/", "/close", "/", "/close", "/close"]


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"x", b"\r\n\r\n"])
async def test_unsolicited_response_is_never_used(
    server: RecordingServer, client: FetchClient, extra: bytes
) -> None:
    server.responses["/a"] = http_response(body=b"one") + extra
    server.responses["/b"] = http_response(body=b"two")
    session = open_session(client)
    assert await read_all(await session.send(make_request(server.url("/a")))) == b"one"
    assert await read_all(await session.send(make_request(server.url("/b")))) == b"two"


async def test_late_data_on_an_idle_connection_closes_it(
    server: RecordingServer, client: FetchClient
) -> None:
    late = asyncio.Event()

    async def twice(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response(body=b"one"))
        await late.wait()
        writer.write(http_response(body=b"evil"))
        await writer.drain()
        await asyncio.get_running_loop().create_future()

    server.responses["/a"] = twice
    session = open_session(client)
    assert await read_all(await session.send(make_request(server.url("/a")))) == b"one"
    assert client.pool.idle == 1
    late.set()
    await eventually(lambda: client.pool.idle == 0)
    assert b"evil" not in await read_all(await session.send(make_request(server.url("/b"))))


async def test_keep_alive_timeout_of_the_server_is_respected(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/a"] = http_response("200 OK", "Keep-Alive: timeout=1", body=b"x")
    session = open_session(client)
    for _ in range(2):
        await read_all(await session.send(make_request(server.url("/a"))))
    assert [received.connection for received in server.requests] == [1, 2]


async def test_unread_response_is_aborted(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = send_and_hang(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
    session = open_session(client)
    replies = [await session.send(make_request(server.url("/a"))) for _ in range(3)]
    assert await replies[0].read() == b"half"
    replies[0].close()
    with pytest.raises(FetchError, match="response was closed"):
        await replies[0].read()
    await session.close()
    await eventually(lambda: client.pool.open == 0)
    with pytest.raises(FetchError, match="response was closed"):
        await replies[1].read()
    with pytest.raises(FetchError, match="The run is over"):
        await session.send(make_request(server.url()))


@pytest.mark.parametrize("path", ["/nothing", "/half"])
async def test_cancelled_request_or_read_leaves_no_connection(
    server: RecordingServer, client: FetchClient, path: str
) -> None:
    server.responses["/nothing"] = send_and_hang()
    server.responses["/half"] = send_and_hang(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    session = open_session(client)

    async def fetch() -> None:
        await read_all(await session.send(make_request(server.url(path))))

    task = asyncio.create_task(fetch())
    await eventually(lambda: server.requests)
    task.cancel()
    await asyncio.wait((task,))
    await eventually(lambda: client.pool.open == 0)


async def test_slow_reader_slows_down_the_server(server: RecordingServer, client: FetchClient) -> None:
    sent = 0

    async def flood(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 64000000\r\n\r\n")
        for _ in range(1000):
            writer.write(bytes(64_000))
            await writer.drain()
            sent += 64_000

    server.responses["/a"] = flood
    response = await open_session(client, max_response_bytes=100_000_000).send(make_request(server.url("/a")))
    last = -1
    async with asyncio.timeout(SECONDS):
        while last != sent or not sent:
            last = sent
            await asyncio.sleep(0.05)
    assert sent < 32_000_000
    assert len(await read_all(response)) == 64_000_000


async def test_https_verifies_the_host(client: FetchClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        run_recording_server(tls=True) as server,
        run_http_client(egress_allow=("127.0.0.1", "other.invalid")) as client,
    ):
        monkeypatch.setattr(resolver, "lookup", lambda name: ["127.0.0.1"])
        session = open_session(client)
        assert (await session.send(make_request(server.url()))).status == 200
        with pytest.raises(FetchError, match=r"^The certificate of other\.invalid is not trusted") as caught:
            await session.send(make_request(server.url("/", "other.invalid")))
        assert caught.value.kind == "tls"
        assert len(server.requests) == 1


async def test_unknown_certificate_authority_is_not_trusted() -> None:
    async with run_recording_server(tls=True) as server:
        client = FetchClient(Settings(egress_allow=("127.0.0.1",)))
        with pytest.raises(FetchError, match="is not trusted") as caught:
            await open_session(client).send(make_request(server.url()))
        assert (caught.value.kind, server.requests) == ("tls", [])
        await client.close()


async def test_server_without_tls_is_reported(client: FetchClient) -> None:
    async def at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(http_response("400 Bad Request"))
        await writer.drain()
        await reader.read()

    async with run_server(at_once) as port:
        with pytest.raises(FetchError, match=r"TLS with 127\.0\.0\.1 failed") as caught:
            await open_session(client).send(make_request(f"https://127.0.0.1:{port}/"))
    assert caught.value.kind == "tls"
