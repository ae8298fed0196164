"""What every door asks before it opens: the Host, the Origin, and the key."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.responses import Response

from hutch.doors.marks import RUN, RUN_HEADER, SHUTTING_DOWN
from hutch.doors.refusals import Refusal, refusal
from hutch.errors import Busy, HutchError, Unauthorized
from hutch.session.serving import Serving
from hutch.session.websocket import WebSocketChannel
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.vault.apikeys import Caller

logger = logging.getLogger("hutch.gate")

# How users' own keys begin; the operator's is any text.
USER_KEY = "hk_"
# For those who were cut short: to hear it, and to leave.
LEAVE_SECONDS = 1.0


class Keys(Protocol):
    """Knows users by their keys."""

    async def authenticate(self, secret: str) -> Caller:
        """Raises Unauthorized, and HutchError when it cannot be known."""


class Visitor(NamedTuple):
    """Who was let in."""

    owner: str
    """Whose executions these are."""
    caller: Caller | None = None
    """The user and the key; None for the operator, and for everybody where no key is wanted."""

    def may(self, scope: str) -> bool:
        return self.caller is None or self.caller.may(scope)


class Gate:
    """Keeps out who may not come in, and knows who is inside."""

    def __init__(self, settings: Settings, keys: Keys | None = None) -> None:
        """Without `keys`, no user is known."""
        self._key = settings.api_key
        self._keys = keys
        self._loopback_only = is_loopback(settings.host)
        self._hosts = {settings.host.lower(), *(name.lower() for name in settings.allowed_hosts)}
        self._origins = {origin.lower().rstrip("/") for origin in settings.allowed_origins}
        self._inside: dict[Serving, WebSocketChannel] = {}
        self._visits = 0
        self._left = asyncio.Event()
        self.draining = False
        self.time_is_up = asyncio.Event()
        """Set when those who are still inside are to leave at once."""
        self.at_the_end: set[Callable[[], None]] = set()
        """What is called then, besides."""

    async def visitor(
        self,
        connection: HTTPConnection,
        door: str,
        *,
        any_origin: bool = False,
        scripts: bool = False,
        users_only: bool = False,
    ) -> Visitor | Refusal:
        """Who comes to a door, or why not: the operator, a user whose key is for this door, or anybody.

        `users_only`: the door is nobody's but users', who always need their key. The others as for
        `objection`.
        """
        token = _token(connection)
        keyed = users_only or (token.startswith(USER_KEY) and not self._key_fits(connection))
        objection = self.objection(connection, any_origin=any_origin, scripts=scripts, keyed=keyed)
        if objection is not None:
            return objection
        return await self._user(token, door) if keyed else Visitor(self.owner())

    async def _user(self, token: str, door: str) -> Visitor | Refusal:
        try:
            if self._keys is None:
                raise Unauthorized("unknown", "This server knows no users.")
            caller = await self._keys.authenticate(token)
        except Unauthorized as error:
            return Refusal(401, str(error), {"WWW-Authenticate": "Bearer"})
        except HutchError as error:
            logger.error("no key can be looked up: %s", error)
            return Refusal(503, "Keys cannot be looked up; the server's log says why", {"Retry-After": "1"})
        if not caller.may(door):
            scopes = ", ".join(caller.key.scopes) or "nothing"
            return Refusal(403, f"This key is for {scopes}, not for {door}; {key_for(door)}")
        return Visitor(caller.user.id, caller)

    async def turned_away(
        self, connection: HTTPConnection, door: str, *, scripts: bool = False
    ) -> Response | None:
        """The answer to who may not come to a door, or None."""
        found = await self.visitor(connection, door, scripts=scripts)
        return refusal(*found) if isinstance(found, Refusal) else None

    def refuse(
        self, connection: HTTPConnection, *, public: bool = False, scripts: bool = False
    ) -> Response | None:
        """The answer to who may not come in, or None: for what is the operator's, or everybody's.

        `public` and `scripts` as for `objection`.
        """
        objection = self.objection(connection, public=public, scripts=scripts)
        return None if objection is None else refusal(*objection)

    def objection(
        self,
        connection: HTTPConnection,
        *,
        public: bool = False,
        any_origin: bool = False,
        scripts: bool = False,
        keyed: bool = False,
    ) -> Refusal | None:
        """Why this one may not come in, or None.

        `public`: what everybody may see, pages of other sites and those without the key included.
        `any_origin`: pages of all sites may come, because the door's protocol says so.
        `scripts`: what a script in a jail may ask for. Its requests carry the key, which is not to open it
        the other doors: there it would find a network, and could answer for its user.
        `keyed`: whether the key counts is looked into elsewhere.
        """
        host = ", ".join(connection.headers.getlist("host"))
        if not self._host_allowed(host, keyed=keyed):
            return Refusal(403, f"{host!r} is no name of this server; see the setting allowed_hosts")
        if public:
            return None
        origin = connection.headers.get("origin")
        if origin is not None and not any_origin and not self._origin_allowed(origin, host):
            return Refusal(403, f"Pages of {origin!r} may not connect; see the setting allowed_origins")
        if not keyed and self._key is not None and not self._key_fits(connection):
            return Refusal(401, "Invalid or missing API key", {"WWW-Authenticate": "Bearer"})
        if not scripts and is_script(connection):
            return Refusal(403, f"Scripts have no access to {connection.url.path}")
        return None

    def admit(self) -> None:
        """Raises Busy when no execution may begin any more."""
        if self.draining:
            raise Busy(f"{SHUTTING_DOWN}.")

    def owner(self) -> str:
        """Whose executions these are: the key's, or everybody's where there is none."""
        return "local" if self._key is None else "key"

    @contextlib.asynccontextmanager
    async def inside(self, serving: Serving, channel: WebSocketChannel) -> AsyncIterator[None]:
        """A client comes in; when it leaves, what it started ends."""
        self._inside[serving] = channel
        try:
            yield
        finally:
            await serving.stop()
            await channel.finished()
            del self._inside[serving]
            self._left.set()

    @contextlib.contextmanager
    def visit(self) -> Iterator[None]:
        """A request that executes something, up to the end of its answer. Raises Busy as `admit` does."""
        self.admit()
        self._visits += 1
        try:
            yield
        finally:
            self._visits -= 1
            self._left.set()

    async def drain(self, seconds: float) -> bool:
        """Lets nobody in any more and waits for those inside to finish and leave. False when they did not
        in time: whoever is still inside does not read, and its connection is to be cut."""
        self.draining = True
        try:
            async with asyncio.timeout(seconds):
                for serving in list(self._inside):
                    await serving.idle()
                await self._see_out()
            return True
        except TimeoutError:
            self.time_is_up.set()
            for leave in list(self.at_the_end):
                leave()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await asyncio.gather(*(serving.stop() for serving in self._inside))
                await self._see_out()
        return False

    async def _see_out(self) -> None:
        for channel in self._inside.values():
            channel.close(SHUTTING_DOWN)
        while self._inside or self._visits:
            self._left.clear()
            await self._left.wait()

    def _host_allowed(self, header: str, *, keyed: bool) -> bool:
        """A page that rebinds its name to our address still sends its own name."""
        host = _host_of(f"//{header}")
        if not host:
            return False
        if host in self._hosts or is_loopback(host):
            return True
        if self._loopback_only:
            return False
        # On the network a key keeps such pages out as well; without one, addresses cannot be rebound.
        return keyed or self._key is not None or _is_address(host)

    def _origin_allowed(self, origin: str, host: str) -> bool:
        if "*" in self._origins:
            return True
        try:
            return origin.lower() in self._origins or urlsplit(origin).netloc.lower() == host.lower()
        except ValueError:
            return False

    def _key_fits(self, connection: HTTPConnection) -> bool:
        """Whether this is the operator's key."""
        token = _token(connection).encode("latin-1")
        return bool(token) and self._key is not None and hmac.compare_digest(token, self._key.encode())


def _token(connection: HTTPConnection) -> str:
    """What stands after `Bearer`, or nothing. Starlette reads headers as Latin-1."""
    scheme, _, given = connection.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def key_for(*scopes: str) -> str:
    """What to do where a key is not for what is wanted."""
    options = " ".join(f"--scope {scope}" for scope in scopes)
    return f"`hutch key add USER {options}` makes one that is"


def is_script(connection: HTTPConnection) -> bool:
    """Whether a script asks, out of its jail."""
    return RUN in connection.scope or RUN_HEADER in connection.headers


def _host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


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
