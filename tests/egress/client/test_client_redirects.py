from __future__ import annotations

import pytest
from tests.egress.recording_server import (
    Credentials,
    RecordingServer,
    http_response,
    make_request,
    open_session,
    read_all,
    redirect,
    run_http_client,
    run_recording_server,
)

from hutch.egress.client.client import FetchClient
from hutch.egress.client.models import FetchError, InjectedHeader

SECRET = "Bearer sk-abcdefghijklmnop"


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        ("301 Moved", "POST", "GET"),
        ("302 Found", "POST", "GET"),
        ("303 See Other", "POST", "GET"),
        ("303 See Other", "PUT", "GET"),
        ("303 See Other", "HEAD", "HEAD"),
        ("301 Moved", "PUT", "PUT"),
        ("302 Found", "GET", "GET"),
        ("307 Temporary", "POST", "POST"),
        ("308 Permanent", "POST", "POST"),
    ],
)
async def test_method_and_body_after_a_redirect_follow_the_standard(
    server: RecordingServer, client: FetchClient, status: str, method: str, then: str
) -> None:
    server.responses["/a"] = redirect("b", status)
    body = b"{}" if method in ("POST", "PUT") else None
    own = [("Content-Type", "application/json"), ("X-Own", "1")]
    response = await open_session(client).send(make_request(server.url("/a"), *own, method=method, body=body))
    await read_all(response)
    second = server.requests[1]
    assert (second.method, second.target, second.all("x-own")) == (then, "/b", ["1"])
    kept = then == method
    assert second.body == (body or b"" if kept else b"")
    assert second.all("content-type") == (["application/json"] if kept else [])
    assert (response.redirected, response.url) == (True, server.url("/b"))


