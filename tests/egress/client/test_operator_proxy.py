from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator

import pytest
from tests.egress.recording_server import (
    Credentials,
    make_request,
    open_session,
    read_all,
    redirect,
    run_http_client,
    run_recording_server,
)
from tests.egress.servers import run_server
from tests.support.network.certificates import certificates

from hutch.egress import resolver
from hutch.egress.client.models import FetchError, InjectedHeader
from hutch.egress.client.operator_proxy import OperatorProxy
from hutch.errors import SettingError
from hutch.settings import load_settings


class ProxyLog:
    """Records the requests that a proxy gets. If `refusal` is set, the proxy answers every request with these
    bytes.
    """

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.refusal = b""


@contextlib.asynccontextmanager
async def proxy(proxy_log: ProxyLog, *, tls: bool = False) -> AsyncIterator[int]:
    """Runs an HTTP proxy that supports CONNECT. Yields its port."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        proxy_log.heads.append(head)
        if proxy_log.refusal:
            writer.write(proxy_log.refusal)
            await writer.drain()
            return
        host, _, port = head.split(" ")[1].rpartition(":")
        server_reader, server_writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        try:
            await asyncio.gather(pump(reader, server_writer), pump(server_reader, writer))
        finally:
            server_writer.close()

    async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        sink.close()

    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates().server)
    async with run_server(handle, context) as port:
        yield port


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    known = {"registry.invalid": ["127.0.0.1"], "localhost": ["127.0.0.1"]}
    monkeypatch.setattr(resolver, "lookup", lambda name: known[name])
    return known


@pytest.mark.parametrize("secure_proxy", [False, True])
@pytest.mark.parametrize("secure_server", [False, True])
async def test_requests_go_through_the_proxy_to_the_checked_address(
    names: dict[str, list[str]], secure_proxy: bool, secure_server: bool
) -> None:
    proxy_log = ProxyLog()
    async with proxy(proxy_log, tls=secure_proxy) as port, run_recording_server(tls=secure_server) as server:
        url = f"{'https' if secure_proxy else 'http'}://us%20er:p%3Ass@localhost:{port}"
        async with run_http_client(proxy_url=url, egress_allow=("registry.invalid",)) as client:
            for _ in range(3):
                response = await open_session(client).send(make_request(server.url("/a", "registry.invalid")))
                assert b"host: registry.invalid" in await read_all(response)
    login = base64.b64encode(b"us er:p:ss").decode()
    target = f"127.0.0.1:{server.port}"
    assert proxy_log.heads == [
        f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nProxy-Authorization: Basic {login}\r\n\r\n"
    ]
    assert "proxy-authorization" not in str(server.requests[0].headers)


async def test_server_certificate_is_verified_through_the_proxy(
    names: dict[str, list[str]],
) -> None:
    names["other.invalid"] = ["127.0.0.1"]
    proxy_log = ProxyLog()
    async with (
        proxy(proxy_log) as port,
        run_recording_server(tls=True) as server,
        run_http_client(proxy_url=f"http://127.0.0.1:{port}", egress_allow=("other.invalid",)) as client,
    ):
        with pytest.raises(FetchError, match=r"certificate of other\.invalid") as caught:
            await open_session(client).send(make_request(server.url("/", "other.invalid")))
    assert (caught.value.kind, len(proxy_log.heads), server.requests) == ("tls", 1, [])


async def test_proxy_is_not_asked_for_refused_hosts(names: dict[str, list[str]]) -> None:
    names["inside.example"] = ["10.0.0.1"]
    proxy_log = ProxyLog()
    async with proxy(proxy_log) as port, run_recording_server() as server:
        server.responses["/a"] = redirect("https://169.254.169.254/")
        url = f"http://127.0.0.1:{port}"
        async with run_http_client(proxy_url=url, egress_allow=(f"127.0.0.1:{server.port}",)) as client:
            for target in ("https://inside.example/", "https://10.0.0.1/", f"https://127.0.0.1:{port}/"):
                with pytest.raises(FetchError) as caught:
                    await open_session(client).send(make_request(target))
                assert caught.value.kind == "egress_refused"
            assert proxy_log.heads == []
            with pytest.raises(FetchError, match="metadata"):
                await open_session(client).send(make_request(server.url("/a")))
    assert len(proxy_log.heads) == 1


async def test_credentials_stay_bound_to_their_host_through_a_proxy(names: dict[str, list[str]]) -> None:
    proxy_log = ProxyLog()
    async with proxy(proxy_log) as port, run_recording_server(tls=True) as server:
        server.responses["/a"] = redirect(server.url("/b", "localhost"))
        url = f"http://127.0.0.1:{port}"
        async with run_http_client(proxy_url=url, egress_allow=("registry.invalid", "localhost")) as client:
            credentials = Credentials(**{"registry.invalid": [InjectedHeader("apikey", "hunter22", "c1")]})
            await open_session(client, credentials).send(make_request(server.url("/a", "registry.invalid")))
    assert [received.all("apikey") for received in server.requests] == [["hunter22"], []]
    assert "hunter22" not in str(proxy_log.heads)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "it answered 407"),
        (b"HTTP/1.1 403 Forbidden\r\nX: secret-of-the-proxy\r\n\r\n", "it answered 403"),
        (b"garbage\r\n\r\n", "something that is not HTTP"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nbad", "it answered 502"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\nevil", "it answered 200"),
        (b"HTTP/1.1 200", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", "closed the connection"),
    ],
)
async def test_failing_proxy_is_reported_without_secrets(answer: bytes, reason: str) -> None:
    proxy_log = ProxyLog()
    proxy_log.refusal = answer
    async with (
        proxy(proxy_log) as port,
        run_http_client(proxy_url=f"http://user:hunter22@127.0.0.1:{port}") as client,
    ):
        with pytest.raises(FetchError, match=rf"^The operator's proxy .*{reason}") as caught:
            await open_session(client).send(make_request("https://127.0.0.1:9/"))
    assert caught.value.kind == "unreachable"
    assert "hunter22" not in str(caught.value)
    assert "secret-of" not in str(caught.value)


async def test_unreachable_proxy_is_reported() -> None:
    async with run_server(lambda reader, writer: asyncio.sleep(0)) as port:
        pass
    async with run_http_client(proxy_url=f"http://user:hunter22@127.0.0.1:{port}") as client:
        with pytest.raises(FetchError, match=r"^The operator's proxy cannot be reached\.$"):
            await open_session(client).send(make_request("https://127.0.0.1:9/"))


async def test_proxy_with_an_untrusted_certificate_gets_no_data(
    names: dict[str, list[str]],
) -> None:
    names["other.invalid"] = ["127.0.0.1"]
    proxy_log = ProxyLog()
    async with (
        proxy(proxy_log, tls=True) as port,
        run_http_client(proxy_url=f"https://user:hunter22@other.invalid:{port}") as client,
    ):
        with pytest.raises(FetchError) as caught:
            await open_session(client).send(make_request("https://127.0.0.1:9/"))
    assert (caught.value.kind, proxy_log.heads) == ("tls", [])


@pytest.mark.parametrize(
    "url", ["", "socks5://x:1", "x:1", "http://", "http://u:hunter22@/", "http://x:99999", "http://a b:1"]
)
def test_invalid_proxy_url_is_rejected_without_repeating_it(url: str) -> None:
    with pytest.raises(SettingError, match="proxy_url: expected http") as caught:
        OperatorProxy(url)
    assert "hunter22" not in str(caught.value)


async def test_unresponsive_proxy_times_out() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.get_running_loop().create_future()

    for scheme in ("http", "https"):
        async with (
            run_server(mute) as port,
            run_http_client(proxy_url=f"{scheme}://127.0.0.1:{port}") as client,
        ):
            with pytest.raises(FetchError) as caught:
                await open_session(client, max_seconds=0.1).send(make_request("https://127.0.0.1:9/"))
            assert caught.value.kind == "timeout"


def test_proxy_url_variable_is_used_and_password_is_not_in_repr() -> None:
    url = "http://user:hunter22@proxy.example:3128"
    settings = load_settings(environ={"PROXY_URL": url})
    assert settings.proxy_url == url
    assert "hunter22" not in repr(settings)
    assert "hunter22" not in repr(OperatorProxy(url))
