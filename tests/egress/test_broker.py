from __future__ import annotations

import asyncio
import gzip

import pytest
from tests.egress.upstreams import (
    Asked,
    Credentials,
    Upstream,
    answer,
    cut,
    get,
    opened,
    redirect,
    silent,
    whole,
)

from hutch.egress.broker import Broker
from hutch.egress.fetch import FetchError, Hop, Injected, Request
from hutch.errors import SettingError
from hutch.settings import Settings

SECRET = "Bearer sk-abcdefghijklmnop"


# --- requests and answers ---


async def test_a_request_is_sent_as_it_was_made(server: Upstream, broker: Broker) -> None:
    fetching = opened(broker)
    request = get(server.url("/a?b=c#d"), ("X-One", "1"), method="post", body=b"body")
    reply = await fetching.send(request)
    assert (await whole(reply)).endswith(b"\nbody")
    (asked,) = server.asked
    assert (asked.method, asked.target, asked.body) == ("POST", "/a?b=c", b"body")
    assert asked.all("x-one") == ["1"]
    assert asked.all("host") == [f"127.0.0.1:{server.port}"]
    assert asked.all("content-length") == ["4"]
    assert asked.all("accept-encoding") == ["gzip, deflate"]
    assert asked.all("user-agent")[0].startswith("Hutch/")


