"""OAuth logins with a real authorization server, a real MCP server behind it, and a browser that follows
redirects.
"""

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
from tests.mcp_client.conftest import SHORT_LIMITS, StartServers, http_server, stdio_server
from tests.mcp_client.oauth.harness import OAuthHarness, browse
from tests.support.mcp_servers.asgi_server import AsgiServer
from tests.support.mcp_servers.everything import Everything
from tests.support.mcp_servers.oauth_server import Accounts, oauth_app

from hutch.errors import UpstreamError
from hutch.mcp_client.config import OAuthClient, ServerConfig
from hutch.mcp_client.oauth.login import logout
from hutch.mcp_client.servers import McpServers
from hutch.vault.tokens import Tokens

PAUSE = SHORT_LIMITS.failure_seconds


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
    # The old refresh token can be used only once, so this call works only if the client has stored the new
    # refresh token.
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
    """If the configuration names another URL, the server at that URL must not get the token of the old
    URL.
    """
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
    from hutch.mcp_client.oauth.stored_auth import OAuthGrant

    await server.login()
    raw = server.tokens.get("oauth", "guarded", f"{server.served.url}/mcp")
    assert raw is not None
    (access,) = server.accounts.access
    assert access in json.dumps(json.loads(raw))
    assert access not in repr(OAuthGrant(tokens={"access_token": access}, client={}))
    assert isinstance(server.config, ServerConfig)
