"""Logins: a real authorization server, a real MCP server behind it, and a browser that follows redirects."""

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
from tests.mcp_servers.everything import Everything
from tests.mcp_servers.guarded import Accounts, guarded
from tests.mcp_servers.serving import Serving
from tests.upstream.conftest import QUICK, Started, endpoint, program

from hutch.errors import UpstreamError
from hutch.upstream.entries import OAuthClient, ServerConfig
from hutch.upstream.oauth import login, logout
from hutch.upstream.servers import Upstreams
from hutch.vault.tokens import Tokens

PAUSE = QUICK.pause_seconds


class Guarded:
    """The server, its accounts, and what to keep tokens in."""

    def __init__(self, served: Serving, accounts: Accounts, home: Path) -> None:
        self.accounts = accounts
        self.served = served
        self.home = home
        self.tokens = Tokens.at(home, {})
        self.config = endpoint("guarded", f"{served.url}/mcp")
        self.shown: list[str] = []

    async def login(self, **options: Any) -> bool:
        chosen = {"open_browser": browse, "seconds": 20, **options}
        return await login(chosen.pop("config", self.config), self.tokens, show=self.shown.append, **chosen)


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[Serving, Accounts]]:
    served, accounts = Serving(), Accounts()
    served.start(guarded(Everything(), accounts, served.url))
    yield served, accounts
    served.stop()


@pytest.fixture
def server(running: tuple[Serving, Accounts], tmp_path: Path) -> Guarded:
    served, accounts = running
    accounts.reset()
    return Guarded(served, accounts, tmp_path)


def browse(url: str) -> bool:
    """A person who consents at once. What the browser shows at the end may be an error."""
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(url, timeout=20) as response:
        response.read()
    return True


async def works(upstreams: Upstreams) -> bool:
    return await upstreams.call("guarded", "add", {"a": 1, "b": 2}) == {"sum": 3}


async def failure(upstreams: Upstreams) -> UpstreamError:
    with pytest.raises(UpstreamError) as caught:
        await works(upstreams)
    return caught.value


async def test_server_that_wants_a_login_says_how_to_and_registers_nobody(
    server: Guarded, start: Started
) -> None:
    upstreams = await start(server.config, tokens=server.tokens)
    (state,) = upstreams.servers()
    assert (state.state, state.error) == ("failed", "it wants a login: run `hutch auth guarded`")
    assert (await failure(upstreams)).kind == "login_required"
    assert server.accounts.clients == {}


async def test_login_makes_a_running_set_of_servers_work(server: Guarded, start: Started) -> None:
    upstreams = await start(server.config, tokens=server.tokens)
    assert await server.login()
    await asyncio.sleep(PAUSE)
    assert await works(upstreams)


async def test_login_proves_itself_with_pkce_and_comes_back_to_loopback(server: Guarded) -> None:
    await server.login()
    (url,) = server.shown
    query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
    assert query["code_challenge_method"] == "S256"
    assert len(query["state"]) >= 32
    assert query["redirect_uri"].startswith("http://127.0.0.1:")
    assert query["resource"] == f"{server.served.url}/mcp"
    (client,) = server.accounts.clients.values()
    assert client.client_name == "Hutch"
    (asked,) = server.accounts.requested
    assert asked.code_challenge == query["code_challenge"]


async def test_tokens_are_kept_sealed_for_their_owner_alone(server: Guarded) -> None:
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


async def test_new_process_uses_the_tokens_without_a_login(server: Guarded, start: Started) -> None:
    await server.login()
    upstreams = await start(server.config, tokens=Tokens.at(server.home, {}))
    assert await works(upstreams)
    assert server.accounts.refreshed == 0


async def test_token_that_has_expired_is_refreshed_and_kept(server: Guarded, start: Started) -> None:
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


async def test_token_that_was_revoked_is_refreshed_within_the_call(server: Guarded, start: Started) -> None:
    await server.login()
    upstreams = await start(server.config, tokens=server.tokens)
    server.accounts.revoke_access()
    assert await asyncio.gather(*(works(upstreams) for _ in range(5))) == [True] * 5
    assert server.accounts.refreshed == 1


async def test_two_processes_share_what_one_of_them_has_refreshed(server: Guarded, start: Started) -> None:
    await server.login()
    one = await start(server.config, tokens=Tokens.at(server.home, {}))
    other = await start(server.config, tokens=Tokens.at(server.home, {}))
    server.accounts.revoke_access()
    assert await works(one)
    assert await works(other)
    assert server.accounts.refreshed == 1


async def test_without_a_way_to_refresh_a_person_is_asked_for(server: Guarded, start: Started) -> None:
    await server.login()
    upstreams = await start(server.config, tokens=server.tokens)
    server.accounts.revoke_all()
    error = await failure(upstreams)
    assert (error.kind, error.message) == ("login_required", "it wants a login: run `hutch auth guarded`")
    await server.login()
    assert await works(upstreams)


