"""Connections of the broker: kept for one owner, checked, and TLS."""

from __future__ import annotations

import asyncio

import pytest
from tests.egress.servers import SECONDS, serving
from tests.egress.upstreams import (
    Asked,
    Upstream,
    answer,
    brokered,
    cut,
    get,
    opened,
    silent,
    upstream,
    whole,
)
from tests.waiting import eventually

from hutch.egress import resolver
from hutch.egress.broker import Broker
from hutch.egress.fetch import FetchError
from hutch.settings import Settings

SECRET = "Bearer sk-abcdefghijklmnop"


async def test_a_connection_is_used_again_without_asking_the_resolver(
    server: Upstream, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = resolver.lookup
    monkeypatch.setattr(resolver, "lookup", lambda name: [*map(str, asked.append(name) or real(name))])
    for _ in range(5):
        fetching = opened(broker)
        await whole(await fetching.send(get(server.url("/", "localhost"))))
        await fetching.close()
    assert asked == ["localhost"]
    assert {each.connection for each in server.asked} == {1}


async def test_connections_of_one_owner_are_not_used_for_another(server: Upstream, broker: Broker) -> None:
    for owner in ("one", "two", "one", "two"):
        await whole(await opened(broker, owner=owner).send(get(server.url())))
    assert [each.connection for each in server.asked] == [1, 2, 1, 2]


async def test_requests_at_once_have_connections_of_their_own(server: Upstream, broker: Broker) -> None:
    fetching = opened(broker)

    async def one(number: int) -> bytes:
        return await whole(await fetching.send(get(server.url(f"/{number}"), ("X-Number", str(number)))))

    bodies = await asyncio.gather(*map(one, range(20)))
    assert all(f"x-number: {number}\n".encode() in body for number, body in enumerate(bodies))


async def test_a_kept_connection_that_the_server_closed_is_replaced(server: Upstream, broker: Broker) -> None:
    server.answers["/last"] = cut(answer(body=b"x"))
    fetching = opened(broker)
    for method in ("GET", "POST"):
        await whole(await fetching.send(get(server.url("/last"))))
        await eventually(lambda: broker.connections.open == 0)
        reply = await fetching.send(get(server.url("/last"), method=method))
        assert await whole(reply) == b"x"
        await eventually(lambda: broker.connections.open == 0)


async def test_a_request_that_may_have_been_seen_is_not_sent_twice(server: Upstream, broker: Broker) -> None:
    server.answers["/close"] = cut(b"")
    fetching = opened(broker)
    await whole(await fetching.send(get(server.url())))
    with pytest.raises(FetchError, match="closed the connection without an answer"):
        await fetching.send(get(server.url("/close"), method="POST"))
    assert [asked.target for asked in server.asked] == ["/", "/close"]
    await whole(await fetching.send(get(server.url())))
    with pytest.raises(FetchError, match="closed the connection without an answer"):
        await fetching.send(get(server.url("/close")))
    # Once over the kept connection, once over a new one; no more.
    assert [asked.target for asked in server.asked] == ["/", "/close", "/", "/close", "/close"]


@pytest.mark.parametrize("extra", [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"x", b"\r\n\r\n"])
async def test_an_answer_that_nobody_asked_for_is_never_taken_for_one(
    server: Upstream, broker: Broker, extra: bytes
) -> None:
    server.answers["/a"] = answer(body=b"one") + extra
    server.answers["/b"] = answer(body=b"two")
    fetching = opened(broker)
    assert await whole(await fetching.send(get(server.url("/a")))) == b"one"
    assert await whole(await fetching.send(get(server.url("/b")))) == b"two"


async def test_a_late_answer_on_a_kept_connection_ends_it(server: Upstream, broker: Broker) -> None:
    late = asyncio.Event()

    async def twice(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body=b"one"))
        await late.wait()
        writer.write(answer(body=b"evil"))
        await writer.drain()
        await asyncio.get_running_loop().create_future()

    server.answers["/a"] = twice
    fetching = opened(broker)
    assert await whole(await fetching.send(get(server.url("/a")))) == b"one"
    assert broker.connections.idle == 1
    late.set()
    await eventually(lambda: broker.connections.idle == 0)
    assert b"evil" not in await whole(await fetching.send(get(server.url("/b"))))


