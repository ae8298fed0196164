from __future__ import annotations

import asyncio
import gzip

import pytest
from tests.egress.recording_server import (
    Credentials,
    RecordedRequest,
    RecordingServer,
    http_response,
    make_request,
    open_session,
    read_all,
    redirect,
    send_and_close,
    send_and_hang,
)

from hutch.egress.client.client import FetchClient
from hutch.egress.client.models import FetchError, FetchRequest, InjectedHeader, RequestLogEntry
from hutch.errors import SettingError
from hutch.settings import Settings

SECRET = "Bearer sk-abcdefghijklmnop"


async def test_request_is_sent_unchanged(server: RecordingServer, client: FetchClient) -> None:
    session = open_session(client)
    request = make_request(server.url("/a?b=c#d"), ("X-One", "1"), method="post", body=b"body")
    response = await session.send(request)
    assert (await read_all(response)).endswith(b"\nbody")
    (received,) = server.requests
    assert (received.method, received.target, received.body) == ("POST", "/a?b=c", b"body")
    assert received.all("x-one") == ["1"]
    assert received.all("host") == [f"127.0.0.1:{server.port}"]
    assert received.all("content-length") == ["4"]
    assert received.all("accept-encoding") == ["gzip, deflate"]
    assert received.all("user-agent")[0].startswith("Hutch/")