async def test_redirect_mode_manual_and_error(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = redirect("/b")
    response = await open_session(client).send(make_request(server.url("/a"), redirect="manual"))
    assert (response.status, dict(response.headers)["location"], response.redirected) == (302, "/b", False)
    with pytest.raises(FetchError, match="answered with a redirect") as caught:
        await open_session(client).send(make_request(server.url("/a"), redirect="error"))
    assert caught.value.kind == "redirected"
    assert [received.target for received in server.requests] == ["/a", "/a"]


@pytest.mark.parametrize("status", ["300 Multiple", "304 Not Modified", "305 Use Proxy", "302 Found"])
async def test_redirect_status_without_location_is_a_response(
    server: RecordingServer, client: FetchClient, status: str
) -> None:
    headers = [] if status.startswith("302") else ["Location: /b"]
    server.responses["/a"] = http_response(status, *headers)
    assert (await open_session(client).send(make_request(server.url("/a")))).status == int(status[:3])


async def test_credentials_are_dropped_on_redirect_to_another_host(
    server: RecordingServer, client: FetchClient
) -> None:
    """The client also drops headers that browsers would keep, such as `apikey`."""
    server.responses["/a"] = redirect(server.url("/b", "127.0.0.1"))
    credentials = Credentials(
        localhost=[
            InjectedHeader("Authorization", SECRET, "c1"),
            InjectedHeader("apikey", "key-of-localhost", "c2"),
            InjectedHeader("Cookie", "session=abcdefgh", "c3"),
        ]
    )
    session = open_session(client, credentials, (SECRET, "key-of-localhost"))
    await session.send(make_request(server.url("/a", "localhost")))
    first, second = server.requests
    assert (first.all("authorization"), first.all("apikey")) == ([SECRET], ["key-of-localhost"])
    assert [second.all(name) for name in ("authorization", "apikey", "cookie")] == [[], [], []]
    assert [entry.credentials for entry in session.request_log] == [("c1", "c2", "c3"), ()]


async def test_credentials_are_chosen_again_after_every_redirect(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/a"] = redirect(server.url("/b", "127.0.0.1"))
    server.responses["/b"] = redirect(server.url("/c", "localhost"))
    credentials = Credentials(localhost=[InjectedHeader("apikey", "one", "c1")])
    credentials.by_host["127.0.0.1"] = [InjectedHeader("apikey", "two", "c2")]
    session = open_session(client, credentials, ())
    await session.send(make_request(server.url("/a", "localhost")))
    assert [received.all("apikey") for received in server.requests] == [["one"], ["two"], ["one"]]
    assert [entry.credentials for entry in session.request_log] == [("c1",), ("c2",), ("c1",)]


async def test_guest_credentials_are_dropped_on_redirect_to_another_origin(
    server: RecordingServer, client: FetchClient
) -> None:
    server.responses["/same"] = redirect("/b")
    server.responses["/other"] = redirect(server.url("/b", "127.0.0.1"))
    own = [("authorization", "mine"), ("COOKIE", "a=1"), ("X-Own", "x")]
    for path in ("/same", "/other"):
        await open_session(client).send(make_request(server.url(path, "localhost"), *own))
    kept, dropped = server.requests[1], server.requests[3]
    assert [kept.all(name) for name in ("authorization", "cookie", "x-own")] == [["mine"], ["a=1"], ["x"]]
    assert [dropped.all(name) for name in ("authorization", "cookie", "x-own")] == [[], [], ["x"]]


async def test_another_port_is_another_origin(server: RecordingServer, client: FetchClient) -> None:
    async with run_recording_server() as other:
        server.responses["/a"] = redirect(other.url("/b"))
        await open_session(client).send(make_request(server.url("/a"), ("Authorization", "mine")))
        assert other.requests[0].all("authorization") == []


async def test_redirect_from_https_to_http_is_refused_unless_the_host_is_named() -> None:
    async with run_recording_server(tls=True) as secure, run_recording_server() as plain:
        secure.responses["/a"] = redirect(plain.url("/b"))
        credentials = Credentials(**{"127.0.0.1": [InjectedHeader("apikey", "hunter22", "c1")]})
        async with run_http_client(egress_allow=(f"127.0.0.1:{secure.port}",)) as client:
            with pytest.raises(FetchError, match="over https only") as caught:
                await open_session(client, credentials).send(make_request(secure.url("/a")))
            assert (caught.value.kind, plain.requests) == ("egress_refused", [])
        async with run_http_client() as client:
            await open_session(client, credentials).send(make_request(secure.url("/a")))
            assert len(plain.requests) == 1


async def test_redirect_loop_ends(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = redirect("/b")
    server.responses["/b"] = redirect("/a")
    with pytest.raises(FetchError, match="more than 20 redirects") as caught:
        await open_session(client).send(make_request(server.url("/a")))
    assert caught.value.kind == "too_many_redirects"
    assert len(server.requests) == 21
    with pytest.raises(FetchError, match="more than 0 redirects"):
        await open_session(client, max_redirects=0).send(make_request(server.url("/a")))


async def test_redirects_count_as_requests(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = redirect("/b")
    session = open_session(client, max_requests=3)
    await session.send(make_request(server.url("/a")))
    with pytest.raises(FetchError, match="can make 3 requests") as caught:
        await session.send(make_request(server.url("/a")))
    assert caught.value.kind == "too_many_requests"
    assert len(server.requests) == len(session.request_log) == 3


@pytest.mark.parametrize(
    "location",
    [
        "http://169.254.169.254/latest/meta-data/",
        "https://169.254.169.254/",
        "https://[fd00:ec2::254]/",
        "https://100.100.100.200/",
        "https://10.0.0.1/",
        "https://192.168.0.1/",
        "https://0.0.0.0/",
        "https://[::]/",
        "https://[::1]/",
        "https://2130706434/",
        "https://0x7f.2/",
        "https://0177.0.0.2/",
        "https://127.2/",
        "https://[::ffff:7f00:2]/",
        "//10.0.0.1/",
    ],
)
async def test_redirect_to_an_internal_host_is_refused(
    server: RecordingServer, client: FetchClient, location: str
) -> None:
    server.responses["/a"] = redirect("/b", "307 Temporary")
    server.responses["/b"] = redirect(location, "307 Temporary")
    session = open_session(client)
    with pytest.raises(FetchError) as caught:
        await session.send(make_request(server.url("/a"), method="POST", body=b"x"))
    assert caught.value.kind == "egress_refused"
    assert [entry.error for entry in session.request_log] == [None, None, "egress_refused"]


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "javascript:x", "https://u:p@x.example/", "https://①.①"]
)
async def test_redirect_to_another_scheme_is_refused(
    server: RecordingServer, client: FetchClient, location: str
) -> None:
    server.responses["/a"] = http_response("302 Found")[:-2] + b"Location: " + location.encode() + b"\r\n\r\n"
    with pytest.raises(FetchError) as caught:
        await open_session(client).send(make_request(server.url("/a")))
    assert caught.value.kind == "bad_url"


async def test_body_of_a_redirect_is_not_read(server: RecordingServer, client: FetchClient) -> None:
    server.responses["/a"] = b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 1000000000\r\n\r\nsome"
    assert (await open_session(client).send(make_request(server.url("/a")))).status == 200
