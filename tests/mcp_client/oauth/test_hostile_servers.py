"""OAuth logins with authorization servers that violate the protocol."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from tests.mcp_client.conftest import StartServers
from tests.mcp_client.oauth.harness import OAuthHarness, browse
from tests.support.mcp_servers.asgi_server import AsgiServer
from tests.support.mcp_servers.hostile_oauth import REGISTERED, HostileOAuth
from tests.support.mcp_servers.oauth_server import Accounts

from hutch.errors import UpstreamError
from hutch.mcp_client.errors import ServerUnreachable
from hutch.mcp_client.oauth import requests as oauth_requests
from hutch.mcp_client.oauth.requests import check_url


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[HostileOAuth, OAuthHarness]]:
    served = AsgiServer()
    app = HostileOAuth(served.url)
    served.start(app)
    yield app, OAuthHarness(served, Accounts(), tmp_path)
    served.stop()


def return_code(url: str) -> bool:
    """Redirects to the client with a code, as after the user's consent. Requests no page of the authorization
    server.
    """
    query = parse_qs(urlsplit(url).query)
    return browse(f"{query['redirect_uri'][0]}?{urlencode({'code': 'c0de', 'state': query['state'][-1]})}")


async def login_error(server: OAuthHarness, **options: Any) -> str:
    with pytest.raises(UpstreamError) as caught:
        await server.login(**{"open_browser": return_code, **options})
    assert not (server.home / "tokens").exists()
    return caught.value.message


@pytest.mark.parametrize(
    "path", ["/resource", "/.well-known/oauth-authorization-server", "/register", "/token"]
)
@pytest.mark.parametrize(
    ("status", "content_type"),
    [(200, b"application/json"), (400, b"text/plain"), (400, b"text/event-stream")],
)
async def test_endless_response_of_an_authorization_server_is_cut(
    hostile: tuple[HostileOAuth, OAuthHarness], path: str, status: int, content_type: bytes
) -> None:
    app, server = hostile
    app.answers[path] = (status, HostileOAuth.ENDLESS)
    app.content_type = content_type
    await login_error(server)
    # The server may have sent more than the client's limit, because the sockets' buffers hold data that the
    # client does not read. So this bound is higher than the limit.
    assert app.sent_bytes < 32 * 1024 * 1024


@pytest.mark.parametrize("token_endpoint", [None, "http://169.254.169.254/token"])
async def test_refresh_has_the_limits_of_a_login(
    hostile: tuple[HostileOAuth, OAuthHarness], start: StartServers, token_endpoint: str | None
) -> None:
    app, server = hostile
    metadata = app.answers["/.well-known/oauth-authorization-server"][1]
    grant = {
        "tokens": {"access_token": "a", "refresh_token": "r"},
        "client": REGISTERED,
        "expires_at": 1,
        "metadata": {**metadata, **({"token_endpoint": token_endpoint} if token_endpoint else {})},
    }
    server.tokens.put(json.dumps(grant).encode(), "oauth", "guarded", f"{server.served.url}/mcp")
    app.answers["/token"] = (200, HostileOAuth.ENDLESS)
    app.content_type = b"text/event-stream"
    servers = await start(server.config, tokens=server.tokens)
    (state,) = servers.servers()
    assert state.state == "failed"
    expected = (
        "a metadata address" if token_endpoint else f"larger than {oauth_requests.MAX_RESPONSE_BYTES} bytes"
    )
    assert expected in (state.error or "")
    assert app.sent_bytes < 32 * 1024 * 1024
    assert app.requests == ([] if token_endpoint else ["/token"])


@pytest.mark.parametrize("path", ["/resource", "/token"])
async def test_silent_authorization_server_ends_the_login(
    hostile: tuple[HostileOAuth, OAuthHarness], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oauth_requests, "SECONDS", 0.2)
    app, server = hostile
    app.answers[path] = (200, HostileOAuth.SILENT)
    async with asyncio.timeout(10):
        assert "ReadTimeout" in await login_error(server)


SECRETS = ("t0p-secret", "refresh-secret", "client-secret")


@pytest.mark.parametrize(
    ("path", "answer", "message"),
    [
        (
            "/token",
            (200, {"accessToken": "t0p-secret", "refresh_token": "refresh-secret"}),
            "the authorization server's token response is not valid",
        ),
        (
            "/token",
            (500, b"debug: client_secret=client-secret token=t0p-secret"),
            "Token exchange failed (500)",
        ),
        (
            "/token",
            (400, {"error": "invalid_grant", "error_description": "too\x1b[2J late", "token": "t0p-secret"}),
            "Token exchange failed (400): invalid_grant: too\\u001b[2J late",
        ),
        (
            "/register",
            (201, {"client_id": 7, "client_secret": "client-secret"}),
            "the authorization server's registration response is not valid",
        ),
        ("/register", (403, b"no: client-secret"), "Registration failed: 403"),
    ],
)
async def test_errors_and_logs_contain_no_secrets(
    hostile: tuple[HostileOAuth, OAuthHarness],
    path: str,
    answer: tuple[int, Any],
    message: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    app, server = hostile
    app.answers[path] = answer
    assert await login_error(server) == f"the login failed: {message}"
    for secret in SECRETS:
        assert secret not in caplog.text


async def test_authorization_server_cannot_choose_the_state(
    hostile: tuple[HostileOAuth, OAuthHarness],
) -> None:
    app, server = hostile
    metadata = app.answers["/.well-known/oauth-authorization-server"][1]
    metadata["authorization_endpoint"] += "?state=chosen&x=1"
    statuses: list[int] = []

    def browse_with_the_chosen_state(url: str) -> bool:
        callback = parse_qs(urlsplit(url).query)["redirect_uri"][-1]
        try:
            urllib.request.urlopen(f"{callback}?code=stolen&state=chosen", timeout=20)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
            error.close()
        return True

    await login_error(server, open_browser=browse_with_the_chosen_state, seconds=0.3)
    assert statuses == [400]
    assert "/token" not in app.requests


async def test_authorization_server_without_s256_is_refused(
    hostile: tuple[HostileOAuth, OAuthHarness],
) -> None:
    app, server = hostile
    app.answers["/.well-known/oauth-authorization-server"][1]["code_challenge_methods_supported"] = ["plain"]
    assert "does not support PKCE with S256" in await login_error(server)
    assert server.shown_urls == []


@pytest.mark.parametrize("where", ["resource_metadata", "token_endpoint", "authorization_endpoint"])
async def test_login_is_not_sent_to_a_metadata_service(
    hostile: tuple[HostileOAuth, OAuthHarness], where: str
) -> None:
    app, server = hostile
    url = "http://169.254.169.254/latest?token=x"
    if where == "resource_metadata":
        app.resource_metadata = url
    else:
        app.answers["/.well-known/oauth-authorization-server"][1][where] = url
    expected = (
        "the login failed: it directs the login to http://169.254.169.254/latest,"
        " which is refused because it is a metadata address"
    )
    assert await login_error(server) == expected


PUBLIC, OTHER = "https://8.8.8.8/mcp", "8.8.4.4"


@pytest.mark.parametrize(
    ("server_url", "url", "reason"),
    [
        (PUBLIC, f"https://{OTHER}/token", None),
        (PUBLIC, "https://8.8.8.8:8443/token", None),
        # https is required even for a host that the server names, because the server could let its own name
        # resolve to this machine.
        (PUBLIC, "http://8.8.8.8/token", "an http URL"),
        ("http://8.8.8.8/mcp", "http://8.8.8.8/token", None),
        ("http://8.8.8.8/mcp", "http://8.8.8.8:8080/token", "an http URL"),
        (PUBLIC, f"http://{OTHER}/token", "an http URL"),
        (PUBLIC, "https://127.0.0.1/token", "a loopback address"),
        (PUBLIC, "https://2130706433/token", "a loopback address"),
        (PUBLIC, "https://[::1]/token", "a loopback address"),
        (PUBLIC, "https://localhost/token", "a loopback address"),
        (PUBLIC, "https://10.0.0.1:8443/token", "a private address"),
        ("http://127.0.0.1/mcp", "http://10.0.0.1/token", None),
        ("http://localhost:3000/mcp", "http://127.0.0.1:8080/token", None),
        ("http://10.0.0.1/mcp", "http://[fd00:ec2::254]/latest", "a metadata address"),
        ("http://169.254.169.254/mcp", "http://169.254.169.254/token", "a metadata address"),
    ],
)
async def test_server_may_direct_logins_only_within_its_own_network(
    server_url: str, url: str, reason: str | None
) -> None:
    if reason is None:
        await check_url(server_url, url)
    else:
        with pytest.raises(ServerUnreachable, match=f"which is refused because it is {reason}"):
            await check_url(server_url, url)


async def test_server_on_the_internet_gains_nothing_from_a_private_address_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def both(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(0, 0, 0, "", ("8.8.8.8", 0)), (0, 0, 0, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
    with pytest.raises(ServerUnreachable, match="a loopback address"):
        await check_url("https://mcp.example/mcp", "http://127.0.0.1:8080/token")


# --- mix-up of authorization servers ---


async def test_metadata_of_another_issuer_is_refused(hostile: tuple[HostileOAuth, OAuthHarness]) -> None:
    """RFC 8414, section 3.3 requires the client to refuse such metadata."""
    app, server = hostile
    app.answers["/.well-known/oauth-authorization-server"][1]["issuer"] = "https://honest.example"
    assert "issuer" in await login_error(server)
    assert not {"/register", "/token"} & {*app.requests}


async def test_redirect_of_another_issuer_is_refused(hostile: tuple[HostileOAuth, OAuthHarness]) -> None:
    """RFC 9207: a hostile server can redirect the user to an honest server. The client must not send the
    honest server's code to the hostile server.
    """
    app, server = hostile
    metadata = app.answers["/.well-known/oauth-authorization-server"][1]
    metadata["authorization_response_iss_parameter_supported"] = True

    def return_code_of_another_issuer(url: str) -> bool:
        query = parse_qs(urlsplit(url).query)
        result = {"code": "c0de", "state": query["state"][-1], "iss": "https://honest.example"}
        return browse(f"{query['redirect_uri'][0]}?{urlencode(result)}")

    assert "iss" in await login_error(server, open_browser=return_code_of_another_issuer)
    assert "/token" not in app.requests


@pytest.mark.parametrize("path", ["/resource", "/.well-known/oauth-authorization-server", "/token"])
async def test_redirect_of_an_authorization_server_is_not_followed(
    hostile: tuple[HostileOAuth, OAuthHarness], path: str
) -> None:
    app, server = hostile
    other = AsgiServer()
    elsewhere = HostileOAuth(other.url)
    other.start(elsewhere)
    try:
        app.answers[path] = (307, b"")
        app.location = f"{other.url}{path}".encode()
        await login_error(server)
    finally:
        other.stop()
    assert elsewhere.requests == []
