"""OAuth login to an MCP server with a browser: PKCE, dynamic registration and the redirect."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import webbrowser
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import anyio.to_thread
import httpx2
import msgspec
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthToken,
)
from pydantic import AnyUrl

from hutch.errors import UpstreamError
from hutch.mcp_client.config import HttpConfig, OAuthClient, ServerConfig
from hutch.mcp_client.errors import ServerUnreachable
from hutch.mcp_client.limits import ServerLimits
from hutch.mcp_client.oauth.requests import check_url
from hutch.mcp_client.oauth.stored_auth import LoginAuth, client_metadata, encode_grant, token_context
from hutch.mcp_client.server import connect
from hutch.settings import Settings
from hutch.text import printable
from hutch.vault.tokens import Tokens

CALLBACK_PATH = "/callback"
LOGIN_SECONDS = 300.0
_LOGGED_IN = "You are logged in. This window can be closed."
_LOGIN_REFUSED = "The login was refused. This window can be closed."
_WRONG_STATE = "This login was not requested."


def _open_in_browser(url: str) -> bool:
    """Opens a URL and returns True if a browser was opened. Browsers that would run in this terminal are not
    used.
    """
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(has_screen) and webbrowser.open(url)


async def login(
    config: ServerConfig,
    tokens: Tokens,
    *,
    show: Callable[[str], None],
    open_browser: Callable[[str], bool] | None = _open_in_browser,
    seconds: float = LOGIN_SECONDS,
) -> bool:
    """Logs in with a browser and stores the tokens. Returns False if the server needs no login.

    `show` receives the URL, in case no browser can be opened. A previous login stays until the new one is
    complete. Raises UpstreamError and VaultError.
    """
    transport = config.transport
    if not isinstance(transport, HttpConfig):
        message = "it is a local program without a login; set the variables that it needs in `env`"
        raise UpstreamError(config.name, None, message, kind="login_required")
    with _open_callback(config, transport.oauth.port) as callback:
        store = _LoginStorage(_configured_client(transport.oauth, callback.url))

        async def redirect(url: str) -> None:
            _check_pkce(auth)
            await check_url(transport.url, url)
            url = _with_scope(url, transport.oauth.scope)
            # Use the last `state`, which the SDK has added. The server's own URL may already have a parameter
            # with this name.
            callback.expect(parse_qs(urlsplit(url).query)["state"][-1])
            show(url)
            if open_browser is not None:
                await anyio.to_thread.run_sync(open_browser, url, abandon_on_cancel=True)

        async def wait_for_code() -> AuthorizationCodeResult:
            return await callback.wait(seconds)

        auth = LoginAuth(
            transport.url, client_metadata(callback.url, transport.oauth), store, redirect, wait_for_code
        )
        await _connect_once(config, auth, seconds)
        if store.tokens is None:
            return False
        tokens.put(encode_grant(auth, store.tokens), *token_context(config))
        return True


def logout(config: ServerConfig, tokens: Tokens) -> bool:
    """Deletes a stored login. Returns False if there was none. Raises VaultError."""
    return isinstance(config.transport, HttpConfig) and tokens.remove(*token_context(config))


async def _connect_once(config: ServerConfig, auth: httpx2.Auth, seconds: float) -> None:
    """Connects once. This is the only way to learn whether the server requires a login."""
    longer = msgspec.structs.replace(config, connect_seconds=seconds + 60)
    try:
        connection = await connect(
            longer,
            environ=os.environ,
            limits=ServerLimits(),
            max_message_bytes=Settings().max_line_bytes,
            auth=auth,
        )
    except ServerUnreachable as failure:
        message = f"the login failed: {failure.reason}"
        raise UpstreamError(config.name, None, message, kind=failure.kind) from None
    await connection.close()


def _open_callback(config: ServerConfig, port: int) -> LoginCallback:
    try:
        return LoginCallback(port)
    except OSError as error:
        message = f"127.0.0.1:{port}, the address for the redirect, cannot be opened: {error.strerror}"
        raise UpstreamError(config.name, None, message, kind="login_required") from None


def _configured_client(client: OAuthClient, callback: str) -> OAuthClientInformationFull | None:
    if client.client_id is None:
        return None
    return OAuthClientInformationFull(
        client_id=client.client_id,
        client_secret=client.client_secret,
        redirect_uris=[AnyUrl(callback)],
        token_endpoint_auth_method="client_secret_post" if client.client_secret else "none",
    )


def _check_pkce(auth: LoginAuth) -> None:
    """Raises ServerUnreachable if the metadata of the authorization server says that it does not support PKCE
    with S256.
    """
    metadata = auth.context.oauth_metadata
    methods = None if metadata is None else metadata.code_challenge_methods_supported
    if methods is not None and "S256" not in methods:
        message = "its authorization server does not support PKCE with S256, which protects the login"
        raise ServerUnreachable(message, "login_required", lasting=True)


def _with_scope(url: str, scope: str | None) -> str:
    """Replaces the scope that the SDK requests with the configured one."""
    if scope is None:
        return url
    parts = urlsplit(url)
    query = [(name, value) for name, value in parse_qsl(parts.query) if name != "scope"]
    return parts._replace(query=urlencode([*query, ("scope", scope)])).geturl()


class _LoginStorage:
    """Token storage for the SDK during a login. At first it contains only the configured client."""

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


# --- redirect of the browser ---


class LoginCallback:
    """Local HTTP server for the redirect of the browser. Accepts one request with the right `state`; other
    requests are rejected and have no effect.
    """

    def __init__(self, port: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[AuthorizationCodeResult] = self._loop.create_future()
        self._state: str | None = None
        # The server uses one thread per connection, because browsers open spare connections and send nothing
        # on them.
        self._server = _CallbackServer(
            ("127.0.0.1", port), type("Handler", (_CallbackHandler,), {"callback": self})
        )
        threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="hutch login", daemon=True
        ).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}{CALLBACK_PATH}"

    def expect(self, state: str) -> None:
        self._state = state

    async def wait(self, seconds: float) -> AuthorizationCodeResult:
        """Waits for the redirect. Raises ServerUnreachable if the login was refused or timed out."""
        try:
            async with asyncio.timeout(seconds):
                return await self._result
        except TimeoutError:
            raise ServerUnreachable(f"the login was not completed within {seconds:g} s") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._result.cancel()
        self._server.shutdown()
        self._server.server_close()

    def handle_redirect(self, query: str) -> tuple[int, str]:
        """Handles a redirect in a thread of the server. Returns the status and the text for the browser."""
        query_params = {name: values[0] for name, values in parse_qs(query).items()}
        expected = self._state
        if expected is None or not secrets.compare_digest(
            query_params.get("state", "").encode(), expected.encode()
        ):
            return 400, _WRONG_STATE
        if "code" in query_params:
            result = AuthorizationCodeResult(
                code=query_params["code"], state=expected, iss=query_params.get("iss")
            )
            self._loop.call_soon_threadsafe(self._settle, result)
            return 200, _LOGGED_IN
        message = (
            query_params.get("error_description")
            or query_params.get("error")
            or "the server returned no code"
        )
        refusal = ServerUnreachable(printable(" ".join(message.split())[:300]))
        self._loop.call_soon_threadsafe(self._settle, refusal)
        return 400, _LOGIN_REFUSED

    def _settle(self, result: AuthorizationCodeResult | ServerUnreachable) -> None:
        if self._result.done():
            return
        if isinstance(result, ServerUnreachable):
            self._result.set_exception(result)
        else:
            self._result.set_result(result)


class _CallbackServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _CallbackHandler(BaseHTTPRequestHandler):
    callback: LoginCallback
    timeout = 10

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == CALLBACK_PATH:
            status, text = self.callback.handle_redirect(parts.query)
        else:
            status, text = 404, "Not found."
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        # Send no referrer, because the URL of this page contains the authorization code.
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing, because the URL contains the authorization code."""
