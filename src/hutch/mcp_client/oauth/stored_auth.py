"""OAuth tokens of MCP servers, which are encrypted in the vault and refreshed when they expire."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import AnyUrl, ValidationError

from hutch.errors import VaultError
from hutch.mcp_client.config import HttpConfig, OAuthClient, ServerConfig
from hutch.mcp_client.oauth.requests import mark_request
from hutch.vault.tokens import Tokens

_EXPIRED = 1.0


class OAuthGrant(msgspec.Struct, omit_defaults=True):
    """Result of a login as it is stored in the vault. The fields are models of the SDK as JSON."""

    tokens: dict[str, Any]
    client: dict[str, Any]
    expires_at: float | None = None
    metadata: dict[str, Any] | None = None
    resource: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return "OAuthGrant(…)"


def stored_auth(config: ServerConfig, tokens: Tokens | None) -> httpx2.Auth | None:
    """Returns the authentication for a server, or None if no login is stored. Raises VaultError."""
    if (
        tokens is None
        or not isinstance(config.transport, HttpConfig)
        or tokens.stamp(*token_context(config)) is None
    ):
        return None
    return StoredAuth(config, tokens)


class LoginAuth(OAuthClientProvider):
    """Logs in. Its requests to authorization servers are marked, so that the transport can limit them."""

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        flow = super().async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                response = yield outgoing if outgoing is request else mark_request(outgoing)
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


class StoredAuth(LoginAuth):
    """Uses stored tokens and refreshes them. If refreshing fails, the server's 401 is passed on and the user
    has to log in again.
    """

    def __init__(self, config: ServerConfig, tokens: Tokens) -> None:
        assert isinstance(config.transport, HttpConfig)
        self._tokens = tokens
        self._vault_context = token_context(config)
        self._stamp: object = None
        super().__init__(
            config.transport.url, client_metadata(None, config.transport.oauth), _VaultStorage(self)
        )
        self._reload()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        # Requests with a valid token do not use the SDK's flow. That flow sends only one request at a time,
        # and it starts a login before it tries to refresh the token.
        self._reload()
        if self.context.is_token_valid():
            token = self._authorize(request)
            response = yield request
            if response.status_code != 401:
                return
            self._reload()
            if token == self._token:
                # The server rejected a token that should be valid, so it was revoked or expired early.
                self.context.token_expiry_time = _EXPIRED
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
        """Loads the token again if a login or another process has changed it."""
        stamp = self._tokens.stamp(*self._vault_context)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        raw = self._tokens.get(*self._vault_context)
        if raw is None:
            self.context.clear_tokens()
            return
        try:
            _restore_grant(msgspec.json.decode(raw, type=OAuthGrant), self)
        except (msgspec.DecodeError, ValidationError):
            raise VaultError("The stored login is corrupt.", remedy="Log in again.") from None

    def save(self, tokens: OAuthToken) -> None:
        self._tokens.put(encode_grant(self, tokens), *self._vault_context)
        self._stamp = self._tokens.stamp(*self._vault_context)


class _VaultStorage:
    """Token storage for the SDK, backed by the vault."""

    def __init__(self, auth: StoredAuth) -> None:
        self._auth = auth

    async def get_tokens(self) -> OAuthToken | None:
        return self._auth.context.current_tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._auth.save(tokens)

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self._auth.context.client_info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Does nothing, because a client is registered only during a login."""


def token_context(config: ServerConfig) -> tuple[str, ...]:
    # The context includes the URL, so that another server with the same name does not get the token.
    assert isinstance(config.transport, HttpConfig)
    return ("oauth", config.name, config.transport.url)


def encode_grant(auth: OAuthClientProvider, tokens: OAuthToken) -> bytes:
    context = auth.context
    lifetime = tokens.expires_in
    grant = OAuthGrant(
        tokens=tokens.model_dump(mode="json", exclude_none=True),
        client=context.client_info.model_dump(mode="json", exclude_none=True) if context.client_info else {},
        expires_at=None if lifetime is None else time.time() + lifetime,
        metadata=_dump(context.oauth_metadata),
        resource=_dump(context.protected_resource_metadata),
    )
    return msgspec.json.encode(grant)


def _dump(model: OAuthMetadata | ProtectedResourceMetadata | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _restore_grant(grant: OAuthGrant, auth: OAuthClientProvider) -> None:
    context = auth.context
    context.current_tokens = OAuthToken.model_validate(grant.tokens)
    context.client_info = OAuthClientInformationFull.model_validate(grant.client) if grant.client else None
    context.token_expiry_time = grant.expires_at
    if grant.metadata is not None:
        context.oauth_metadata = OAuthMetadata.model_validate(grant.metadata)
    if grant.resource is not None:
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(grant.resource)


def client_metadata(callback: str | None, client: OAuthClient) -> OAuthClientMetadata:
    return OAuthClientMetadata(
        client_name="Hutch",
        redirect_uris=[AnyUrl(callback or "http://127.0.0.1/callback")],
        scope=client.scope,
    )
