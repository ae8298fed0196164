"""Logins at servers that want one: OAuth with PKCE, dynamic registration, and tokens that are kept sealed."""

from __future__ import annotations

import os
import time
import webbrowser
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import anyio.to_thread
import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from hutch.errors import UpstreamError, VaultError
from hutch.settings import Settings
from hutch.upstream.bounds import Bounds
from hutch.upstream.callback import Callback
from hutch.upstream.entries import Endpoint, OAuthClient, ServerConfig
from hutch.upstream.failures import Unreachable
from hutch.vault.tokens import Tokens

LOGIN_SECONDS = 300.0
_LONG_AGO = 1.0


class Grant(msgspec.Struct, omit_defaults=True):
    """What a login gave, as it is sealed: models of the SDK, as JSON."""

    tokens: dict[str, Any]
    client: dict[str, Any]
    expires_at: float | None = None
    metadata: dict[str, Any] | None = None
    resource: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return "Grant(…)"


def stored(config: ServerConfig, tokens: Tokens | None) -> httpx2.Auth | None:
    """For a server at which somebody has logged in. Raises VaultError."""
    if tokens is None or not isinstance(config.reach, Endpoint) or tokens.stamp(*_about(config)) is None:
        return None
    return StoredAuth(config, tokens)


def logout(config: ServerConfig, tokens: Tokens) -> bool:
    """Forgets what a login gave; whether there was something to forget. Raises VaultError."""
    return isinstance(config.reach, Endpoint) and tokens.remove(*_about(config))


def _about(config: ServerConfig) -> tuple[str, ...]:
    # Bound to the URL too: another server of the same name gets nothing.
    assert isinstance(config.reach, Endpoint)
    return ("oauth", config.name, config.reach.url)


class StoredAuth(OAuthClientProvider):
    """Uses and refreshes tokens. Where that does not do, the answer is 401: a person has to log in again."""

    def __init__(self, config: ServerConfig, tokens: Tokens) -> None:
        assert isinstance(config.reach, Endpoint)
        self._tokens = tokens
        self._about = _about(config)
        self._stamp: object = None
        super().__init__(config.reach.url, _metadata(None, config.reach.oauth), _Sealed(self))
        self._reload()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        # The SDK's flow lets one request at a time through, and asks a person before it tries to refresh.
        self._reload()
        if self.context.is_token_valid():
            used = self._authorize(request)
            response = yield request
            if response.status_code != 401:
                return
            self._reload()
            if used == self._token:
                # Revoked, or expired before its time.
                self.context.token_expiry_time = _LONG_AGO
        if not self.context.can_refresh_token():
            yield request
            return
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing
                if outgoing is request:
                    return
                outgoing = await flow.asend(response)
        finally:
            await flow.aclose()

    @property
    def _token(self) -> str | None:
        return self.context.current_tokens.access_token if self.context.current_tokens else None

    def _authorize(self, request: httpx2.Request) -> str | None:
        request.headers["Authorization"] = f"Bearer {self._token}"
        return self._token

    def _reload(self) -> None:
        """Takes over what a login, or another process of ours, has changed."""
        stamp = self._tokens.stamp(*self._about)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        raw = self._tokens.get(*self._about)
        if raw is None:
            self.context.clear_tokens()
            return
        try:
            _restore(msgspec.json.decode(raw, type=Grant), self)
        except (msgspec.DecodeError, ValidationError):
            raise VaultError("What a login left is not as it was written.", remedy="Log in again.") from None

    def save(self, tokens: OAuthToken) -> None:
        self._tokens.put(_grant(self, tokens), *self._about)
        self._stamp = self._tokens.stamp(*self._about)


