"""Checks Host, Origin and API key or browser session of every request, and drains the server at shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

from hutch.errors import Busy, HutchError, Unauthorized
from hutch.http.browser_sessions import BrowserSessions
from hutch.http.errors import SHUTTING_DOWN, Refusal
from hutch.http.requests import RUN_HEADER
from hutch.http.responses import error_response
from hutch.kernel.caller import caller_key
from hutch.session.channels.websocket import WebSocketChannel
from hutch.session.runner import ChannelServer
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.vault.api_keys import Identity

logger = logging.getLogger("hutch.auth")

# Prefix of users' keys. The operator's key is arbitrary text.
USER_KEY_PREFIX = "hk_"
KEY_NEEDED = (
    "Invalid or missing API key. Send one as `Authorization: Bearer KEY`: the value of HUTCH_API_KEY, or a"
    " user's key from `hutch key add USER`"
)
# Seconds that interrupted requests get to send their responses after the drain timeout.
ABORT_SECONDS = 1.0


class KeyAuthenticator(Protocol):
    """Looks up users by their API keys."""

    async def authenticate(self, secret: str) -> Identity:
        """Returns the user and the key. Raises Unauthorized if the key is not valid, HutchError if the lookup
        fails.
        """


class Caller(NamedTuple):
    """The authenticated sender of a request."""

    owner: str
    """Owner of the caller's executions."""
    identity: Identity | None = None
    """The user and the key. None for the operator, and for everyone on a server without a key."""

    def may(self, scope: str) -> bool:
        return self.identity is None or self.identity.may(scope)


