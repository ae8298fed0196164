from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest
from tests.certificates import certificates
from tests.egress.servers import serving
from tests.egress.upstreams import Credentials, brokered, get, opened, redirect, upstream, whole

from hutch.egress import resolver
from hutch.egress.fetch import FetchError, Injected
from hutch.egress.tunnel import Tunnel
from hutch.errors import SettingError
from hutch.settings import load


class Seen:
    """What a proxy was asked for, and what it answers instead of connecting."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.refusal = b""


@contextlib.asynccontextmanager
async def proxy(seen: Seen, *, tls: bool = False) -> AsyncIterator[int]:
    """A real one, for CONNECT."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        seen.heads.append(head)
        if seen.refusal:
            writer.write(seen.refusal)
            await writer.drain()
            return
        host, _, port = head.split(" ")[1].rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        finally:
            far_writer.close()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()

    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates().server)
    async with serving(handle, context) as port:
        yield port


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    known = {"registry.invalid": ["127.0.0.1"], "localhost": ["127.0.0.1"]}
    monkeypatch.setattr(resolver, "lookup", lambda name: known[name])
    return known


@pytest.mark.parametrize("secure_proxy", [False, True])
@pytest.mark.parametrize("secure_server", [False, True])
async def test_requests_go_through_the_proxy_to_the_address_that_was_checked(
    names: dict[str, list[str]], secure_proxy: bool, secure_server: bool
) -> None:
    seen = Seen()
    async with proxy(seen, tls=secure_proxy) as port, upstream(tls=secure_server) as server:
        url = f"{'https' if secure_proxy else 'http'}://us%20er:p%3Ass@localhost:{port}"
        async with brokered(proxy_url=url, egress_allow=("registry.invalid",)) as broker:
            for _ in range(3):
                reply = await opened(broker).send(get(server.url("/a", "registry.invalid")))
                assert b"host: registry.invalid" in await whole(reply)
    login = base64.b64encode(b"us er:p:ss").decode()
    target = f"127.0.0.1:{server.port}"
    assert seen.heads == [
        f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {login}\r\n\r\n"
    ]
    assert "proxy-authorization" not in str(server.asked[0].headers)


async def test_the_certificate_of_the_server_is_verified_through_the_proxy(
    names: dict[str, list[str]],
) -> None:
    names["other.invalid"] = ["127.0.0.1"]
    seen = Seen()
    async with (
        proxy(seen) as port,
        upstream(tls=True) as server,
        brokered(proxy_url=f"http://127.0.0.1:{port}", egress_allow=("other.invalid",)) as broker,
    ):
        with pytest.raises(FetchError, match=r"certificate of other\.invalid") as caught:
            await opened(broker).send(get(server.url("/", "other.invalid")))
    assert (caught.value.kind, len(seen.heads), server.asked) == ("tls", 1, [])


async def test_the_proxy_is_not_asked_for_what_may_not_be_reached(names: dict[str, list[str]]) -> None:
    names["inside.example"] = ["10.0.0.1"]
    seen = Seen()
    async with proxy(seen) as port, upstream() as server:
        server.answers["/a"] = redirect("https://169.254.169.254/")
        url = f"http://127.0.0.1:{port}"
        async with brokered(proxy_url=url, egress_allow=(f"127.0.0.1:{server.port}",)) as broker:
            for target in ("https://inside.example/", "https://10.0.0.1/", f"https://127.0.0.1:{port}/"):
                with pytest.raises(FetchError) as caught:
                    await opened(broker).send(get(target))
                assert caught.value.kind == "egress_refused"
            assert seen.heads == []
            with pytest.raises(FetchError, match="metadata"):
                await opened(broker).send(get(server.url("/a")))
    assert len(seen.heads) == 1


async def test_credentials_stay_bound_to_their_host_through_a_proxy(names: dict[str, list[str]]) -> None:
    seen = Seen()
    async with proxy(seen) as port, upstream(tls=True) as server:
        server.answers["/a"] = redirect(server.url("/b", "localhost"))
        url = f"http://127.0.0.1:{port}"
        async with brokered(proxy_url=url, egress_allow=("registry.invalid", "localhost")) as broker:
            credentials = Credentials(**{"registry.invalid": [Injected("apikey", "hunter22", "c1")]})
            await opened(broker, credentials).send(get(server.url("/a", "registry.invalid")))
    assert [asked.all("apikey") for asked in server.asked] == [["hunter22"], []]
    assert "hunter22" not in str(seen.heads)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it answered 407"),
        (b"HTTP/1.1 403 Forbidden\r\nX: secret-of-the-proxy\r\n\r\n", "it answered 403"),
        (b"nonsense\r\n\r\n", "what is not HTTP"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad", "it answered 502"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\nevil", "it answered 200"),
        (b"HTTP/1.1 200", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "closed the connection"),
    ],
)
async def test_a_proxy_that_does_not_connect_is_told_without_its_secrets(answer: bytes, said: str) -> None:
    seen = Seen()
    seen.refusal = answer
    async with proxy(seen) as port, brokered(proxy_url=f"http://user:hunter22@127.0.0.1:{port}") as broker:
        with pytest.raises(FetchError, match=rf"^The operator's proxy .*{said}") as caught:
            await opened(broker).send(get("https://127.0.0.1:9/"))
    assert caught.value.kind == "unreachable"
    assert "hunter22" not in str(caught.value)
    assert "secret-of" not in str(caught.value)


async def test_a_proxy_that_is_not_there_is_told() -> None:
    async with serving(lambda reader, writer: asyncio.sleep(0)) as port:
        pass
    async with brokered(proxy_url=f"http://user:hunter22@127.0.0.1:{port}") as broker:
        with pytest.raises(FetchError, match=r"^The operator's proxy cannot be reached\.$"):
            await opened(broker).send(get("https://127.0.0.1:9/"))


async def test_a_proxy_with_a_wrong_certificate_is_not_told_anything(
    names: dict[str, list[str]],
) -> None:
    names["other.invalid"] = ["127.0.0.1"]
    seen = Seen()
    async with (
        proxy(seen, tls=True) as port,
        brokered(proxy_url=f"https://user:hunter22@other.invalid:{port}") as broker,
    ):
        with pytest.raises(FetchError) as caught:
            await opened(broker).send(get("https://127.0.0.1:9/"))
    assert (caught.value.kind, seen.heads) == ("tls", [])


@pytest.mark.parametrize(
    "url", ["", "socks5://x:1", "x:1", "http://", "http://u:hunter22@/", "http://x:99999", "http://a b:1"]
)
def test_a_setting_that_is_no_proxy_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingError, match="proxy_url: expected http") as caught:
        Tunnel(url)
    assert "hunter22" not in str(caught.value)


async def test_a_proxy_that_does_not_answer_is_given_up() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.get_running_loop().create_future()

    for scheme in ("http", "https"):
        async with serving(mute) as port, brokered(proxy_url=f"{scheme}://127.0.0.1:{port}") as broker:
            with pytest.raises(FetchError) as caught:
                await opened(broker, seconds=0.1).send(get("https://127.0.0.1:9/"))
            assert caught.value.kind == "timeout"


def test_the_specified_variable_names_the_proxy_and_its_password_is_in_no_repr() -> None:
    url = "http://user:hunter22@proxy.example:3128"
    settings = load(environ={"PROXY_URL": url})
    assert settings.proxy_url == url
    assert "hunter22" not in repr(settings)
    assert "hunter22" not in repr(Tunnel(url))
