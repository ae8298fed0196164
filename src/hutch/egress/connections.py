"""Connections to checked addresses, kept a while for the next request of the same owner to the same place."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter

import msgspec

from hutch.egress import resolver
from hutch.egress.connection import Connection
from hutch.egress.fetch import FetchError
from hutch.egress.policy import Policy, Refused
from hutch.egress.resolver import Unreachable
from hutch.egress.tunnel import Tunnel
from hutch.egress.urls import Url

MAX_CONNECTIONS = 512
MAX_OF_OWNER = 256
MAX_IDLE = 256
SWEEP_SECONDS = 2.0


class Place(msgspec.Struct, frozen=True):
    """What has to be equal for a connection to be used again. Owners never share one: what the one leaves
    behind there, by a server that reads requests differently from us, would be the other's."""

    owner: str
    policy: Policy
    origin: tuple[str, str, int]


class Connections:
    """All of one broker."""

    def __init__(self, tunnel: Tunnel | None = None, trust: ssl.SSLContext | None = None) -> None:
        self._tunnel = tunnel
        self._trust = trust
        self._idle: dict[Place, list[Connection]] = {}
        self._open: dict[Connection, Place] = {}
        self._starting: Counter[str] = Counter()
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def idle(self) -> int:
        return sum(map(len, self._idle.values()))

    def kept(self, place: Place) -> Connection | None:
        """The one used last, so that those beyond need go out of use."""
        waiting = self._idle.get(place)
        now = asyncio.get_running_loop().time()
        found = None
        while waiting and found is None:
            connection = waiting.pop()
            if connection.is_usable and connection.idle_until > now:
                found = connection
            else:
                connection.abort()
        if waiting == []:
            del self._idle[place]
        return found

    async def connect(self, place: Place, url: Url) -> Connection:
        """A new one, to an address that the policy permits. Raises FetchError."""
        if not self._has_room(place.owner):
            raise FetchError("unreachable", "Too many requests are under way; try again later.")
        self._starting[place.owner] += 1
        try:
            connection = await self._connect(place, url)
        except Refused as error:
            raise FetchError("egress_refused", error.message) from None
        except Unreachable as error:
            raise FetchError("timeout" if error.timed_out else "unreachable", error.message) from None
        except ssl.SSLCertVerificationError as error:
            what = f"The certificate of {url.host} is not to be trusted: {error.verify_message.rstrip('.')}."
            raise FetchError("tls", what) from None
        except ssl.SSLError as error:
            raise FetchError(
                "tls", f"{url.host} does not speak TLS as it should: {_reason(error)}."
            ) from None
        except OSError:
            raise FetchError("unreachable", f"{url.host}:{url.port} closed the connection.") from None
        finally:
            self._starting[place.owner] -= 1
            if not self._starting[place.owner]:
                del self._starting[place.owner]
        if self._closed or not connection.is_usable:
            # Not noted: nobody may tell any more that it is gone.
            connection.abort()
            raise FetchError("unreachable", f"The connection to {url.host}:{url.port} was closed at once.")
        self._open[connection] = place
        return connection

    def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    async def _connect(self, place: Place, url: Url) -> Connection:
        host = url.host.strip("[]")
        secure = await self._context() if url.scheme == "https" else None
        connection = Connection(url.host, self._free, self._gone)
        if self._tunnel is not None:
            addresses = await resolver.resolve(place.policy, url.host, url.port)
            await self._tunnel.open(connection, addresses, url, secure)
            return connection
        sock = await resolver.connect(place.policy, url.host, url.port)
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: connection, sock=sock, ssl=secure, server_hostname=host if secure else None
            )
        except BaseException:
            sock.close()
            raise
        return connection

    async def _context(self) -> ssl.SSLContext:
        if self._trust is None:
            # Reads some hundred certificates.
            self._trust = await asyncio.to_thread(trust)
        return self._trust

    def _free(self, connection: Connection) -> None:
        place = self._open.get(connection)
        if self._closed or place is None:
            connection.abort()
            return
        if self.idle >= MAX_IDLE:
            self._evict()
        self._idle.setdefault(place, []).append(connection)
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _gone(self, connection: Connection) -> None:
        place = self._open.pop(connection, None)
        waiting = self._idle.get(place) if place is not None else None
        if waiting is not None and connection in waiting:
            waiting.remove(connection)
            if not waiting:
                del self._idle[place]  # type: ignore[arg-type]

    def _has_room(self, owner: str) -> bool:
        """For one more; nobody can take all of it."""
        of_owner = self._starting[owner] + sum(place.owner == owner for place in self._open.values())
        if of_owner >= MAX_OF_OWNER and not self._evict(owner):
            return False
        return len(self._open) + self._starting.total() < MAX_CONNECTIONS or self._evict()

    def _evict(self, owner: str | None = None) -> bool:
        """Ends the connection, of anybody or of one owner, that has least time left."""
        idle = [
            connection
            for place, waiting in self._idle.items()
            for connection in waiting
            if owner is None or place.owner == owner
        ]
        if not idle:
            return False
        self._drop(min(idle, key=lambda connection: connection.idle_until))
        return True

    def _drop(self, connection: Connection) -> None:
        connection.abort()
        self._gone(connection)

    def _sweep(self) -> None:
        self._sweeping = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in list(self._idle.values()):
            for connection in [each for each in waiting if each.idle_until <= now]:
                self._drop(connection)
        if self._idle:
            self._sweeping = loop.call_later(SWEEP_SECONDS, self._sweep)


def trust() -> ssl.SSLContext:
    """The machine's own certificates, or those in SSL_CERT_FILE. Blocks."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "the handshake failed").replace("_", " ").lower()