class AccessControl:
    """Authenticates requests, and tracks active requests so that the shutdown can wait for them."""

    def __init__(self, settings: Settings, keys: KeyAuthenticator | None = None) -> None:
        """Without `keys`, the server has no users."""
        self._key = settings.api_key
        self._keys = keys
        self.browsers = BrowserSessions()
        self._loopback_only = is_loopback(settings.host)
        self._hosts = {_canonical_host(name) for name in (settings.host, *settings.allowed_hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}
        self._connections: dict[ChannelServer, WebSocketChannel] = {}
        self._active_requests = 0
        self._finished = asyncio.Event()
        self.is_draining = False
        self.drain_expired = asyncio.Event()
        """Set when the drain timeout expires."""
        self.on_drain_expired: set[Callable[[], None]] = set()
        """Functions that are called when the drain timeout expires."""

    async def authenticate(
        self,
        connection: HTTPConnection,
        protocol: str | None,
        *,
        allow_any_origin: bool = False,
        allow_scripts: bool = False,
        users_only: bool = False,
    ) -> Caller | Refusal:
        """Identifies the caller as the operator, a user with a key for this protocol, or anonymous.

        `protocol`: the scope that a user's key needs; None if every key has access.
        `users_only`: every caller needs a user's key. For the other options see `check`.
        """
        token = self.api_key_of(connection)
        keyed = users_only or (token.startswith(USER_KEY_PREFIX) and not self._is_operator(connection))
        refusal = self.check(
            connection, allow_any_origin=allow_any_origin, allow_scripts=allow_scripts, keyed=keyed
        )
        if refusal is not None:
            return refusal
        return await self._user(token, protocol) if keyed else Caller(self.owner())

    async def authenticate_key(self, api_key: str, protocol: str | None) -> Caller | Refusal:
        """Identifies the operator or a user by an API key that was not sent as a header."""
        if self._is_operators_key(api_key):
            return Caller(self.owner())
        return await self._user(api_key, protocol)

    def api_key_of(self, connection: HTTPConnection) -> str:
        """Returns the API key that a request sends, or the API key of its browser session. Returns an empty
        string if the request has neither.
        """
        if "authorization" in connection.headers:
            return _bearer_token(connection)
        return self.browsers.api_key(connection)

    def check_origin(
        self, connection: HTTPConnection, *, keyed: bool = False, allow_any_origin: bool = False
    ) -> Refusal | None:
        """Returns a refusal if the request is meant for another server or comes from a page of another site,
        otherwise None. For the options see `check`.
        """
        host = ", ".join(connection.headers.getlist("host"))
        if not self._host_allowed(host, keyed=keyed):
            return Refusal(403, f"{host!r} is not a name of this server; see the setting allowed_hosts")
        origin = connection.headers.get("origin")
        if origin is not None and not allow_any_origin and not self._origin_allowed(origin, host):
            return Refusal(403, f"Pages of {origin!r} may not connect; see the setting allowed_origins")
        return None

    async def _user(self, token: str, protocol: str | None) -> Caller | Refusal:
        try:
            if self._keys is None:
                raise Unauthorized("unknown", "This server has no users.")
            identity = await self._keys.authenticate(token)
        except Unauthorized as error:
            return Refusal(401, str(error), {"WWW-Authenticate": "Bearer"})
        except HutchError as error:
            logger.error("API key lookup failed: %s", error)
            return Refusal(
                503, "API keys cannot be verified; the server's log says why", {"Retry-After": "1"}
            )
        if protocol is not None and not identity.may(protocol):
            scopes = ", ".join(identity.key.scopes) or "none"
            return Refusal(
                403, f"This key lacks the scope {protocol} (it has: {scopes}); {key_advice(protocol)}"
            )
        caller_key.set(identity.key.id)
        return Caller(identity.user.id, identity)

    def deny(self, connection: HTTPConnection, *, public: bool = False) -> Response | None:
        """Returns the error response for a request to a public or operator route, or None if it is allowed.

        For `public` see `check`.
        """
        refusal = self.check(connection, public=public)
        return None if refusal is None else error_response(*refusal)

    def check(
        self,
        connection: HTTPConnection,
        *,
        public: bool = False,
        allow_any_origin: bool = False,
        allow_scripts: bool = False,
        keyed: bool = False,
    ) -> Refusal | None:
        """Returns a refusal, or None if the request is allowed.

        `public`: everyone has access, including pages of other sites and callers without a key.
        `allow_any_origin`: the protocol allows pages of all sites. `allow_scripts`: sandboxed scripts have
        access. Their requests carry the operator's key. So all other routes must refuse scripts, because a
        script could use those routes to reach the network or to approve its own tool calls. `keyed`: the
        caller sent a user's key, which is verified elsewhere.
        """
        refusal = self.check_origin(connection, keyed=keyed, allow_any_origin=public or allow_any_origin)
        if refusal is not None or public:
            return refusal
        if not keyed and self._key is not None and not self._is_operator(connection):
            return Refusal(401, KEY_NEEDED, {"WWW-Authenticate": "Bearer"})
        if not allow_scripts and is_script(connection):
            return Refusal(403, f"Scripts have no access to {connection.url.path}")
        return None

    def admit(self) -> None:
        """Raises Busy if the server is shutting down."""
        if self.is_draining:
            raise Busy(f"{SHUTTING_DOWN}.")

    def owner(self) -> str:
        """Returns the owner of executions that were requested without a user's key."""
        return "local" if self._key is None else "key"

    @contextlib.asynccontextmanager
    async def track_connection(
        self, serving: ChannelServer, channel: WebSocketChannel
    ) -> AsyncIterator[None]:
        """Tracks a WebSocket client. When the client disconnects, its executions are stopped."""
        self._connections[serving] = channel
        try:
            yield
        finally:
            await serving.stop()
            await channel.finished()
            del self._connections[serving]
            self._finished.set()

    @contextlib.contextmanager
    def track_request(self) -> Iterator[None]:
        """Tracks a request until its response is sent. Raises Busy if the server is shutting down."""
        self.admit()
        self._active_requests += 1
        try:
            yield
        finally:
            self._active_requests -= 1
            self._finished.set()

    async def drain(self, seconds: float) -> bool:
        """Refuses new work and waits for active requests and clients to finish. When the time is over,
        cancels the rest.

        Returns False if the time was not enough. The caller should then close the connections that are still
        open, because their clients do not read the responses.
        """
        self.is_draining = True
        try:
            async with asyncio.timeout(seconds):
                for serving in list(self._connections):
                    await serving.wait_idle()
                await self._close_connections()
            return True
        except TimeoutError:
            self.drain_expired.set()
            for callback in list(self.on_drain_expired):
                callback()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ABORT_SECONDS):
                await asyncio.gather(*(serving.stop() for serving in self._connections))
                await self._close_connections()
        return False

    async def _close_connections(self) -> None:
        for channel in self._connections.values():
            channel.close(SHUTTING_DOWN)
        while self._connections or self._active_requests:
            self._finished.clear()
            await self._finished.wait()

    def _host_allowed(self, header: str, *, keyed: bool) -> bool:
        """Checks the Host header, as a guard against DNS rebinding: when a page points its own host name at
        our address, its requests still have that name in `Host`.
        """
        host = parse_host(header)
        if host is None:
            return False
        if host in self._hosts or is_loopback(host):
            return True
        if self._loopback_only:
            return False
        # A server that requires an API key is safe from DNS rebinding, because the attacking page does not
        # know the key. Without a key, the Host header must be an IP address, because rebinding needs a host
        # name.
        return keyed or self._key is not None or _is_address(host)

    def _origin_allowed(self, origin: str, host: str) -> bool:
        if "*" in self._origins:
            return True
        try:
            return origin.lower() in self._origins or urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:
            return False

    def _is_operator(self, connection: HTTPConnection) -> bool:
        return self._is_operators_key(self.api_key_of(connection))

    def _is_operators_key(self, token: str) -> bool:
        sent = token.encode("utf-8", "surrogatepass")
        return bool(sent) and self._key is not None and hmac.compare_digest(sent, self._key.encode())


def _bearer_token(connection: HTTPConnection) -> str:
    """Returns the Bearer token, or an empty string."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return ""
    # Decode again, because Starlette decodes headers as Latin-1, but keys are UTF-8.
    return token.strip().encode("latin-1").decode("utf-8", "surrogateescape")


def key_advice(*scopes: str) -> str:
    """Returns advice for a caller whose key lacks these scopes."""
    options = " ".join(f"--scope {scope}" for scope in scopes)
    return f"create a key with `hutch key add USER {options}`"


def is_script(connection: HTTPConnection) -> bool:
    """Returns True if the request comes from a script inside a jail."""
    return RUN_HEADER in connection.headers


# Maximum length of a Host header: enough for a name of 253 characters, its final dot, and a port.
MAX_HOST_CHARS = 260
_HOST = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*)\.?)"
    r"(?::(?P<port>[0-9]{0,5}))?"
)


def parse_host(header: str) -> str | None:
    """Returns the name or the address in a `Host` header, in lower case and without the final dot. Returns
    None if the header is not valid.
    """
    match = _HOST.fullmatch(header) if len(header) <= MAX_HOST_CHARS else None
    if match is None or int(match["port"] or 0) > 65535:
        return None
    if match["name"] is not None:
        return match["name"].lower()
    try:
        return str(ipaddress.IPv6Address(match["ipv6"]))
    except ValueError:
        return None


def _canonical_host(name: str) -> str:
    """Normalises a host from the settings in the same way as `parse_host`."""
    try:
        return str(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return name.lower().removesuffix(".")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