async def test_an_answer_has_all_that_came(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = answer(
        "418 I'm a teapot", "Set-Cookie: a=1", "X-Case:  v ", "set-cookie: b=2", body=b"tea"
    )
    reply = await opened(broker).send(get(server.url("/a")))
    assert (reply.status, reply.reason, reply.redirected) == (418, "I'm a teapot", False)
    assert reply.url == server.url("/a")
    expected = [("set-cookie", "a=1"), ("x-case", "v"), ("set-cookie", "b=2"), ("content-length", "3")]
    assert reply.headers == expected
    assert await whole(reply) == b"tea"
    assert reply.ended


async def test_a_guests_own_agent_and_accept_count(server: Upstream, broker: Broker) -> None:
    headers = (("User-Agent", "mine"), ("ACCEPT", "text/html"), ("Accept-Encoding", "br, zstd"))
    await opened(broker).send(get(server.url(), *headers))
    asked = server.asked[0]
    assert (asked.all("user-agent"), asked.all("accept")) == (["mine"], ["text/html"])
    assert asked.all("accept-encoding") == ["gzip, deflate"]


@pytest.mark.parametrize("name", ["Host", "content-LENGTH", "Transfer-Encoding", "Connection", "Upgrade"])
async def test_forbidden_headers_of_a_guest_are_not_sent(server: Upstream, broker: Broker, name: str) -> None:
    await opened(broker).send(get(server.url(), (name, "evil"), method="POST", body=b"x"))
    asked = server.asked[0]
    assert "evil" not in str(asked.headers)
    assert (asked.all("content-length"), asked.body) == (["1"], b"x")


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
    server: Upstream, broker: Broker, status: str, headers: list[str]
) -> None:
    server.answers["/a"] = silent("\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""]).encode())
    reply = await opened(broker).send(get(server.url("/a")))
    assert reply.status == int(status[:3])
    assert await whole(reply) == b""


async def test_an_answer_to_head_has_no_body_and_leaves_the_connection_usable(
    server: Upstream, broker: Broker
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    server.answers["/a"] = head
    fetching = opened(broker)
    reply = await fetching.send(get(server.url("/a"), method="HEAD"))
    assert (await whole(reply), reply.headers) == (b"", [("content-length", "1000")])
    await whole(await fetching.send(get(server.url("/b"))))
    assert [asked.connection for asked in server.asked] == [1, 1]


async def test_a_body_can_be_chunked_or_last_until_the_end(server: Upstream, broker: Broker) -> None:
    server.answers["/chunked"] = (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n"
        b"0\r\nTrailer: x\r\n\r\n"
    )
    server.answers["/end"] = cut(b"HTTP/1.1 200 OK\r\n\r\nall of it")
    fetching = opened(broker)
    assert await whole(await fetching.send(get(server.url("/chunked")))) == b"abcde"
    reply = await fetching.send(get(server.url("/end")))
    assert await whole(reply) == b"all of it"
    assert "trailer" not in dict(reply.headers)


async def test_interim_answers_are_passed_over(server: Upstream, broker: Broker) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"
    server.answers["/a"] = hints + answer(body=b"done")
    reply = await opened(broker).send(get(server.url("/a")))
    assert (reply.status, reply.reason, await whole(reply)) == (200, "OK", b"done")
    assert reply.headers == [("content-length", "4")]


async def test_a_body_is_read_as_it_comes_in_pieces_no_larger_than_wanted(
    server: Upstream, broker: Broker
) -> None:
    go_on = asyncio.Event()

    async def slowly(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfirst")
        await go_on.wait()
        writer.write(b"later")
        await writer.drain()

    server.answers["/a"] = slowly
    reply = await opened(broker).send(get(server.url("/a")))
    assert [await reply.read(2), await reply.read(2), await reply.read(2)] == [b"fi", b"rs", b"t"]
    assert not reply.ended
    go_on.set()
    assert await whole(reply) == b"later"
    assert await reply.read() == b""


async def test_who_reads_the_last_of_a_body_sees_that_it_was(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = answer("200 OK", "Content-Encoding: gzip", body=gzip.compress(b"small"))
    reply = await opened(broker, secrets=(SECRET,)).send(get(server.url("/a")))
    assert (await reply.read(), reply.ended) == (b"small", True)


async def test_compressed_answers_are_decoded(server: Upstream, broker: Broker) -> None:
    text = b"some text " * 100_000
    server.answers["/a"] = answer("200 OK", "Content-Encoding: gzip", body=gzip.compress(text))
    reply = await opened(broker).send(get(server.url("/a")))
    assert await whole(reply) == text
    assert dict(reply.headers)["content-encoding"] == "gzip"


async def test_a_retry_after_is_passed_on(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = answer("429 Too Many Requests", "Retry-After: 7")
    reply = await opened(broker).send(get(server.url("/a")))
    assert (reply.status, dict(reply.headers)["retry-after"]) == (429, "7")


# --- what is injected, and the log ---


async def test_credentials_go_to_their_host_and_nowhere_else(server: Upstream, broker: Broker) -> None:
    credentials = Credentials(localhost=[Injected("Authorization", SECRET, "c1")])
    fetching = opened(broker, credentials, (SECRET,))
    await whole(await fetching.send(get(server.url("/", "localhost"))))
    await whole(await fetching.send(get(server.url("/", "127.0.0.1"))))
    assert [asked.all("authorization") for asked in server.asked] == [[SECRET], []]
    assert [hop.credentials for hop in fetching.hops] == [("c1",), ()]


async def test_users_at_once_are_never_mixed(server: Upstream, broker: Broker) -> None:
    async def one(number: int) -> None:
        secret = f"Bearer secret-of-user-{number:03}"
        credentials = Credentials(localhost=[Injected("Authorization", secret, f"c{number}")])
        for _ in range(4):
            fetching = opened(broker, credentials, (secret,), owner=f"user{number}")
            body = await whole(
                await fetching.send(get(server.url("/", "localhost"), ("X-User", str(number))))
            )
            assert f"x-user: {number}\n".encode() in body
            assert b"authorization: Bearer [redacted]\n" in body
            assert fetching.hops[0].credentials == (f"c{number}",)
            await fetching.close()

    await asyncio.gather(*map(one, range(50)))
    told = {(asked.all("x-user")[0], asked.all("authorization")[0]) for asked in server.asked}
    assert told == {(str(number), f"Bearer secret-of-user-{number:03}") for number in range(50)}
    owners: dict[int, set[str]] = {}
    for asked in server.asked:
        owners.setdefault(asked.connection, set()).update(asked.all("x-user"))
    assert all(len(users) == 1 for users in owners.values())


async def test_a_wrapper_that_sets_a_header_itself_sends_its_own_value(
    server: Upstream, broker: Broker
) -> None:
    credentials = Credentials(localhost=[Injected("Authorization", SECRET, "c1")])
    fetching = opened(broker, credentials, (SECRET,))
    await fetching.send(get(server.url("/", "localhost"), ("AUTHORIZATION", "own")))
    assert server.asked[0].all("authorization") == ["own"]
    assert fetching.hops[0].credentials == ()


async def test_secrets_come_back_in_no_header_body_reason_or_address(
    server: Upstream, broker: Broker
) -> None:
    token = SECRET.removeprefix("Bearer ")
    server.answers["/a"] = redirect(f"/b/{token}?t={token}")
    server.answers[f"/b/{token}"] = answer(
        f"200 {token}", f"X-Echo: {SECRET}", body=SECRET.encode().hex().encode()
    )
    fetching = opened(broker, secrets=(SECRET,))
    reply = await fetching.send(get(server.url("/a")))
    shown = (reply.reason, reply.url, reply.headers, await whole(reply), fetching.hops)
    assert token not in str(shown)
    assert token.encode().hex() not in str(shown)
    assert server.asked[1].target == f"/b/{token}?t={token}"


async def test_a_secret_in_the_name_of_a_host_is_in_no_error(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = redirect("https://sk-abcdefghijklmnop.invalid/")
    told: list[str] = []
    fetching = broker.open(Credentials(), [SECRET], owner="user", log=told.append)
    with pytest.raises(FetchError) as caught:
        await fetching.send(get(server.url("/a")))
    assert "sk-abc" not in f"{caught.value}{told}{fetching.hops}"
    assert told == [caught.value.message]


async def test_the_log_has_what_happened_and_no_values(server: Upstream, broker: Broker) -> None:
    server.answers["/go"] = redirect("/there?token=x")
    credentials = Credentials(**{"127.0.0.1": [Injected("apikey", "hunter22", "c1")]})
    fetching = opened(broker, credentials, ("hunter22",))
    reply = await fetching.send(get(server.url("/go?q=hidden"), method="POST", body=b"12345"))
    await whole(reply)
    host = f"127.0.0.1:{server.port}"
    told = [(hop.method, hop.host, hop.path, hop.status, hop.credentials, hop.error) for hop in fetching.hops]
    assert told == [("POST", host, "/go", 302, ("c1",), None), ("GET", host, "/there", 200, ("c1",), None)]
    for hop in fetching.hops:
        assert hop.sent_bytes > 100
        assert hop.received_bytes > 20
        assert hop.ms > 0
    assert "hunter22" not in str(fetching.hops)
    assert "hidden" not in str(fetching.hops)


async def test_the_log_has_what_failed(server: Upstream, broker: Broker) -> None:
    server.answers["/a"] = cut(b"")
    fetching = opened(broker)
    for url in (server.url("/a"), "https://10.0.0.1/"):
        with pytest.raises(FetchError):
            await fetching.send(get(url))
    assert [(hop.path, hop.status, hop.error) for hop in fetching.hops] == [
        ("/a", None, "unreachable"),
        ("/", None, "egress_refused"),
    ]
    assert isinstance(fetching.hops[0], Hop)


# --- bad requests and settings ---


@pytest.mark.parametrize("method", ["", "GET /", "A\r\nB", "CONNECT", "trace", "TRACK", "ä"])
async def test_a_method_that_is_none_is_refused(server: Upstream, broker: Broker, method: str) -> None:
    with pytest.raises(FetchError, match="is no method") as caught:
        await opened(broker).send(Request(method=method, url=server.url()))
    assert (caught.value.kind, server.asked) == ("bad_request", [])


async def test_bodies_where_there_are_none_and_too_large_ones_are_refused(
    server: Upstream, broker: Broker
) -> None:
    fetching = opened(broker, body_bytes=10)
    for request, kind in (
        (get(server.url(), body=b""), "bad_request"),
        (get(server.url(), method="POST", body=b"x" * 11), "too_large"),
    ):
        with pytest.raises(FetchError) as caught:
            await fetching.send(request)
        assert caught.value.kind == kind
    assert (await fetching.send(get(server.url(), method="PATCH", body=b"x" * 10))).status == 200


@pytest.mark.parametrize("value", ["x\r\nX-Evil: y", "x\ny", "x\0y"])
async def test_line_breaks_in_headers_never_reach_the_wire(
    server: Upstream, broker: Broker, value: str
) -> None:
    injected = Credentials(**{"127.0.0.1": [Injected("X-Key", value, "c1")]})
    for fetching, headers in ((opened(broker), [("X-Key", value)]), (opened(broker, injected), [])):
        with pytest.raises(FetchError) as caught:
            await fetching.send(get(server.url(), *headers))
        assert caught.value.kind == "bad_header"
    assert server.asked == []


@pytest.mark.parametrize("entry", ["http://x", "*.127.0.0.1", "a b", "a:99999"])
def test_a_setting_that_is_no_host_is_refused(entry: str) -> None:
    with pytest.raises(SettingError, match="egress_http_hosts"):
        Broker(Settings(egress_http_hosts=(entry,)))