async def test_calls_with_a_token_do_not_wait_for_each_other(server: Guarded, start: Started) -> None:
    await server.login()
    upstreams = await start(server.config, tokens=server.tokens)
    slow = asyncio.ensure_future(upstreams.call("guarded", "slow", {"seconds": 60}))
    assert await works(upstreams)
    assert not slow.done()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_answer_with_another_state_is_turned_away_and_the_right_one_still_counts(
    server: Guarded,
) -> None:
    turned_away: list[int] = []

    def attacked(url: str) -> bool:
        callback = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        for query in ({"code": "stolen", "state": "guess"}, {"code": "stolen"}, {"error": "x", "state": ""}):
            try:
                urllib.request.urlopen(f"{callback}?{urlencode(query)}", timeout=20)
            except urllib.error.HTTPError as error:
                turned_away.append(error.code)
                error.close()
        return browse(url)

    assert await server.login(open_browser=attacked)
    assert turned_away == [400, 400, 400]


async def test_other_paths_of_the_callback_are_not_found(server: Guarded) -> None:
    found: list[int] = []

    def curious(url: str) -> bool:
        callback = parse_qs(urlsplit(url).query)["redirect_uri"][0]
        try:
            urllib.request.urlopen(callback.replace("/callback", "/favicon.ico"), timeout=20)
        except urllib.error.HTTPError as error:
            found.append(error.code)
            error.close()
        return browse(url)

    assert await server.login(open_browser=curious)
    assert found == [404]


async def test_refused_login_is_told_in_the_servers_words_and_keeps_the_old_one(
    server: Guarded, start: Started
) -> None:
    await server.login()
    server.accounts.denies = True
    with pytest.raises(UpstreamError, match="the login failed: You may not"):
        await server.login()
    assert await works(await start(server.config, tokens=server.tokens))


async def test_login_that_nobody_completes_ends_and_closes_its_port(server: Guarded) -> None:
    with pytest.raises(UpstreamError, match=r"nobody logged in within 0\.2 s"):
        await server.login(open_browser=lambda _: False, seconds=0.2)
    callback = parse_qs(urlsplit(server.shown[0]).query)["redirect_uri"][0]
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(urllib.request.urlopen, callback, timeout=5)


async def test_url_is_shown_also_where_no_browser_can_be_opened(server: Guarded) -> None:
    waiting = asyncio.ensure_future(server.login(open_browser=None))
    async with asyncio.timeout(20):
        while not server.shown:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await asyncio.to_thread(browse, server.shown[0])
    assert await waiting


async def test_server_that_wants_no_login_gets_none(server: Guarded, urls: dict[str, str]) -> None:
    assert not await server.login(config=endpoint("open", urls["http"]))
    assert not (server.home / "tokens").exists()


async def test_program_has_no_login(server: Guarded) -> None:
    with pytest.raises(UpstreamError, match="a program of ours"):
        await server.login(config=program("Server"))


async def test_client_and_scope_of_the_configuration_are_used(server: Guarded, start: Started) -> None:
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
    config = endpoint("guarded", f"{server.served.url}/mcp", oauth=client)
    assert await server.login(config=config)
    assert list(server.accounts.clients) == ["known"]
    assert server.accounts.requested[0].scopes == ["tools", "more"]
    assert await works(await start(config, tokens=server.tokens))
    assert "s3cret" not in repr(config)


def free_port() -> int:
    free = Serving()
    free.stop()
    return free.port


async def test_port_that_is_taken_is_named(server: Guarded) -> None:
    config = endpoint("guarded", server.served.url, oauth=OAuthClient(port=server.served.port))
    with pytest.raises(UpstreamError, match=f"127.0.0.1:{server.served.port}.*cannot be had"):
        await server.login(config=config)


async def test_tokens_are_for_the_url_they_were_given_for(server: Guarded, start: Started) -> None:
    """Who changes the URL of a server in the configuration must not get its token."""
    await server.login()
    seen: list[dict[str, str]] = []

    async def thief(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            seen.append({name.decode(): value.decode() for name, value in scope["headers"]})
            await send({"type": "http.response.start", "status": 500, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    other = Serving()
    other.start(thief)
    try:
        await start(endpoint("guarded", f"{other.url}/mcp"), tokens=server.tokens)
    finally:
        other.stop()
    assert seen
    assert not [headers for headers in seen if "authorization" in headers]


async def test_logout_forgets_the_tokens(server: Guarded, start: Started) -> None:
    await server.login()
    assert logout(server.config, server.tokens)
    assert not logout(server.config, server.tokens)
    upstreams = await start(server.config, tokens=server.tokens)
    assert (await failure(upstreams)).kind == "login_required"


async def test_tokens_that_cannot_be_opened_are_named(server: Guarded, start: Started) -> None:
    await server.login()
    (server.home / "master.key").unlink()
    upstreams = await start(server.config, program("Server"), tokens=Tokens.at(server.home, {}))
    state: dict[str, Any] = {each.name: each for each in upstreams.servers()}
    assert "sealed with the master key" in state["guarded"].error
    assert state["Server"].state == "connected"


async def test_nothing_secret_shows_where_a_grant_is_printed(server: Guarded) -> None:
    from hutch.upstream.oauth import Grant

    await server.login()
    raw = server.tokens.get("oauth", "guarded", f"{server.served.url}/mcp")
    assert raw is not None
    (access,) = server.accounts.access
    assert access in json.dumps(json.loads(raw))
    assert access not in repr(Grant(tokens={"access_token": access}, client={}))
    assert isinstance(server.config, ServerConfig)
