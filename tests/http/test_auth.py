"""Access control: API key, Host and Origin."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.http.execbox_client import connect_execbox
from tests.support.messages import execute
from tests.support.processes import TIMEOUT_SECONDS, ServeProcess, running_server
from websockets.exceptions import InvalidStatus

KEY = "sésame-öffne-dich"


@pytest.fixture(scope="module", params=["HUTCH_API_KEY", "EXECUTOR_API_KEY"])
def guarded(request: pytest.FixtureRequest) -> Iterator[ServeProcess]:
    """A server with an API key. The parameters are the two environment variables that can set the key."""
    env = {
        request.param: KEY,
        "HUTCH_ALLOWED_HOSTS": "hutch.example, other.example",
        "HUTCH_ALLOWED_ORIGINS": "https://app.example",
    }
    with running_server(**env) as running:
        yield running


async def refused(server: ServeProcess, **headers: str) -> tuple[int, str]:
    """Checks that the upgrade to a WebSocket is refused. Returns status and body of the response."""
    with pytest.raises(InvalidStatus) as answer:
        async with connect_execbox(server.execbox, **headers):
            pass
    response = answer.value.response
    assert response.body is not None
    return response.status_code, response.body.decode()


async def accepted(server: ServeProcess, **headers: str) -> bool:
    async with connect_execbox(server.execbox, **headers) as client:
        await client.send(execute("in", "1"))
        return bool((await client.done("in"))["ok"])


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", f"Bearer {KEY}x", f"Basic {KEY}", KEY],
)
async def test_wrong_or_missing_key_is_refused_before_the_upgrade(
    guarded: ServeProcess, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": as_header(authorization)}
    status, body = await refused(guarded, **headers)
    assert status == 401
    error = json.loads(body)["error"]
    assert error["code"] == "UNAUTHORIZED"
    assert error["message"].startswith("Invalid or missing API key. Send one as `Authorization: Bearer KEY`")


async def test_refused_upgrade_is_not_logged() -> None:
    with running_server(HUTCH_API_KEY="a key") as server:
        assert (await refused(server))[0] == 401
        assert (await refused(server, Authorization="Bearer wrong"))[0] == 401
        with pytest.raises(InvalidStatus, match="404"):
            async with connect_execbox(server.url.replace("http", "ws") + "/nowhere"):
                pass
        server.process.terminate()
        server.wait()
    assert [line for line in server.seen if "uvicorn" in line] == []


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_scheme_of_the_key_is_case_insensitive(guarded: ServeProcess, scheme: str) -> None:
    assert await accepted(guarded, Authorization=as_header(f"{scheme} {KEY}"))


def test_metrics_require_the_key_and_health_does_not(guarded: ServeProcess) -> None:
    assert httpx2.get(f"{guarded.url}/health").status_code == 200
    refusal = httpx2.get(f"{guarded.url}/metrics")
    assert (refusal.status_code, refusal.headers["www-authenticate"]) == (401, "Bearer")
    headers = {"Authorization": f"Bearer {KEY}".encode()}
    assert httpx2.get(f"{guarded.url}/metrics", headers=headers).status_code == 200


def test_announcement_mentions_that_a_key_is_required_but_not_its_value(guarded: ServeProcess) -> None:
    assert "(API key required)" in guarded.announced
    assert KEY not in guarded.announced


@pytest.mark.parametrize(
    "names",
    [
        ["evil.example"],
        ["evil.example:80"],
        ["localhost.evil.example"],
        ["10.0.0.1"],
        ["127.1"],
        ["0x7f000001"],
        ["[::2]"],
    ],
)
def test_unknown_host_is_refused(server: ServeProcess, names: list[str]) -> None:
    hosts = [f"Host: {name}" for name in names]
    plain = (ask(server, path, *hosts) for path in ("/health", "/metrics", "/execbox"))
    for answer in (upgrade(server, *hosts), *plain):
        assert answer.startswith("HTTP/1.1 403 ")
        assert "allowed_hosts" in answer


@pytest.mark.parametrize(
    "names",
    [
        ["localhost", "evil.example"],
        ["localhost", "localhost"],
        ["user@localhost"],
        ["evil.example@localhost"],
        ["localhost evil.example"],
        ["localhost:x"],
        ["localhost.."],
        ["[::1"],
        [""],
        [],
    ],
)
def test_invalid_host_is_a_bad_request(server: ServeProcess, names: list[str]) -> None:
    hosts = [f"Host: {name}" for name in names]
    plain = (ask(server, path, *hosts) for path in ("/health", "/nowhere"))
    for answer in (upgrade(server, *hosts), *plain):
        assert answer.startswith("HTTP/1.1 400 ")
        assert "Host: expected" in answer


def test_host_of_an_absolute_url_counts(server: ServeProcess) -> None:
    for target, header, status in (
        ("http://evil.example/health", "localhost", 403),
        ("http://localhost/health", "evil.example", 200),
    ):
        assert ask(server, target, f"Host: {header}").startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize(
    "name",
    ["localhost", "LocalHost:1234", "localhost.", "127.0.0.1", "127.8.8.8:99", "[::1]:4111", "[0:0::1]"],
)
def test_loopback_names_are_accepted(server: ServeProcess, name: str) -> None:
    assert upgrade(server, f"Host: {name}").startswith("HTTP/1.1 101 ")


def test_allowed_hosts_are_accepted(guarded: ServeProcess) -> None:
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
def test_exposed_server_accepts_a_host_name_with_the_key_or_if_allowed(
    key: str, name: str, status: int
) -> None:
    with running_server("--host", "0.0.0.0", HUTCH_API_KEY=key) as server:
        answer = upgrade(server, f"Host: {name}", f"Authorization: Bearer {key}")
        assert answer.startswith(f"HTTP/1.1 {status} ")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "http://["])
async def test_page_of_another_site_is_refused(server: ServeProcess, origin: str) -> None:
    status, body = await refused(server, Origin=origin)
    assert status == 403
    assert "allowed_origins" in body


async def test_page_of_the_same_origin_is_accepted(server: ServeProcess) -> None:
    assert await accepted(server, Origin=server.url)


async def test_allowed_origin_still_requires_the_key(guarded: ServeProcess) -> None:
    assert (await refused(guarded, Origin="https://app.example"))[0] == 401
    authorization = as_header(f"Bearer {KEY}")
    assert await accepted(guarded, Origin="https://app.example", Authorization=authorization)


def upgrade(server: ServeProcess, *headers: str) -> str:
    """Sends a WebSocket handshake with these headers. Returns the response."""
    return ask(
        server,
        "/execbox",
        *headers,
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )


def ask(server: ServeProcess, path: str, *headers: str) -> str:
    """Sends exactly these headers and returns the response. Uses a socket, because no library would send such
    headers.
    """
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), TIMEOUT_SECONDS) as connection:
        connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", *headers, "", ""]).encode())
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("r", encoding="utf-8", errors="replace") as answer:
            return answer.read()


def as_header(text: str) -> str:
    """Decodes UTF-8 bytes as Latin-1, the encoding of headers."""
    return text.encode().decode("latin-1")


async def test_sandboxed_script_can_use_the_key_for_the_gateway_only(
    guarded: ServeProcess,
) -> None:
    """If the key opened other routes, a script would get network access or could approve its own tool
    calls.
    """
    headers = {"Authorization": as_header(f"Bearer {KEY}"), "X-Hutch-Run": "run"}
    status, body = await refused(guarded, **headers)
    assert (status, "Scripts have no access to /execbox" in body) == (403, True)
    other_routes = [("GET", "/metrics"), ("GET", "/mcp"), ("POST", "/mcp"), ("GET", "/approvals")]
    other_routes += [("POST", f"/api//{name}") for name in ("execute-tool", "execute-batch", "validate-tool")]
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    async with httpx2.AsyncClient(base_url=guarded.url, headers=raw, timeout=TIMEOUT_SECONDS) as client:
        for method, path in other_routes:
            assert (await client.request(method, path, json={})).status_code == 403, path
        for path in ("/tools", "/runtime/tools.ts", "/health"):
            assert (await client.get(path)).status_code == 200, path
