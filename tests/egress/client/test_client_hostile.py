"""Forbidden destinations and hostile servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.egress.recording_server import (
    Credentials,
    RecordedRequest,
    RecordingServer,
    http_response,
    make_request,
    open_session,
    read_all,
    run_http_client,
    send_and_close,
    send_and_hang,
)
from tests.egress.servers import run_server

from hutch.egress import resolver
from hutch.egress.client.client import FetchClient
from hutch.egress.client.models import FetchError
from hutch.egress.policy import EgressPolicy

MIB = 1024 * 1024


@pytest.fixture
async def public(anyio_backend: object) -> AsyncIterator[FetchClient]:
    """A client with the default policy, which allows only public addresses. The policy has no exceptions."""
    async with run_http_client(egress_allow=()) as made:
        yield made


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
async def test_no_notation_of_an_address_reaches_internal_hosts(public: FetchClient, host: str) -> None:
    session = open_session(public)
    with pytest.raises(FetchError, match="address") as caught:
        await session.send(make_request(f"https://{host}/"))
    assert caught.value.kind == "egress_refused"
    assert session.request_log[0].sent_bytes == 0


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
async def test_no_name_reaches_internal_hosts(
    public: FetchClient, monkeypatch: pytest.MonkeyPatch, name: str, addresses: list[str]
) -> None:
    monkeypatch.setattr(resolver, "lookup", lambda _: addresses)
    with pytest.raises(FetchError, match="resolves to") as caught:
        await open_session(public).send(make_request(f"https://{name}/"))
    assert caught.value.kind == "egress_refused"


@pytest.mark.parametrize(
    "url", ["https://①②⑦.0.0.1/", "https://ⓛⓞⓒⓐⓛⓗⓞⓢⓣ/", "https://127.0.0.1%2f@x/", "https://[::1%25lo]/"]
)
async def test_no_url_trick_reaches_internal_hosts(public: FetchClient, url: str) -> None:
    with pytest.raises(FetchError) as caught:
        await open_session(public).send(make_request(url))
    assert caught.value.kind == "bad_url"


async def test_name_is_not_resolved_a_second_time(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Protects against DNS rebinding: the client connects to the address that it has checked. Later requests
    reuse the connection.
    """
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])
    monkeypatch.setattr(resolver, "lookup", lambda _: next(answers))
    async with run_http_client(egress_allow=("rebinding.example",)) as client:
        session = open_session(client)
        for _ in range(3):
            await read_all(await session.send(make_request(server.url("/", "rebinding.example"))))
    assert next(answers) == ["169.254.169.254"]