class _Sealed:
    """Where the SDK looks for tokens and leaves new ones: its own context is always as new as the vault."""

    def __init__(self, auth: StoredAuth) -> None:
        self._auth = auth

    async def get_tokens(self) -> OAuthToken | None:
        return self._auth.context.current_tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._auth.save(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._auth.context.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Nobody registers without a login."""


class _Fresh:
    """The same for a login, which begins with nothing but what the configuration says."""

    def __init__(self, client: OAuthClientInformationFull | None) -> None:
        self.tokens: OAuthToken | None = None
        self._client = client

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self._client = client_info


def open_in_browser(url: str) -> bool:
    """Whether there was a browser to open it in; one for terminals would take over ours."""
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(has_screen) and webbrowser.open(url)


async def login(
    config: ServerConfig,
    tokens: Tokens,
    *,
    show: Callable[[str], None],
    open_browser: Callable[[str], bool] | None = open_in_browser,
    seconds: float = LOGIN_SECONDS,
) -> bool:
    """Lets a person log in at a server with a browser, and keeps what that gives; False if it wants none.

    `show` is told the URL to open, in case that no browser could be. What was kept before stays until the new
    login is complete. Raises UpstreamError and VaultError.
    """
    reach = config.reach
    if not isinstance(reach, Endpoint):
        message = "it is a program of ours, which knows no login; give it what it needs in `env`"
        raise UpstreamError(config.name, None, message, kind="login_required")
    with _listening(config, reach.oauth.port) as callback:
        store = _Fresh(_registered(reach.oauth, callback.url))

        async def send_there(url: str) -> None:
            url = _with_scope(url, reach.oauth.scope)
            callback.expect(parse_qs(urlsplit(url).query)["state"][0])
            show(url)
            if open_browser is not None:
                await anyio.to_thread.run_sync(open_browser, url, abandon_on_cancel=True)

        async def come_back() -> AuthorizationCodeResult:
            return await callback.wait(seconds)

        auth = OAuthClientProvider(
            reach.url, _metadata(callback.url, reach.oauth), store, send_there, come_back
        )
        await _try(config, auth, seconds)
        if store.tokens is None:
            return False
        tokens.put(_grant(auth, store.tokens), *_about(config))
        return True


async def _try(config: ServerConfig, auth: httpx2.Auth, seconds: float) -> None:
    """Connects once: the server says by itself whether it wants a login."""
    from hutch.upstream.upstream import connect

    longer = msgspec.structs.replace(config, connect_seconds=seconds + 60)
    try:
        connection = await connect(
            longer, environ=os.environ, bounds=Bounds(), limit=Settings().max_line_bytes, auth=auth
        )
    except Unreachable as failure:
        message = f"the login failed: {failure.reason}"
        raise UpstreamError(config.name, None, message, kind=failure.kind) from None
    await connection.close()


def _listening(config: ServerConfig, port: int) -> Callback:
    try:
        return Callback(port)
    except OSError as error:
        message = f"127.0.0.1:{port}, to which the browser is to come back, cannot be had: {error.strerror}"
        raise UpstreamError(config.name, None, message, kind="login_required") from None


def _metadata(callback: str | None, client: OAuthClient) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name="Hutch",
        redirect_uris=[AnyUrl(callback or "http://127.0.0.1/callback")],
        scope=client.scope,
    )


def _registered(client: OAuthClient, callback: str) -> OAuthClientInformationFull | None:
    if client.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=client.client_id,
        client_secret=client.client_secret,
        redirect_uris=[AnyUrl(callback)],
        token_endpoint_auth_method="client_secret_post" if client.client_secret else "none",
    )


def _with_scope(url: str, scope: str | None) -> str:
    """The SDK asks for what the server names; who configures a scope wants that one."""
    if scope is None:
        return url
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "scope"]
    return parts._replace(query=urlencode([*query, ("scope", scope)])).geturl()


def _grant(auth: OAuthClientProvider, tokens: OAuthToken) -> bytes:
    context = auth.context
    lasts = tokens.expires_in
    grant = Grant(
        tokens=tokens.model_dump(mode="json", exclude_none=True),
        client=context.client_info.model_dump(mode="json", exclude_none=True) if context.client_info else {},
        expires_at=None if lasts is None else time.time() + lasts,
        metadata=_dumped(context.oauth_metadata),
        resource=_dumped(context.protected_resource_metadata),
    )
    return msgspec.json.encode(grant)


def _dumped(model: OAuthMetadata | ProtectedResourceMetadata | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _restore(grant: Grant, auth: OAuthClientProvider) -> None:
    context = auth.context
    context.current_tokens = OAuthToken.model_validate(grant.tokens)
    context.client_info = OAuthClientInformationFull.model_validate(grant.client) if grant.client else None
    context.token_expiry_time = grant.expires_at
    if grant.metadata is not None:
        context.oauth_metadata = OAuthMetadata.model_validate(grant.metadata)
    if grant.resource is not None:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(grant.resource)
