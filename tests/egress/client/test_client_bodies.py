"""Hostile response bodies: sizes, compression, encodings and redaction; limits on connections."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
import resource
import tracemalloc
import zlib

import pytest
from tests.egress.client.test_response import bomb
from tests.egress.recording_server import (
    RecordedRequest,
    RecordingServer,
    http_response,
    make_request,
    open_session,
    read_all,
    send_and_hang,
)
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.egress import resolver
from hutch.egress.client.client import FetchClient
from hutch.egress.client.models import FetchError
from hutch.egress.client.response import FetchResponse
from hutch.egress.redaction import MARK, prepare_redactor
from hutch.tasks import TimeSlices

MIB = 1024 * 1024


async def read_and_discard(response: FetchResponse) -> None:
    while await response.read():
        pass


@pytest.mark.parametrize(
    "framing", ["Content-Length: 1073741824", "Transfer-Encoding: chunked", "X: until-end"]
)
async def test_gigabyte_body_is_stopped_at_the_limit_without_buffering(
    server: RecordingServer, client: FetchClient, framing: str
) -> None:
    sent = 0

    async def flood(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        piece = bytes(MIB)
        for _ in range(1024):
            writer.write(b"100000\r\n%s\r\n" % piece if "chunked" in framing else piece)
            await writer.drain()
            sent += MIB

    server.responses["/a"] = flood
    session = open_session(client)
    response = await session.send(make_request(server.url("/a")))
    with pytest.raises(FetchError, match=r"larger than 8388608 bytes \(max_fetch_bytes\)") as caught:
        await read_and_discard(response)
    assert caught.value.kind == session.request_log[0].error == "too_large"
    assert sent < 64 * MIB
    assert client.pool.idle == 0


def deflate_bomb(mebibytes: int) -> bytes:
    deflating = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = deflating.compress(bytes(MIB)) + deflating.flush(zlib.Z_FULL_FLUSH)
    return one * mebibytes


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_compression_bomb_is_stopped_at_the_limit_without_buffering(
    server: RecordingServer, client: FetchClient, encoding: str
) -> None:
    body = bomb(1024) if encoding == "gzip" else deflate_bomb(1024)
    assert len(body) < 2 * MIB
    server.responses["/a"] = http_response("200 OK", f"Content-Encoding: {encoding}", body=body)
    response = await open_session(client).send(make_request(server.url("/a")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        with pytest.raises(FetchError, match="larger than 8388608 bytes"):
            await read_and_discard(response)
        assert tracemalloc.get_traced_memory()[1] < 4 * MIB
    finally:
        tracemalloc.stop()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def test_endless_framing_counts_as_too_large(server: RecordingServer, client: FetchClient) -> None:
    async def extensions(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1;" + b"x" * 50_000 + b"\r\ny\r\n")
            await writer.drain()

    server.responses["/a"] = extensions
    with pytest.raises(FetchError) as caught:
        await read_all(
            await open_session(client, max_response_bytes=100_000).send(make_request(server.url("/a")))
        )
    assert caught.value.kind in ("too_large", "protocol")


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "unknown"])
async def test_body_in_an_unknown_encoding_is_not_passed_on(
    server: RecordingServer, client: FetchClient, encoding: str
) -> None:
    server.responses["/a"] = http_response("200 OK", f"Content-Encoding: {encoding}", body=b"whatever")
    response = await open_session(client).send(make_request(server.url("/a")))
    with pytest.raises(FetchError, match="but only gzip, deflate was asked for") as caught:
        await response.read()
    assert caught.value.kind == "protocol"


async def test_secrets_in_compressed_and_split_bodies_are_redacted(
    server: RecordingServer, client: FetchClient
) -> None:
    secret = "sk-" + base64.b64encode(bytes(range(40))).decode()
    text = "".join(f"{'x' * number} {secret} " for number in range(400))

    async def in_pieces(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        body = gzip.compress(text.encode())
        writer.write(
            f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        for at in range(0, len(body), 7):
            writer.write(body[at : at + 7])
            await writer.drain()

    server.responses["/a"] = in_pieces
    response = await open_session(client, secrets=(secret,)).send(make_request(server.url("/a")))
    parts = []
    while data := await response.read(11):
        parts.append(data)
    assert b"".join(parts).decode() == text.replace(secret, MARK)


LONG_SECRET = "".join(random.Random(5).choices([chr(code) for code in range(33, 127)], k=16_000))
HOSTILE_BODIES = {
    "backslashes": b"\\",
    "percent signs": b"%",
    "an escape": b"\\u00",
    "starts of the secret": LONG_SECRET[:700].encode(),
    "starts of the secret in base64": base64.b64encode(LONG_SECRET[:700].encode()),
    "starts of the secret in hex": LONG_SECRET[:700].encode().hex().encode(),
    "the secret with all characters escaped": "".join(f"\\u{ord(c):04x}" for c in LONG_SECRET).encode(),
}


@pytest.mark.parametrize("name", HOSTILE_BODIES)
@repeat_on_stall
async def test_body_that_resembles_a_long_secret_does_not_block_the_event_loop(
    server: RecordingServer, client: FetchClient, name: str
) -> None:
    repeated = HOSTILE_BODIES[name]
    body = (repeated * (MIB // 4 // len(repeated) + 1))[: MIB // 4]
    # The compressed body is small enough to arrive in one piece.
    server.responses["/a"] = http_response("200 OK", "Content-Encoding: gzip", body=gzip.compress(body))
    async with LoopStalls() as stalls:
        await prepare_redactor((LONG_SECRET,))
        session = open_session(client, secrets=(LONG_SECRET,))
        received = await read_all(await session.send(make_request(server.url("/a"))))
    stalls.assert_short()
    if "all characters" not in name:
        assert received == body


@repeat_on_stall
async def test_headers_that_resemble_many_secrets_do_not_block_the_event_loop(
    server: RecordingServer, client: FetchClient
) -> None:
    cookies = "; ".join(f"c{at}={LONG_SECRET[50 * at : 50 * at + 50]}".replace(";", "") for at in range(200))
    value = LONG_SECRET[:40].encode().hex() * 600
    server.responses["/a"] = http_response("200 OK", f"X-A: {value}", body=b"ok")
    async with LoopStalls() as stalls:
        await prepare_redactor((cookies,))
        response = await open_session(client, secrets=(cookies,)).send(make_request(server.url("/a")))
        assert await read_all(response) == b"ok"
    stalls.assert_short()


async def test_time_for_redaction_counts_towards_the_time_limit(
    server: RecordingServer, client: FetchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow_pause(_: TimeSlices) -> None:
        await asyncio.sleep(1.1)

    body = LONG_SECRET[:700].encode().hex().encode() * 20
    server.responses["/a"] = http_response("200 OK", body=body)
    session = open_session(client, secrets=(LONG_SECRET,), max_seconds=1)
    response = await session.send(make_request(server.url("/a")))
    # The whole answer arrives before the limit. The redaction exceeds the limit, because the test makes each
    # pause of the redaction long.
    monkeypatch.setattr(TimeSlices, "pause", slow_pause)
    with pytest.raises(FetchError, match="did not send all of its answer within") as raised:
        await read_all(response)
    assert raised.value.kind == "timeout"


async def test_connections_are_limited(
    server: RecordingServer, client: FetchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.egress.client.pool.MAX_CONNECTIONS", 2)
    server.responses["/a"] = send_and_hang(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")
    session = open_session(client)
    first = [await session.send(make_request(server.url("/a"))) for _ in range(2)]
    with pytest.raises(FetchError, match="Too many requests are in progress") as caught:
        await session.send(make_request(server.url("/a")))
    assert caught.value.kind == "unreachable"
    for response in first:
        response.close()
    async with asyncio.timeout(10):
        while client.pool.open:  # noqa: ASYNC110 - there is no event for this
            await asyncio.sleep(0.001)
    for owner in ("one", "two", "three"):
        # These requests succeed, because the client closes idle connections of other owners.
        await read_all(await open_session(client, owner=owner).send(make_request(server.url("/b"))))
    assert client.pool.open <= 2


async def test_connections_being_opened_count_for_their_owner(
    server: RecordingServer, client: FetchClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.egress.client.pool.MAX_PER_OWNER", 3)
    reached = asyncio.Event()
    names = resolver.resolve

    async def slow(policy: object, host: str, port: int) -> object:
        if host == "localhost":
            await reached.wait()
        return await names(policy, host, port)  # type: ignore[arg-type]

    monkeypatch.setattr(resolver, "resolve", slow)
    one = open_session(client, owner="one")
    waiting = [asyncio.create_task(one.send(make_request(server.url("/", "localhost")))) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(FetchError, match="Too many requests are in progress"):
        await one.send(make_request(server.url("/")))
    await read_all(await open_session(client, owner="two").send(make_request(server.url("/"))))
    reached.set()
    for response in await asyncio.gather(*waiting):
        await read_all(response)
