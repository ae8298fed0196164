"""Who may come in: the key, the Host, the Origin."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.doors.clients import host
from tests.messages import execute
from tests.processes import PATIENCE, Server, serving
from websockets.exceptions import InvalidStatus

KEY = "sésame-öffne-dich"


@pytest.fixture(scope="module", params=["HUTCH_API_KEY", "EXECUTOR_API_KEY"])
def guarded(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The same setting by both of its names."""
    env = {
        request.param: KEY,
        "HUTCH_ALLOWED_HOSTS": "hutch.example, other.example",
        "HUTCH_ALLOWED_ORIGINS": "https://app.example",
    }
    with serving(**env) as running:
        yield running


async def refused(server: Server, **headers: str) -> tuple[int, str]:
    """The status and the body of what is said instead of an upgrade."""
    with pytest.raises(InvalidStatus) as answer:
        async with host(server.execbox, **headers):
            pass
    response = answer.value.response
    assert response.body is not None
    return response.status_code, response.body.decode()


async def accepted(server: Server, **headers: str) -> bool:
    async with host(server.execbox, **headers) as h:
        await h.say(execute("in", "1"))
        return bool((await h.done("in"))["ok"])


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {KEY}x", f"Basic {KEY}", KEY],
)
async def test_wrong_or_missing_key_is_refused_before_the_upgrade(
    guarded: Server, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": as_header(authorization)}
    status, body = await refused(guarded, **headers)
    assert status == 401
    assert body == '{"success":false,"error":{"code":"UNAUTHORIZED","message":"Invalid or missing API key"}}'


async def test_who_is_refused_an_upgrade_leaves_nothing_in_the_log() -> None:
    with serving(HUTCH_API_KEY="a key") as server:
        assert (await refused(server))[0] == 401
        assert (await refused(server, Authorization="Bearer wrong"))[0] == 401
        with pytest.raises(InvalidStatus, match="404"):
            async with host(server.url.replace("http", "ws") + "/nowhere"):
                pass
        server.process.terminate()
        server.wait()
    assert [line for line in server.seen if "uvicorn" in line] == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_right_key_opens_whatever_the_case_of_the_scheme(guarded: Server, scheme: str) -> None:
    assert await accepted(guarded, Authorization=as_header(f"{scheme} {KEY}"))


def test_metrics_want_the_key_and_health_does_not(guarded: Server) -> None:
    assert httpx2.get(f"{guarded.url}/health").status_code == 200
    refusal = httpx2.get(f"{guarded.url}/metrics")
    assert (refusal.status_code, refusal.headers["www-authenticate"]) == (401, "Bearer")
    headers = {"Authorization": f"Bearer {KEY}".encode()}
    assert httpx2.get(f"{guarded.url}/metrics", headers=headers).status_code == 200


def test_announcement_says_that_a_key_is_wanted_but_not_which(guarded: Server) -> None:
    assert "(API key required)" in guarded.announced
    assert KEY not in guarded.announced


@pytest.mark.parametrize(
    "names",
    [
        ["evil.example"],
        ["evil.example:80"],
        ["localhost.evil.example"],
        ["localhost", "evil.example"],
        ["10.0.0.1"],
        ["[::1"],
        [""],
        [],
    ],
)
def test_host_that_is_not_ours_is_refused(server: Server, names: list[str]) -> None:
    hosts = [f"Host: {name}" for name in names]
    plain = (ask(server, path, *hosts) for path in ("/health", "/metrics", "/execbox"))
    for answer in (upgrade(server, *hosts), *plain):
        assert answer.startswith("HTTP/1.1 403 ")
        assert "allowed_hosts" in answer


@pytest.mark.parametrize("name", ["localhost", "LocalHost:1234", "127.0.0.1", "127.8.8.8:99", "[::1]:4111"])
def test_names_of_loopback_are_ours(server: Server, name: str) -> None:
    assert upgrade(server, f"Host: {name}").startswith("HTTP/1.1 101 ")


def test_allowed_hosts_are_ours(guarded: Server) -> None:
    for name in ("hutch.example", "OTHER.example:443"):
        answer = upgrade(guarded, f"Host: {name}", f"Authorization: Bearer {KEY}")
        assert answer.startswith("HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("key", "name", "status"),
    [
        ("", "192.0.2.7", 101),
        ("", "localhost", 101),
        ("", "rebound.example", 403),
        ("secret", "any.example", 101),
    ],
)
def test_on_the_network_a_name_needs_the_key_or_to_be_allowed(key: str, name: str, status: int) -> None:
    with serving("--host", "0.0.0.0", HUTCH_API_KEY=key) as server:
        answer = upgrade(server, f"Host: {name}", f"Authorization: Bearer {key}")
        assert answer.startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://["])
async def test_page_of_another_site_is_refused(server: Server, origin: str) -> None:
    status, body = await refused(server, Origin=origin)
    assert status == 403
    assert "allowed_origins" in body


async def test_page_of_ours_is_let_in(server: Server) -> None:
    assert await accepted(server, Origin=server.url)


async def test_allowed_origin_is_let_in_with_the_key_only(guarded: Server) -> None:
    assert (await refused(guarded, Origin="https://app.example"))[0] == 401
    authorization = as_header(f"Bearer {KEY}")
    assert await accepted(guarded, Origin="https://app.example", Authorization=authorization)


def upgrade(server: Server, *headers: str) -> str:
    """What the door answers to a handshake with these headers."""
    return ask(
        server,
        "/execbox",
        *headers,
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )


def ask(server: Server, path: str, *headers: str) -> str:
    """What the server answers to a request with exactly these headers, which no library would send."""
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), PATIENCE) as connection:
        connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("r", encoding="utf-8", errors="replace") as answer:
            return answer.read()


def as_header(text: str) -> str:
    """The bytes of UTF-8, as a header of Latin-1 carries them."""
    return text.encode().decode("latin-1")


async def test_a_script_in_a_jail_gets_no_further_than_the_gateway_with_the_key_that_it_was_lent(
    guarded: Server,
) -> None:
    """Its requests carry the key: elsewhere it would find a network, and could approve its own calls."""
    headers = {"Authorization": as_header(f"Bearer {KEY}"), "X-Hutch-Run": "run"}
    status, body = await refused(guarded, **headers)
    assert (status, "Scripts have no access to /execbox" in body) == (403, True)
    elsewhere = [("GET", "/metrics"), ("GET", "/mcp"), ("POST", "/mcp"), ("GET", "/approvals")]
    elsewhere += [("POST", f"/api//{name}") for name in ("execute-tool", "execute-batch", "validate-tool")]
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    async with httpx2.AsyncClient(base_url=guarded.url, headers=raw, timeout=PATIENCE) as client:
        for method, path in elsewhere:
            assert (await client.request(method, path, json={})).status_code == 403, path
        for path in ("/tools", "/runtime/tools.ts", "/health"):
            assert (await client.get(path)).status_code == 200, path
