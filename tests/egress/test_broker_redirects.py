from __future__ import annotations

import pytest
from tests.egress.upstreams import (
    Credentials,
    Upstream,
    answer,
    brokered,
    get,
    opened,
    redirect,
    upstream,
    whole,
)

from hutch.egress.broker import Broker
from hutch.egress.fetch import FetchError, Injected

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
async def test_the_method_and_body_after_a_redirect_are_those_of_the_standard(
    server: Upstream, broker: Broker, status: str, method: str, then: str
) -> None:
    server.answers["/a"] = redirect("b", status)
    body = b"{}" if method in ("POST", "PUT") else None
    own = [("Content-Type", "application/json"), ("X-Own", "1")]
    reply = await opened(broker).send(get(server.url("/a"), *own, method=method, body=body))
    await whole(reply)
    second = server.asked[1]
    assert (second.method, second.target, second.all("x-own")) == (then, "/b", ["1"])
    kept = then == method
    assert second.body == (body or b"" if kept else b"")
    assert second.all("content-type") == (["application/json"] if kept else [])
    assert (reply.redirected, reply.url) == (True, server.url("/b"))


async def test_a_redirect_can_be_looked_at_or_refused(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = redirect("/b")
    reply = await opened(broker).send(get(server.url("/a"), redirect="manual"))
    assert (reply.status, dict(reply.headers)["location"], reply.redirected) == (302, "/b", False)
    with pytest.raises(FetchError, match="answered with a redirect") as caught:
        await opened(broker).send(get(server.url("/a"), redirect="error"))
    assert caught.value.kind == "redirected"
    assert [asked.target for asked in server.asked] == ["/a", "/a"]


@pytest.mark.parametrize("status", ["300 Multiple", "304 Not Modified", "305 Use Proxy", "302 Found"])
async def test_what_leads_nowhere_is_an_answer(server: Upstream, broker: Broker, status: str) -> None:
    headers = [] if status.startswith("302") else ["Location: /b"]
    server.answers["/a"] = answer(status, *headers)
    assert (await opened(broker).send(get(server.url("/a")))).status == int(status[:3])


async def test_credentials_of_one_host_are_dropped_on_the_way_to_another(
    server: Upstream, broker: Broker
) -> None:
    """Also those that no browser would drop, such as `apikey`."""
    server.answers["/a"] = redirect(server.url("/b", "127.0.0.1"))
    credentials = Credentials(
        localhost=[
            Injected("Authorization", SECRET, "c1"),
            Injected("apikey", "key-of-localhost", "c2"),
            Injected("Cookie", "session=abcdefgh", "c3"),
        ]
    )
    fetching = opened(broker, credentials, (SECRET, "key-of-localhost"))
    await fetching.send(get(server.url("/a", "localhost")))
    first, second = server.asked
    assert (first.all("authorization"), first.all("apikey")) == ([SECRET], ["key-of-localhost"])
    assert [second.all(name) for name in ("authorization", "apikey", "cookie")] == [[], [], []]
    assert [hop.credentials for hop in fetching.hops] == [("c1", "c2", "c3"), ()]


async def test_credentials_are_decided_anew_also_on_the_way_back(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = redirect(server.url("/b", "127.0.0.1"))
    server.answers["/b"] = redirect(server.url("/c", "localhost"))
    credentials = Credentials(localhost=[Injected("apikey", "one", "c1")])
    credentials.by_host["127.0.0.1"] = [Injected("apikey", "two", "c2")]
    fetching = opened(broker, credentials, ())
    await fetching.send(get(server.url("/a", "localhost")))
    assert [asked.all("apikey") for asked in server.asked] == [["one"], ["two"], ["one"]]
    assert [hop.credentials for hop in fetching.hops] == [("c1",), ("c2",), ("c1",)]


async def test_a_wrappers_own_credentials_stay_with_the_origin_it_sent_them_to(
    server: Upstream, broker: Broker
) -> None:
    server.answers["/same"] = redirect("/b")
    server.answers["/other"] = redirect(server.url("/b", "127.0.0.1"))
    own = [("authorization", "mine"), ("COOKIE", "a=1"), ("X-Own", "x")]
    for path in ("/same", "/other"):
        await opened(broker).send(get(server.url(path, "localhost"), *own))
    kept, dropped = server.asked[1], server.asked[3]
    assert [kept.all(name) for name in ("authorization", "cookie", "x-own")] == [["mine"], ["a=1"], ["x"]]
    assert [dropped.all(name) for name in ("authorization", "cookie", "x-own")] == [[], [], ["x"]]


async def test_another_port_is_another_origin(server: Upstream, broker: Broker) -> None:
    async with upstream() as other:
        server.answers["/a"] = redirect(other.url("/b"))
        await opened(broker).send(get(server.url("/a"), ("Authorization", "mine")))
        assert other.asked[0].all("authorization") == []


async def test_a_redirect_from_https_to_http_is_refused_unless_the_host_is_named() -> None:
    async with upstream(tls=True) as secure, upstream() as plain:
        secure.answers["/a"] = redirect(plain.url("/b"))
        credentials = Credentials(**{"127.0.0.1": [Injected("apikey", "hunter22", "c1")]})
        async with brokered(egress_allow=(f"127.0.0.1:{secure.port}",)) as broker:
            with pytest.raises(FetchError, match="over https only") as caught:
                await opened(broker, credentials).send(get(secure.url("/a")))
            assert (caught.value.kind, plain.asked) == ("egress_refused", [])
        async with brokered() as broker:
            await opened(broker, credentials).send(get(secure.url("/a")))
            assert len(plain.asked) == 1


async def test_circles_end(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = redirect("/b")
    server.answers["/b"] = redirect("/a")
    with pytest.raises(FetchError, match="more than 20 redirects") as caught:
        await opened(broker).send(get(server.url("/a")))
    assert caught.value.kind == "too_many_redirects"
    assert len(server.asked) == 21
    with pytest.raises(FetchError, match="more than 0 redirects"):
        await opened(broker, redirects=0).send(get(server.url("/a")))


async def test_redirects_count_as_requests(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = redirect("/b")
    fetching = opened(broker, requests=3)
    await fetching.send(get(server.url("/a")))
    with pytest.raises(FetchError, match="can make 3 requests") as caught:
        await fetching.send(get(server.url("/a")))
    assert caught.value.kind == "too_many_requests"
    assert len(server.asked) == len(fetching.hops) == 3


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
async def test_no_redirect_leads_inside(server: Upstream, broker: Broker, location: str) -> None:
    server.answers["/a"] = redirect("/b", "307 Temporary")
    server.answers["/b"] = redirect(location, "307 Temporary")
    fetching = opened(broker)
    with pytest.raises(FetchError) as caught:
        await fetching.send(get(server.url("/a"), method="POST", body=b"x"))
    assert caught.value.kind == "egress_refused"
    assert [hop.error for hop in fetching.hops] == [None, None, "egress_refused"]


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "javascript:x", "https://u:p@x.example/", "https://①.①"]
)
async def test_no_redirect_leads_out_of_the_web(server: Upstream, broker: Broker, location: str) -> None:
    server.answers["/a"] = answer("302 Found")[:-2] + b"Location: " + location.encode() + b"\r\n\r\n"
    with pytest.raises(FetchError) as caught:
        await opened(broker).send(get(server.url("/a")))
    assert caught.value.kind == "bad_url"


async def test_the_body_of_a_redirect_is_not_waited_for(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = b"HTTP/1.1 302 Found\r\nLocation: /b\r\nContent-Length: 1000000000\r\n\r\nsome"
    assert (await opened(broker).send(get(server.url("/a")))).status == 200