@pytest.mark.parametrize("policy", ["none", "allowlist"])
async def test_refused_names_are_not_resolved(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DNS query could leak a secret in the name: <secret>.evil.example."""
    monkeypatch.setattr(resolver, "lookup", lambda name: pytest.fail(f"{name} was looked up"))
    async with run_http_client(egress=policy, egress_allow=("api.example.com",)) as client:
        with pytest.raises(FetchError) as caught:
            await open_session(client).send(make_request("https://secret.evil.example/"))
    assert caught.value.kind == "egress_refused"


async def test_ports_of_other_protocols_are_refused(public: FetchClient) -> None:
    for port in (22, 25, 6667):
        with pytest.raises(FetchError, match="is not an HTTP port"):
            await open_session(public).send(make_request(f"https://1.1.1.1:{port}/"))


async def test_http_is_permitted_for_hosts_named_by_the_operator(
    server: RecordingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "lookup", lambda _: ["127.0.0.1"])
    port = server.port
    url = server.url("/", "a.example.com")
    async with run_http_client(egress_allow=("127.0.0.0/8",), egress_http_hosts=("b.example.com",)) as client:
        with pytest.raises(
            FetchError, match=rf"over https only; .* a\.example\.com:{port} in .* egress_http"
        ):
            await open_session(client).send(make_request(url))
    async with run_http_client(egress_allow=("127.0.0.0/8", "*.example.com")) as client:
        with pytest.raises(FetchError, match="over https only"):
            await open_session(client).send(make_request(url))
    for http_hosts in (("a.example.com",), (f"*.example.com:{port}",)):
        async with run_http_client(egress_allow=("127.0.0.0/8",), egress_http_hosts=http_hosts) as client:
            assert (await open_session(client).send(make_request(url))).status == 200
    async with run_http_client(egress_allow=(f"a.example.com:{port}",)) as client:
        assert (await open_session(client).send(make_request(url))).status == 200


async def test_mode_none_is_reported_for_http_too(server: RecordingServer) -> None:
    async with run_http_client(egress="none") as client:
        with pytest.raises(FetchError, match="Network access is off"):
            await open_session(client).send(make_request(server.url()))


async def test_http_hosts_setting_does_not_permit_internal_addresses(server: RecordingServer) -> None:
    async with run_http_client(egress_allow=(), egress_http_hosts=("127.0.0.1",)) as client:
        with pytest.raises(FetchError, match="is a loopback address"):
            await open_session(client).send(make_request(server.url()))


async def test_connection_is_not_reused_under_another_policy(
    server: RecordingServer, client: FetchClient
) -> None:

    await read_all(await open_session(client).send(make_request(server.url())))
    assert client.pool.idle == 1
    narrower = client.open_session(
        Credentials(), [], owner="user", policy=EgressPolicy("public", plain_http=("127.0.0.1",))
    )
    with pytest.raises(FetchError, match="is a loopback address"):
        await narrower.send(make_request(server.url()))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_server_that_closes_without_a_response_is_reported(
    server: RecordingServer, client: FetchClient, data: bytes
) -> None:
    server.responses["/a"] = send_and_close(data)
    with pytest.raises(
        FetchError, match=r"^127\.0\.0\.1 closed the connection without an answer\.$"
    ) as caught:
        await open_session(client).send(make_request(server.url("/a")))
    assert caught.value.kind == "unreachable"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2.0 200 OK\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBroken Header: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\rY: b\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
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
async def test_response_that_is_not_http_is_reported(
    server: RecordingServer, client: FetchClient, data: bytes
) -> None:
    server.responses["/a"] = send_and_hang(data)
    with pytest.raises(FetchError) as caught:
        await open_session(client, max_seconds=5).send(make_request(server.url("/a")))
    assert caught.value.kind == "protocol"


async def test_endless_head_is_aborted(server: RecordingServer, client: FetchClient) -> None:
    async def endless(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while True:
            writer.write(b"y" * 10_000)
            await writer.drain()

    server.responses["/a"] = endless
    with pytest.raises(FetchError, match="more than 64 KiB of headers") as caught:
        await open_session(client).send(make_request(server.url("/a")))
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhello",
    ],
)
async def test_truncated_response_is_an_error(
    server: RecordingServer, client: FetchClient, data: bytes
) -> None:
    server.responses["/a"] = send_and_close(data)
    session = open_session(client)
    response = await session.send(make_request(server.url("/a")))
    with pytest.raises(FetchError, match="in the middle of its answer") as caught:
        await read_all(response)
    assert caught.value.kind == session.request_log[0].error == "protocol"
    with pytest.raises(FetchError, match="in the middle of its answer"):
        await response.read()


@pytest.mark.parametrize(
    "chunks", ["zz\r\n", "-1\r\n", "0x1\r\na\r\n", "1\r\nab\r\n", "1\na\n", "1;a\nb\r\n", "f" * 17 + "\r\n"]
)
async def test_invalid_chunk_is_an_error(server: RecordingServer, client: FetchClient, chunks: str) -> None:
    head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    server.responses["/a"] = send_and_hang(f"{head}{chunks}0\r\n\r\n".encode())
    with pytest.raises(FetchError, match=r"answered with data that is not HTTP/1\.1"):
        await read_all(await open_session(client, max_seconds=5).send(make_request(server.url("/a"))))


async def test_body_is_cut_at_its_content_length(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = send_and_hang(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokevil")
    assert await read_all(await open_session(client).send(make_request(server.url("/a")))) == b"ok"
    assert client.pool.idle == 0


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
async def test_slow_server_times_out(server: RecordingServer, client: FetchClient, data: bytes) -> None:
    server.responses["/a"] = send_and_hang(data)
    session = open_session(client, max_seconds=0.2)
    with pytest.raises(FetchError, match=r"within 0\.2 s") as caught:
        await read_all(await session.send(make_request(server.url("/a"))))
    assert caught.value.kind == session.request_log[0].error == "timeout"


async def test_server_without_tls_handshake_times_out(client: FetchClient) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(65536)
        await asyncio.get_running_loop().create_future()

    async with run_server(mute) as port:
        for _ in range(3):
            with pytest.raises(FetchError) as caught:
                await open_session(client, max_seconds=0.1).send(make_request(f"https://127.0.0.1:{port}/"))
            assert caught.value.kind == "timeout"
    assert client.pool.open == 0


async def test_dripping_server_times_out(server: RecordingServer, client: FetchClient) -> None:
    async def drip(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1\r\nx\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    server.responses["/a"] = drip
    with pytest.raises(FetchError) as caught:
        await read_all(await open_session(client, max_seconds=0.3).send(make_request(server.url("/a"))))
    assert caught.value.kind == "timeout"


async def test_redirects_share_one_timeout(server: RecordingServer, client: FetchClient) -> None:
    async def slow(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(http_response("302 Found", "Location: /a"))
        await writer.drain()

    server.responses["/a"] = slow
    with pytest.raises(FetchError) as caught:
        await open_session(client, max_seconds=0.3).send(make_request(server.url("/a")))
    assert caught.value.kind == "timeout"
    assert len(server.requests) < 15