async def test_response_has_status_headers_and_body(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = http_response(
        "418 I'm a teapot", "Set-Cookie: a=1", "X-Case:  v ", "set-cookie: b=2", body=b"tea"
    )
    response = await open_session(client).send(make_request(server.url("/a")))
    assert (response.status, response.reason, response.redirected) == (418, "I'm a teapot", False)
    assert response.url == server.url("/a")
    expected = [("set-cookie", "a=1"), ("x-case", "v"), ("set-cookie", "b=2"), ("content-length", "3")]
    assert response.headers == expected
    assert await read_all(response) == b"tea"
    assert response.ended


async def test_guest_can_set_user_agent_and_accept(server: RecordingServer, client: FetchClient) -> None:
    headers = (("User-Agent", "mine"), ("ACCEPT", "text/html"), ("Accept-Encoding", "br, zstd"))
    await open_session(client).send(make_request(server.url(), *headers))
    received = server.requests[0]
    assert (received.all("user-agent"), received.all("accept")) == (["mine"], ["text/html"])
    assert received.all("accept-encoding") == ["gzip, deflate"]


@pytest.mark.parametrize("name", ["Host", "content-LENGTH", "Transfer-Encoding", "Connection", "Upgrade"])
async def test_forbidden_headers_of_a_guest_are_not_sent(
    server: RecordingServer, client: FetchClient, name: str
) -> None:
    await open_session(client).send(make_request(server.url(), (name, "evil"), method="POST", body=b"x"))
    received = server.requests[0]
    assert "evil" not in str(received.headers)
    assert (received.all("content-length"), received.body) == (["1"], b"x")


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        ("204 No Content", []),
        ("204 No Content", ["Content-Type: application/json", "Content-Length: 5"]),
        ("304 Not Modified", ["Content-Length: 100"]),
        ("304 Not Modified", ["Transfer-Encoding: chunked"]),
    ],
)
async def test_statuses_without_a_body_have_none(
    server: RecordingServer, client: FetchClient, status: str, headers: list[str]
) -> None:
    server.responses["/a"] = send_and_hang("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode())
    response = await open_session(client).send(make_request(server.url("/a")))
    assert response.status == int(status[:3])
    assert await read_all(response) == b""


async def test_head_response_has_no_body_and_keeps_the_connection(
    server: RecordingServer, client: FetchClient
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    server.responses["/a"] = head
    session = open_session(client)
    response = await session.send(make_request(server.url("/a"), method="HEAD"))
    assert (await read_all(response), response.headers) == (b"", [("content-length", "1000")])
    await read_all(await session.send(make_request(server.url("/b"))))
    assert [received.connection for received in server.requests] == [1, 1]


async def test_body_can_be_chunked_or_end_with_the_connection(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/chunked"] = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n"
        b"0\r\nTrailer: x\r\n\r\n"
    )
    server.responses["/end"] = send_and_close(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    session = open_session(client)
    assert await read_all(await session.send(make_request(server.url("/chunked")))) == b"abcde"
    response = await session.send(make_request(server.url("/end")))
    assert await read_all(response) == b"all of it"
    assert "trailer" not in dict(response.headers)


async def test_interim_responses_are_skipped(server: RecordingServer, client: FetchClient) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    server.responses["/a"] = hints + http_response(body=b"done")
    response = await open_session(client).send(make_request(server.url("/a")))
    assert (response.status, response.reason, await read_all(response)) == (200, "OK", b"done")
    assert response.headers == [("content-length", "4")]


async def test_body_is_streamed_in_pieces_of_limited_size(
    server: RecordingServer, client: FetchClient
) -> None:
    go_on = asyncio.Event()

    async def slowly(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        await go_on.wait()
        writer.write(b"later")
        await writer.drain()

    server.responses["/a"] = slowly
    response = await open_session(client).send(make_request(server.url("/a")))
    assert [await response.read(2), await response.read(2), await response.read(2)] == [b"fi", b"rs", b"t"]
    assert not response.ended
    go_on.set()
    assert await read_all(response) == b"later"
    assert await response.read() == b""


async def test_response_has_ended_with_its_last_piece(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = http_response("200 OK", "Content-Encoding: gzip", body=gzip.compress(b"small"))
    response = await open_session(client, secrets=(SECRET,)).send(make_request(server.url("/a")))
    assert (await response.read(), response.ended) == (b"small", True)


async def test_compressed_response_is_decoded(server: RecordingServer, client: FetchClient) -> None:
    text = b"some text " * 100_000
    server.responses["/a"] = http_response("200 OK", "Content-Encoding: gzip", body=gzip.compress(text))
    response = await open_session(client).send(make_request(server.url("/a")))
    assert await read_all(response) == text
    assert dict(response.headers)["content-encoding"] == "gzip"


async def test_retry_after_is_passed_on(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = http_response("429 Too Many Requests", "Retry-After: 7")
    response = await open_session(client).send(make_request(server.url("/a")))
    assert (response.status, dict(response.headers)["retry-after"]) == (429, "7")


async def test_credentials_are_sent_to_their_host_only(server: RecordingServer, client: FetchClient) -> None:
    credentials = Credentials(localhost=[InjectedHeader("Authorization", SECRET, "c1")])
    session = open_session(client, credentials, (SECRET,))
    await read_all(await session.send(make_request(server.url("/", "localhost"))))
    await read_all(await session.send(make_request(server.url("/", "127.0.0.1"))))
    assert [received.all("authorization") for received in server.requests] == [[SECRET], []]
    assert [entry.credentials for entry in session.request_log] == [("c1",), ()]


async def test_concurrent_users_keep_their_own_credentials(
    server: RecordingServer, client: FetchClient
) -> None:
    async def one(number: int) -> None:
        secret = f"Bearer secret-of-user-{number:03}"
        credentials = Credentials(localhost=[InjectedHeader("Authorization", secret, f"c{number}")])
        for _ in range(4):
            session = open_session(client, credentials, (secret,), owner=f"user{number}")
            body = await read_all(
                await session.send(make_request(server.url("/", "localhost"), ("X-User", str(number))))
            )
            assert f"x-user: {number}\n".encode() in body
            assert b"authorization: Bearer [redacted]\n" in body
            assert session.request_log[0].credentials == (f"c{number}",)
            await session.close()

    await asyncio.gather(*map(one, range(50)))
    sent = {(received.all("x-user")[0], received.all("authorization")[0]) for received in server.requests}
    assert sent == {(str(number), f"Bearer secret-of-user-{number:03}") for number in range(50)}
    owners: dict[int, set[str]] = {}
    for received in server.requests:
        owners.setdefault(received.connection, set()).update(received.all("x-user"))
    assert all(len(users) == 1 for users in owners.values())


async def test_header_set_by_the_wrapper_overrides_the_injected_one(
    server: RecordingServer, client: FetchClient
) -> None:
    credentials = Credentials(localhost=[InjectedHeader("Authorization", SECRET, "c1")])
    session = open_session(client, credentials, (SECRET,))
    await session.send(make_request(server.url("/", "localhost"), ("AUTHORIZATION", "own")))
    assert server.requests[0].all("authorization") == ["own"]
    assert session.request_log[0].credentials == ()


async def test_secrets_are_redacted_from_headers_body_reason_and_url(
    server: RecordingServer, client: FetchClient
) -> None:
    token = SECRET.removeprefix("Bearer ")
    server.responses["/a"] = redirect(f"/b/{token}?t={token}")
    server.responses[f"/b/{token}"] = http_response(
        f"200 {token}", f"X-Echo: {SECRET}", body=SECRET.encode().hex().encode()
    )
    session = open_session(client, secrets=(SECRET,))
    response = await session.send(make_request(server.url("/a")))
    shown = (response.reason, response.url, response.headers, await read_all(response), session.request_log)
    assert token not in str(shown)
    assert token.encode().hex() not in str(shown)
    assert server.requests[1].target == f"/b/{token}?t={token}"


async def test_secret_in_a_host_name_is_redacted_from_errors(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/a"] = redirect("https://sk-abcdefghijklmnop.invalid/")
    logged: list[str] = []
    session = client.open_session(Credentials(), [SECRET], owner="user", log=logged.append)
    with pytest.raises(FetchError) as caught:
        await session.send(make_request(server.url("/a")))
    assert "sk-abc" not in f"{caught.value}{logged}{session.request_log}"
    assert logged == [caught.value.message]


async def test_request_log_contains_no_values(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/go"] = redirect("/there?token=x")
    credentials = Credentials(**{"127.0.0.1": [InjectedHeader("apikey", "hunter22", "c1")]})
    session = open_session(client, credentials, ("hunter22",))
    response = await session.send(make_request(server.url("/go?q=hidden"), method="POST", body=b"12345"))
    await read_all(response)
    host = f"127.0.0.1:{server.port}"
    logged = [
        (entry.method, entry.host, entry.path, entry.status, entry.credentials, entry.error)
        for entry in session.request_log
    ]
    assert logged == [("POST", host, "/go", 302, ("c1",), None), ("GET", host, "/there", 200, ("c1",), None)]
    for entry in session.request_log:
        assert entry.sent_bytes > 100
        assert entry.received_bytes > 20
        assert entry.ms > 0
    assert "hunter22" not in str(session.request_log)
    assert "hidden" not in str(session.request_log)


async def test_request_log_contains_failures(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = send_and_close(b"")
    session = open_session(client)
    for url in (server.url("/a"), "https://10.0.0.1/"):
        with pytest.raises(FetchError):
            await session.send(make_request(url))
    assert [(entry.path, entry.status, entry.error) for entry in session.request_log] == [
        ("/a", None, "unreachable"),
        ("/", None, "egress_refused"),
    ]
    assert isinstance(session.request_log[0], RequestLogEntry)


@pytest.mark.parametrize("method", ["", "GET /", "A\r\nB", "CONNECT", "trace", "TRACK", "ä"])
async def test_invalid_method_is_rejected(server: RecordingServer, client: FetchClient, method: str) -> None:
    with pytest.raises(FetchError, match="is not a method") as caught:
        await open_session(client).send(FetchRequest(method=method, url=server.url()))
    assert (caught.value.kind, server.requests) == ("bad_request", [])


async def test_unexpected_or_too_large_request_body_is_rejected(
    server: RecordingServer, client: FetchClient
) -> None:
    session = open_session(client, max_body_bytes=10)
    for request, kind in (
        (make_request(server.url(), body=b""), "bad_request"),
        (make_request(server.url(), method="POST", body=b"x" * 11), "too_large"),
    ):
        with pytest.raises(FetchError) as caught:
            await session.send(request)
        assert caught.value.kind == kind
    assert (await session.send(make_request(server.url(), method="PATCH", body=b"x" * 10))).status == 200


@pytest.mark.parametrize("value", ["x\r\nX-Evil: y", "x\ny", "x\0y"])
async def test_line_breaks_in_headers_are_rejected(
    server: RecordingServer, client: FetchClient, value: str
) -> None:
    injected = Credentials(**{"127.0.0.1": [InjectedHeader("X-Key", value, "c1")]})
    for session, headers in (
        (open_session(client), [("X-Key", value)]),
        (open_session(client, injected), []),
    ):
        with pytest.raises(FetchError) as caught:
            await session.send(make_request(server.url(), *headers))
        assert caught.value.kind == "bad_header"
    assert server.requests == []


@pytest.mark.parametrize("entry", ["http://x", "*.127.0.0.1", "a b", "a:99999"])
def test_invalid_host_in_settings_is_rejected(entry: str) -> None:
    with pytest.raises(SettingError, match="egress_http_hosts"):
        FetchClient(Settings(egress_http_hosts=(entry,)))
