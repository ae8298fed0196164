"""OAuth logins with a real authorization server, a real MCP server behind it, and a browser that follows
redirects.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from tests.mcp_client.conftest import SHORT_LIMITS, StartServers, http_server, stdio_server
from tests.support.mcp_servers.asgi_server import AsgiServer
from tests.support.mcp_servers.everything import Everything
from tests.support.mcp_servers.hostile_oauth import REGISTERED, HostileOAuth
from tests.support.mcp_servers.oauth_server import Accounts, oauth_app

from hutch.errors import UpstreamError
from hutch.mcp_client.config import OAuthClient, ServerConfig
from hutch.mcp_client.errors import ServerUnreachable
from hutch.mcp_client.login import login, logout
from hutch.mcp_client.servers import McpServers
from hutch.mcp_client.transports import oauth_requests
from hutch.mcp_client.transports.oauth_requests import check_url
from hutch.vault.tokens import Tokens

PAUSE = SHORT_LIMITS.failure_seconds


class OAuthHarness:
    """The server, its accounts and the token storage."""

    def __init__(self, served: AsgiServer, accounts: Accounts, home: Path) -> None:
        self.accounts = accounts
        self.served = served
        self.home = home
        self.tokens = Tokens.at(home, {})
        self.config = http_server("guarded", f"{served.url}/mcp")
        self.shown_urls: list[str] = []

    async def login(self, **options: Any) -> bool:
        chosen = {"open_browser": browse, "seconds": 20, **options}
        return await login(
            chosen.pop("config", self.config), self.tokens, show=self.shown_urls.append, **chosen
        )


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[AsgiServer, Accounts]]:
    served, accounts = AsgiServer(), Accounts()
    served.start(oauth_app(Everything(), accounts, served.url))
    yield served, accounts
    served.stop()


@pytest.fixture
def server(running: tuple[AsgiServer, Accounts], tmp_path: Path) -> OAuthHarness:
    served, accounts = running
    accounts.reset()
    return OAuthHarness(served, accounts, tmp_path)


def browse(url: str) -> bool:
    """Browser of a user who consents at once. The final page may be an error."""
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(url, timeout=20) as response:
        response.read()
    return True


async def works(servers: McpServers) -> bool:
    return await servers.call("guarded", "add", {"a": 1, "b": 2}) == {"sum": 3}


async def failure(servers: McpServers) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await works(servers)
    return caught.value


async def test_server_that_requires_a_login_names_the_command_and_does_not_register(
    server: OAuthHarness, start: StartServers
) -> None:
    servers = await start(server.config, tokens=server.tokens)
    (state,) = servers.servers()
    assert (state.state, state.error) == ("failed", "it requires a login: run `hutch auth guarded`")
    assert (await failure(servers)).kind == "login_required"
    assert server.accounts.clients == {}


async def test_login_makes_running_servers_work(server: OAuthHarness, start: StartServers) -> None:
    servers = await start(server.config, tokens=server.tokens)
    assert await server.login()
    await asyncio.sleep(PAUSE)
    assert await works(servers)


async def test_login_uses_pkce_and_a_loopback_redirect(server: OAuthHarness) -> None:
    await server.login()
    (url,) = server.shown_urls
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert query["code_challenge_method"] == "S256"
    assert len(query["state"]) >= 32
    assert query["redirect_uri"].startswith("http://127.0.0.1:")
    assert query["resource"] == f"{server.served.url}/mcp"
    (client,) = server.accounts.clients.values()
    assert client.client_name == "Hutch"
    (asked,) = server.accounts.requested
    assert asked.code_challenge == query["code_challenge"]


async def test_tokens_are_encrypted_and_private(server: OAuthHarness) -> None:
    await server.login()
    (file,) = (server.home / "tokens").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    (access,) = server.accounts.access
    (refresh,) = server.accounts.refresh
    for path in server.home.rglob("*"):
        if path.is_file():
            assert access.encode() not in path.read_bytes()
            assert refresh.encode() not in path.read_bytes()


async def test_new_process_uses_the_stored_tokens(server: OAuthHarness, start: StartServers) -> None:
    await server.login()
    servers = await start(server.config, tokens=Tokens.at(server.home, {}))
    assert await works(servers)
    assert server.accounts.refreshed == 0


async def test_expired_token_is_refreshed_and_stored(server: OAuthHarness, start: StartServers) -> None:
    await server.login()
    about = ("oauth", "guarded", f"{server.served.url}/mcp")
    grant = json.loads(server.tokens.get(*about) or b"")
    server.tokens.put(json.dumps({**grant, "expires_at": 1}).encode(), *about)
    server.accounts.revoke_access()
    assert await works(await start(server.config, tokens=Tokens.at(server.home, {})))
    assert server.accounts.refreshed == 1
    # The old refresh token is used up: without the new one this would fail.
    assert await works(await start(server.config, tokens=Tokens.at(server.home, {})))
    assert server.accounts.refreshed == 1


async def test_revoked_token_is_refreshed_within_the_call(server: OAuthHarness, start: StartServers) -> None:
    await server.login()
    servers = await start(server.config, tokens=server.tokens)
    server.accounts.revoke_access()
    assert await asyncio.gather(*(works(servers) for _ in range(5))) == [True] * 5
    assert server.accounts.refreshed == 1


async def test_processes_share_a_refreshed_token(server: OAuthHarness, start: StartServers) -> None:
    await server.login()
    one = await start(server.config, tokens=Tokens.at(server.home, {}))
    other = await start(server.config, tokens=Tokens.at(server.home, {}))
    server.accounts.revoke_access()
    assert await works(one)
    assert await works(other)
    assert server.accounts.refreshed == 1


async def test_login_is_required_if_the_token_cannot_be_refreshed(
    server: OAuthHarness, start: StartServers
) -> None:
    await server.login()
    servers = await start(server.config, tokens=server.tokens)
    server.accounts.revoke_all()
    error = await failure(servers)
    assert (error.kind, error.message) == ("login_required", "it requires a login: run `hutch auth guarded`")
    await server.login()
    assert await works(servers)


async def test_concurrent_calls_with_a_token_do_not_wait_for_each_other(
    server: OAuthHarness, start: StartServers
) -> None:
    await server.login()
    servers = await start(server.config, tokens=server.tokens)
    slow = asyncio.ensure_future(servers.call("guarded", "slow", {"seconds": 60}))
    assert await works(servers)
    assert not slow.done()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_redirect_with_a_wrong_state_is_rejected_and_the_right_one_accepted(
    server: OAuthHarness,
) -> None:
    refused_statuses: list[int] = []

    def browse_after_attack(url: str) -> bool:
        callback = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        for query in ({"code": "stolen", "state": "guess"}, {"code": "stolen"}, {"error": "x", "state": ""}):
            try:
                urllib.request.urlopen(f"{callback}?{urlencode(query)}", timeout=20)
            except urllib.error.HTTPError as error:
                refused_statuses.append(error.code)
                error.close()
        return browse(url)

    assert await server.login(open_browser=browse_after_attack)
    assert refused_statuses == [400, 400, 400]


async def test_other_paths_of_the_callback_are_not_found(server: OAuthHarness) -> None:
    found: list[int] = []

    def browse_other_path(url: str) -> bool:
        callback = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        try:
            urllib.request.urlopen(callback.replace("/callback", "/favicon.ico"), timeout=20)
        except urllib.error.HTTPError as error:
            found.append(error.code)
            error.close()
        return browse(url)

    assert await server.login(open_browser=browse_other_path)
    assert found == [404]


async def test_refused_login_is_reported_and_keeps_the_previous_one(
    server: OAuthHarness, start: StartServers
) -> None:
    await server.login()
    server.accounts.denies = True
    with pytest.raises(UpstreamError, match="the login failed: You may not"):
        await server.login()
    assert await works(await start(server.config, tokens=server.tokens))


async def test_login_times_out_and_closes_its_port(server: OAuthHarness) -> None:
    with pytest.raises(UpstreamError, match=r"the login was not completed within 0\.2 s"):
        await server.login(open_browser=lambda _: False, seconds=0.2)
    callback = parse_qs(urlsplit(server.shown_urls[0]).query)["redirect_uri"][0]
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(urllib.request.urlopen, callback, timeout=5)


async def test_url_is_shown_if_no_browser_can_be_opened(server: OAuthHarness) -> None:
    waiting = asyncio.ensure_future(server.login(open_browser=None))
    async with asyncio.timeout(20):
        while not server.shown_urls:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await asyncio.to_thread(browse, server.shown_urls[0])
    assert await waiting


async def test_login_at_a_server_without_login_returns_false(
    server: OAuthHarness, urls: dict[str, str]
) -> None:
    assert not await server.login(config=http_server("open", urls["http"]))
    assert not (server.home / "tokens").exists()


async def test_stdio_server_has_no_login(server: OAuthHarness) -> None:
    with pytest.raises(UpstreamError, match="a local program"):
        await server.login(config=stdio_server("Server"))


async def test_configured_client_and_scope_are_used(server: OAuthHarness, start: StartServers) -> None:
    from mcp.shared.auth import OAuthClientInformationFull

    port = free_port()
    known = OAuthClientInformationFull(
        client_id="known",
        client_secret="s3cret",
        redirect_uris=[f"http://127.0.0.1:{port}/callback"],  # type: ignore[list-item]
        scope="tools more",
        token_endpoint_auth_method="client_secret_post",
    )
    server.accounts.clients["known"] = known
    client = OAuthClient(client_id="known", client_secret="s3cret", scope="tools more", port=port)
    config = http_server("guarded", f"{server.served.url}/mcp", oauth=client)
    assert await server.login(config=config)
    assert list(server.accounts.clients) == ["known"]
    assert server.accounts.requested[0].scopes == ["tools", "more"]
    assert await works(await start(config, tokens=server.tokens))
    assert "s3cret" not in repr(config)


def free_port() -> int:
    free = AsgiServer()
    free.stop()
    return free.port


async def test_port_in_use_is_reported(server: OAuthHarness) -> None:
    config = http_server("guarded", server.served.url, oauth=OAuthClient(port=server.served.port))
    with pytest.raises(UpstreamError, match=f"127.0.0.1:{server.served.port}.*cannot be opened"):
        await server.login(config=config)


async def test_tokens_are_bound_to_their_url(server: OAuthHarness, start: StartServers) -> None:
    """A changed URL in the configuration must not receive the token."""
    await server.login()
    seen: list[dict[str, str]] = []

    async def thief(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    other = AsgiServer()
    other.start(thief)
    try:
        await start(http_server("guarded", f"{other.url}/mcp"), tokens=server.tokens)
    finally:
        other.stop()
    assert seen
    assert not [headers for headers in seen if "authorization" in headers]


async def test_logout_deletes_the_tokens(server: OAuthHarness, start: StartServers) -> None:
    await server.login()
    assert logout(server.config, server.tokens)
    assert not logout(server.config, server.tokens)
    servers = await start(server.config, tokens=server.tokens)
    assert (await failure(servers)).kind == "login_required"


async def test_undecryptable_tokens_are_reported(server: OAuthHarness, start: StartServers) -> None:
    await server.login()
    (server.home / "master.key").unlink()
    servers = await start(server.config, stdio_server("Server"), tokens=Tokens.at(server.home, {}))
    state: dict[str, Any] = {each.name: each for each in servers.servers()}
    assert "encrypted with the master key" in state["guarded"].error
    assert state["Server"].state == "connected"


async def test_repr_of_a_grant_contains_no_secrets(server: OAuthHarness) -> None:
    from hutch.mcp_client.oauth import OAuthGrant

    await server.login()
    raw = server.tokens.get("oauth", "guarded", f"{server.served.url}/mcp")
    assert raw is not None
    (access,) = server.accounts.access
    assert access in json.dumps(json.loads(raw))
    assert access not in repr(OAuthGrant(tokens={"access_token": access}, client={}))
    assert isinstance(server.config, ServerConfig)


# --- authorization servers that misbehave ---


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[tuple[HostileOAuth, OAuthHarness]]:
    served = AsgiServer()
    app = HostileOAuth(served.url)
    served.start(app)
    yield app, OAuthHarness(served, Accounts(), tmp_path)
    served.stop()


def return_code(url: str) -> bool:
    """Browser of a user who consents, without a page of the authorization server."""
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
    # The client may additionally have sent as much as the buffers of the sockets hold.
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
        # The server can point its own name at this machine.
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
    """RFC 8414, section 3.3."""
    app, server = hostile
    app.answers["/.well-known/oauth-authorization-server"][1]["issuer"] = "https://honest.example"
    assert "issuer" in await login_error(server)
    assert not {"/register", "/token"} & {*app.requests}


async def test_redirect_of_another_issuer_is_refused(hostile: tuple[HostileOAuth, OAuthHarness]) -> None:
    """RFC 9207: an honest server's code must not be sent to the server that directed the user there."""
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
