"""Places that must not be reached, and servers that mean no good."""

from __future__ import annotations

import asyncio
import base64
import gzip
import resource
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import pytest
from tests.egress.servers import serving
from tests.egress.test_decoding import bomb
from tests.egress.upstreams import (
    Asked,
    Credentials,
    Upstream,
    answer,
    brokered,
    cut,
    get,
    opened,
    silent,
    whole,
)

from hutch.egress import resolver
from hutch.egress.broker import Broker
from hutch.egress.fetch import FetchError
from hutch.egress.policy import Policy
from hutch.egress.redaction import MARK
from hutch.egress.reply import Reply

MIB = 1024 * 1024


@pytest.fixture
async def public(anyio_backend: object) -> AsyncIterator[Broker]:
    """One without exceptions, as it is by default."""
    async with brokered(egress_allow=()) as made:
        yield made


# --- addresses ---


INSIDE = [
    "169.254.169.254",
    "[fd00:ec2::254]",
    "100.100.100.200",
    "127.0.0.1",
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "0177.0.0.1",
    "017700000001",
    "127.1",
    "127.0.0.1.",
    "0.0.0.0",
    "0",
    "[::1]",
    "[::]",
    "[::ffff:7f00:1]",
    "[::ffff:127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "100.64.0.1",
    "[fe80::1]",
    "[fc00::1]",
    "224.0.0.1",
    "255.255.255.255",
]


@pytest.mark.parametrize("host", INSIDE)
async def test_no_notation_of_an_address_leads_inside(public: Broker, host: str) -> None:
    fetching = opened(public)
    with pytest.raises(FetchError, match="address") as caught:
        await fetching.send(get(f"https://{host}/"))
    assert caught.value.kind == "egress_refused"
    assert fetching.hops[0].sent_bytes == 0


@pytest.mark.parametrize(
    ("name", "addresses"),
    [
        ("metadata.google.internal", ["169.254.169.254"]),
        ("localhost", ["127.0.0.1", "::1"]),
        ("localhost.", ["127.0.0.1"]),
        ("127.0.0.1.nip.io", ["127.0.0.1"]),
        ("inside.example", ["::ffff:10.0.0.1"]),
        ("mapped.example", ["64:ff9b::a00:1"]),
    ],
)
async def test_no_name_leads_inside(
    public: Broker, monkeypatch: pytest.MonkeyPatch, name: str, addresses: list[str]
) -> None:
    monkeypatch.setattr(resolver, "lookup", lambda _: addresses)
    with pytest.raises(FetchError, match="resolves to") as caught:
        await opened(public).send(get(f"https://{name}/"))
    assert caught.value.kind == "egress_refused"


@pytest.mark.parametrize(
    "url", ["https://①②⑦.0.0.1/", "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "https://127.0.0.1%2f@x/", "https://[::1%25lo]/"]
)
async def test_no_trick_of_writing_leads_inside(public: Broker, url: str) -> None:
    with pytest.raises(FetchError) as caught:
        await opened(public).send(get(url))
    assert caught.value.kind == "bad_url"


async def test_a_name_that_answers_differently_the_second_time_is_not_asked_a_second_time(
    server: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: what was checked is what is connected to, and what is used again."""
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    monkeypatch.setattr(resolver, "lookup", lambda _: next(answers))
    async with brokered(egress_allow=("rebinding.example",)) as broker:
        fetching = opened(broker)
        for _ in range(3):
            await whole(await fetching.send(get(server.url("/", "rebinding.example"))))
    assert next(answers) == ["169.254.169.254"]


@pytest.mark.parametrize("policy", ["none", "allowlist"])
async def test_names_that_may_not_be_reached_are_not_looked_up(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up is a message too: <secret>.evil.example."""
    monkeypatch.setattr(resolver, "lookup", lambda name: pytest.fail(f"{name} was looked up"))
    async with brokered(egress=policy, egress_allow=("api.example.com",)) as broker:
        with pytest.raises(FetchError) as caught:
            await opened(broker).send(get("https://secret.evil.example/"))
    assert caught.value.kind == "egress_refused"


async def test_ports_of_other_protocols_are_refused(public: Broker) -> None:
    for port in (22, 25, 6667):
        with pytest.raises(FetchError, match="is not one for HTTP"):
            await opened(public).send(get(f"https://1.1.1.1:{port}/"))


async def test_http_is_for_hosts_that_the_operator_named(
    server: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "lookup", lambda _: ["127.0.0.1"])
    port = server.port
    url = server.url("/", "a.example.com")
    async with brokered(egress_allow=("127.0.0.0/8",), egress_http_hosts=("b.example.com",)) as broker:
        with pytest.raises(
            FetchError, match=rf"over https only; .* a\.example\.com:{port} in .* egress_http"
        ):
            await opened(broker).send(get(url))
    async with brokered(egress_allow=("127.0.0.0/8", "*.example.com")) as broker:
        with pytest.raises(FetchError, match="over https only"):
            await opened(broker).send(get(url))
    for http_hosts in (("a.example.com",), (f"*.example.com:{port}",)):
        async with brokered(egress_allow=("127.0.0.0/8",), egress_http_hosts=http_hosts) as broker:
            assert (await opened(broker).send(get(url))).status == 200
    async with brokered(egress_allow=(f"a.example.com:{port}",)) as broker:
        assert (await opened(broker).send(get(url))).status == 200


async def test_where_nothing_may_be_reached_that_is_told_of_http_too(server: Upstream) -> None:
    async with brokered(egress="none") as broker:
        with pytest.raises(FetchError, match="Network access is off"):
            await opened(broker).send(get(server.url()))


async def test_http_hosts_are_not_allowed_to_be_inside_by_that(server: Upstream) -> None:
    async with brokered(egress_allow=(), egress_http_hosts=("127.0.0.1",)) as broker:
        with pytest.raises(FetchError, match="is a loopback address"):
            await opened(broker).send(get(server.url()))


async def test_a_connection_made_under_one_policy_is_not_used_under_another(
    server: Upstream, broker: Broker
) -> None:

    await whole(await opened(broker).send(get(server.url())))
    assert broker.connections.idle == 1
    narrower = broker.open(Credentials(), [], owner="user", policy=Policy("public", plain=("127.0.0.1",)))
    with pytest.raises(FetchError, match="is a loopback address"):
        await narrower.send(get(server.url()))


# --- answers that are none, or half of one ---


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_a_server_that_closes_without_an_answer(server: Upstream, broker: Broker, data: bytes) -> None:
    server.answers["/a"] = cut(data)
    with pytest.raises(
        FetchError, match=r"^127\.0\.0\.1 closed the connection without an answer\.$"
    ) as caught:
        await opened(broker).send(get(server.url("/a")))
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBroken Header: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nx",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100,
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
    ],
    ids=lambda data: data[:60].decode("latin-1"),
)
async def test_a_server_that_does_not_speak_http(server: Upstream, broker: Broker, data: bytes) -> None:
    server.answers["/a"] = silent(data)
    with pytest.raises(FetchError) as caught:
        await opened(broker, seconds=5).send(get(server.url("/a")))
    assert caught.value.kind == "protocol"