async def test_a_server_that_says_how_long_it_waits_is_believed(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = answer("200 OK", "Keep-Alive: timeout=1", body=b"x")
    fetching = opened(broker)
    for _ in range(2):
        await whole(await fetching.send(get(server.url("/a"))))
    assert [asked.connection for asked in server.asked] == [1, 2]


async def test_what_is_not_read_to_its_end_is_cut_off(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = silent(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
    fetching = opened(broker)
    replies = [await fetching.send(get(server.url("/a"))) for _ in range(3)]
    assert await replies[0].read() == b"half"
    replies[0].close()
    with pytest.raises(FetchError, match="no longer read"):
        await replies[0].read()
    await fetching.close()
    await eventually(lambda: broker.connections.open == 0)
    with pytest.raises(FetchError, match="no longer read"):
        await replies[1].read()
    with pytest.raises(FetchError, match="The run is over"):
        await fetching.send(get(server.url()))


@pytest.mark.parametrize("path", ["/nothing", "/half"])
async def test_a_cancelled_request_or_read_leaves_no_connection(
    server: Upstream, broker: Broker, path: str
) -> None:
    server.answers["/nothing"] = silent()
    server.answers["/half"] = silent(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    fetching = opened(broker)

    async def fetch() -> None:
        await whole(await fetching.send(get(server.url(path))))

    task = asyncio.create_task(fetch())
    await eventually(lambda: server.asked)
    task.cancel()
    await asyncio.wait((task,))
    await eventually(lambda: broker.connections.open == 0)


async def test_a_server_is_not_read_faster_than_the_guest_reads(server: Upstream, broker: Broker) -> None:
    sent = 0

    async def flood(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 64000000\r\n\r\n")
        for _ in range(1000):
            writer.write(bytes(64_000))
            await writer.drain()
            sent += 64_000

    server.answers["/a"] = flood
    reply = await opened(broker, response_bytes=100_000_000).send(get(server.url("/a")))
    last = -1
    async with asyncio.timeout(SECONDS):
        while last != sent or not sent:
            last = sent
            await asyncio.sleep(0.05)
    assert sent < 32_000_000
    assert len(await whole(reply)) == 64_000_000


# --- TLS ---


async def test_https_verifies_the_host(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream(tls=True) as server, brokered(egress_allow=("127.0.0.1", "other.invalid")) as broker:
        monkeypatch.setattr(resolver, "lookup", lambda name: ["127.0.0.1"])
        fetching = opened(broker)
        assert (await fetching.send(get(server.url()))).status == 200
        with pytest.raises(
            FetchError, match=r"^The certificate of other\.invalid is not to be trusted"
        ) as caught:
            await fetching.send(get(server.url("/", "other.invalid")))
        assert caught.value.kind == "tls"
        assert len(server.asked) == 1


async def test_an_authority_that_the_machine_does_not_know_is_not_trusted() -> None:
    async with upstream(tls=True) as server:
        broker = Broker(Settings(egress_allow=("127.0.0.1",)))
        with pytest.raises(FetchError, match="not to be trusted") as caught:
            await opened(broker).send(get(server.url()))
        assert (caught.value.kind, server.asked) == ("tls", [])
        await broker.close()


async def test_a_server_without_tls_is_told_apart(broker: Broker) -> None:
    async def at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer("400 Bad Request"))
        await writer.drain()
        await reader.read()

    async with serving(at_once) as port:
        with pytest.raises(FetchError, match="does not speak TLS as it should") as caught:
            await opened(broker).send(get(f"https://127.0.0.1:{port}/"))
    assert caught.value.kind == "tls"