async def test_a_head_that_never_ends_is_given_up(server: Upstream, broker: Broker) -> None:
    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            writer.write(b"y" * 10_000)
            await writer.drain()

    server.answers["/a"] = endless
    with pytest.raises(FetchError, match="more than 64 KiB of headers") as caught:
        await opened(broker).send(get(server.url("/a")))
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhello",
    ],
)
async def test_half_an_answer_is_never_passed_off_as_a_whole_one(
    server: Upstream, broker: Broker, data: bytes
) -> None:
    server.answers["/a"] = cut(data)
    fetching = opened(broker)
    reply = await fetching.send(get(server.url("/a")))
    with pytest.raises(FetchError, match="in the middle of its answer") as caught:
        await whole(reply)
    assert caught.value.kind == fetching.hops[0].error == "protocol"
    with pytest.raises(FetchError, match="in the middle of its answer"):
        await reply.read()


async def test_a_chunk_that_is_none_is_noticed(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = silent(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
    with pytest.raises(FetchError, match=r"not HTTP/1\.1"):
        await whole(await opened(broker, seconds=5).send(get(server.url("/a"))))


async def test_what_is_longer_than_it_says_is_cut_there(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = silent(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokevil")
    assert await whole(await opened(broker).send(get(server.url("/a")))) == b"ok"
    assert broker.connections.idle == 0


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
async def test_a_server_that_takes_too_long_is_given_up(
    server: Upstream, broker: Broker, data: bytes
) -> None:
    server.answers["/a"] = silent(data)
    fetching = opened(broker, seconds=0.2)
    with pytest.raises(FetchError, match=r"within 0\.2 s") as caught:
        await whole(await fetching.send(get(server.url("/a"))))
    assert caught.value.kind == fetching.hops[0].error == "timeout"


async def test_a_server_that_never_shakes_hands_is_given_up(broker: Broker) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        await asyncio.get_running_loop().create_future()

    async with serving(mute) as port:
        for _ in range(3):
            with pytest.raises(FetchError) as caught:
                await opened(broker, seconds=0.1).send(get(f"https://127.0.0.1:{port}/"))
            assert caught.value.kind == "timeout"
    assert broker.connections.open == 0


async def test_a_server_that_drips_is_given_up(server: Upstream, broker: Broker) -> None:
    async def drip(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    server.answers["/a"] = drip
    with pytest.raises(FetchError) as caught:
        await whole(await opened(broker, seconds=0.3).send(get(server.url("/a"))))
    assert caught.value.kind == "timeout"


async def test_redirects_share_one_time(server: Upstream, broker: Broker) -> None:
    async def slow(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(answer("302 Found", "Location: /a"))
        await writer.drain()

    server.answers["/a"] = slow
    with pytest.raises(FetchError) as caught:
        await opened(broker, seconds=0.3).send(get(server.url("/a")))
    assert caught.value.kind == "timeout"
    assert len(server.asked) < 15


# --- answers that are too much ---


async def thrown_away(reply: Reply) -> None:
    while await reply.read():
        pass


@pytest.mark.parametrize(
    "framing", ["Content-Length: 1073741824", "Transfer-Encoding: chunked", "X: until-end"]
)
async def test_a_gigabyte_is_stopped_at_the_limit_and_never_held(
    server: Upstream, broker: Broker, framing: str
) -> None:
    sent = 0

    async def flood(asked: Asked, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        piece = bytes(MIB)
        for _ in range(1024):
            writer.write(b"100000\r\n%s\r\n" % piece if "chunked" in framing else piece)
            await writer.drain()
            sent += MIB

    server.answers["/a"] = flood
    fetching = opened(broker)
    reply = await fetching.send(get(server.url("/a")))
    with pytest.raises(FetchError, match=r"larger than 8388608 bytes \(fetch_bytes\)") as caught:
        await thrown_away(reply)
    assert caught.value.kind == fetching.hops[0].error == "too_large"
    assert sent < 64 * MIB
    assert broker.connections.idle == 0


def deflate_bomb(mebibytes: int) -> bytes:
    deflating = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = deflating.compress(bytes(MIB)) + deflating.flush(zlib.Z_FULL_FLUSH)
    return one * mebibytes


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_a_gigabyte_in_a_megabyte_is_stopped_at_the_limit_and_never_held(
    server: Upstream, broker: Broker, encoding: str
) -> None:
    body = bomb(1024) if encoding == "gzip" else deflate_bomb(1024)
    assert len(body) < 2 * MIB
    server.answers["/a"] = answer("200 OK", f"Content-Encoding: {encoding}", body=body)
    reply = await opened(broker).send(get(server.url("/a")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(FetchError, match="larger than 8388608 bytes"):
            await thrown_away(reply)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def test_framing_without_end_is_too_large_as_well(server: Upstream, broker: Broker) -> None:
    async def extensions(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1;" + b"x" * 50_000 + b"\r\ny\r\n")
            await writer.drain()

    server.answers["/a"] = extensions
    with pytest.raises(FetchError) as caught:
        await whole(await opened(broker, response_bytes=100_000).send(get(server.url("/a"))))
    assert caught.value.kind in ("too_large", "protocol")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "unknown"])
async def test_what_cannot_be_read_to_be_scrubbed_is_not_passed_on(
    server: Upstream, broker: Broker, encoding: str
) -> None:
    server.answers["/a"] = answer("200 OK", f"Content-Encoding: {encoding}", body=b"whatever")
    reply = await opened(broker).send(get(server.url("/a")))
    with pytest.raises(FetchError, match="although only gzip, deflate was asked for") as caught:
        await reply.read()
    assert caught.value.kind == "protocol"


async def test_secrets_are_scrubbed_from_what_was_compressed_and_split(
    server: Upstream, broker: Broker
) -> None:
    secret = "sk-" + base64.b64encode(bytes(range(40))).decode()
    text = "".join(f"{'x' * number} {secret} " for number in range(400))

    async def in_pieces(asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = gzip.compress(text.encode())
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        for at in range(0, len(body), 7):
            writer.write(body[at : at + 7])
            await writer.drain()

    server.answers["/a"] = in_pieces
    reply = await opened(broker, secrets=(secret,)).send(get(server.url("/a")))
    parts = []
    while data := await reply.read(11):
        parts.append(data)
    assert b"".join(parts).decode() == text.replace(secret, MARK)


async def test_connections_are_bounded(
    server: Upstream, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.egress.connections.MAX_CONNECTIONS", 2)
    server.answers["/a"] = silent(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    fetching = opened(broker)
    first = [await fetching.send(get(server.url("/a"))) for _ in range(2)]
    with pytest.raises(FetchError, match="Too many requests are under way") as caught:
        await fetching.send(get(server.url("/a")))
    assert caught.value.kind == "unreachable"
    for reply in first:
        reply.close()
    async with asyncio.timeout(10):
        while broker.connections.open:  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.001)
    for owner in ("one", "two", "three"):
        # Those that idle give way.
        await whole(await opened(broker, owner=owner).send(get(server.url("/b"))))
    assert broker.connections.open <= 2


async def test_what_is_still_being_connected_counts_as_its_owners(
    server: Upstream, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.egress.connections.MAX_OF_OWNER", 3)
    reached = asyncio.Event()
    names = resolver.resolve

    async def slow(policy: object, host: str, port: int) -> object:
        if host == "localhost":
            await reached.wait()
        return await names(policy, host, port)  # type: ignore[arg-type]

    monkeypatch.setattr(resolver, "resolve", slow)
    one = opened(broker, owner="one")
    waiting = [asyncio.create_task(one.send(get(server.url("/", "localhost")))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(FetchError, match="Too many requests are under way"):
        await one.send(get(server.url("/")))
    await whole(await opened(broker, owner="two").send(get(server.url("/"))))
    reached.set()
    for reply in await asyncio.gather(*waiting):
        await whole(reply)
