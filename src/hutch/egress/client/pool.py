"""Pool of connections to permitted addresses. A connection is reused only for the same owner and origin."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter

import msgspec

from hutch.egress import resolver
from hutch.egress.addresses import Url
from hutch.egress.client.connection import ClientConnection
from hutch.egress.client.models import FetchError
from hutch.egress.client.operator_proxy import OperatorProxy
from hutch.egress.client.tls import WaitingProtocol, start_tls
from hutch.egress.policy import EgressPolicy, EgressRefused
from hutch.egress.resolver import HostUnreachable

MAX_CONNECTIONS = 512
MAX_PER_OWNER = 256
MAX_IDLE = 256
SWEEP_SECONDS = 2.0


class PoolKey(msgspec.Struct, frozen=True):
    """Identifies connections that can replace each other.

    Owners never share a connection. Otherwise a server that parses requests differently from Hutch could send
    the response for one owner to another.
    """

    owner: str
    policy: EgressPolicy
    origin: tuple[str, str, int]


class ConnectionPool:
    def __init__(
        self, operator_proxy: OperatorProxy | None = None, trust: ssl.SSLContext | None = None
    ) -> None:
        self._operator_proxy = operator_proxy
        self._trust = trust
        self._idle: dict[PoolKey, list[ClientConnection]] = {}
        self._open: dict[ClientConnection, PoolKey] = {}
        self._starting: Counter[str] = Counter()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open(self) -> int:
        return len(self._open)

    @property
    def idle(self) -> int:
        return sum(map(len, self._idle.values()))

    def take_idle(self, key: PoolKey) -> ClientConnection | None:
        """Returns the most recently used connection. So connections that are not needed stay idle and
        expire.
        """
        connections = self._idle.get(key)
        now = asyncio.get_running_loop().time()
        usable = None
        while connections and usable is None:
            connection = connections.pop()
            if connection.is_usable and connection.idle_until > now:
                usable = connection
            else:
                connection.abort()
        if connections == []:
            del self._idle[key]
        return usable

    async def connect(self, key: PoolKey, url: Url) -> ClientConnection:
        """Opens a connection to an address that the policy permits. Raises FetchError."""
        if not self._has_capacity(key.owner):
            raise FetchError("unreachable", "Too many requests are in progress; try again later.")
        self._starting[key.owner] += 1
        try:
            connection = await self._connect(key, url)
        except EgressRefused as error:
            raise FetchError("egress_refused", error.message) from None
        except HostUnreachable as error:
            raise FetchError("timeout" if error.timed_out else "unreachable", error.message) from None
        except ssl.SSLCertVerificationError as error:
            reason = error.verify_message.rstrip(".")
            message = f"The certificate of {url.host} is not trusted: {reason}."
            raise FetchError("tls", message) from None
        except ssl.SSLError as error:
            raise FetchError("tls", f"TLS with {url.host} failed: {_reason(error)}.") from None
        except OSError:
            raise FetchError("unreachable", f"{url.host}:{url.port} closed the connection.") from None
        finally:
            self._starting[key.owner] -= 1
            if not self._starting[key.owner]:
                del self._starting[key.owner]
        if self._closed or not connection.is_usable:
            # Abort the connection here. Closing the pool would not close it, because it is not in `_open`
            # yet.
            connection.abort()
            raise FetchError("unreachable", f"The connection to {url.host}:{url.port} was closed.")
        self._open[connection] = key
        return connection

    def close(self) -> None:
        self._closed = True
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    async def _connect(self, key: PoolKey, url: Url) -> ClientConnection:
        tls = await self._tls_context() if url.scheme == "https" else None
        connection = ClientConnection(url.host, self._release, self._remove)
        if self._operator_proxy is not None:
            addresses = await resolver.resolve(key.policy, url.host, url.port)
            await self._operator_proxy.connect(connection, addresses, url, tls)
            return connection
        sock = await resolver.connect(key.policy, url.host, url.port)
        loop = asyncio.get_running_loop()
        try:
            if tls is None:
                await loop.create_connection(lambda: connection, sock=sock)
                return connection
            transport, _ = await loop.create_connection(WaitingProtocol, sock=sock)
        except BaseException:
            sock.close()
            raise
        await start_tls(transport, connection, tls, url.host)
        return connection

    async def _tls_context(self) -> ssl.SSLContext:
        if self._trust is None:
            # Load them in a thread, because some hundred certificates are read.
            self._trust = await asyncio.to_thread(_load_trusted_certificates)
        return self._trust

    def _release(self, connection: ClientConnection) -> None:
        key = self._open.get(connection)
        if self._closed or key is None:
            connection.abort()
            return
        if self.idle >= MAX_IDLE:
            self._evict()
        self._idle.setdefault(key, []).append(connection)
        if self._sweep_timer is None:
            self._sweep_timer = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def _remove(self, connection: ClientConnection) -> None:
        key = self._open.pop(connection, None)
        connections = self._idle.get(key) if key is not None else None
        if connections is not None and connection in connections:
            connections.remove(connection)
            if not connections:
                del self._idle[key]  # type: ignore[arg-type]

    def _has_capacity(self, owner: str) -> bool:
        """Returns True if a connection may be opened, and closes an idle one if that is necessary.

        No owner can use up all connections.
        """
        owned = self._starting[owner] + sum(key.owner == owner for key in self._open.values())
        if owned >= MAX_PER_OWNER and not self._evict(owner):
            return False
        return len(self._open) + self._starting.total() < MAX_CONNECTIONS or self._evict()

    def _evict(self, owner: str | None = None) -> bool:
        """Closes the idle connection that would expire first, of one owner or of all. Returns False if none
        is idle.
        """
        idle = [
            connection
            for key, connections in self._idle.items()
            for connection in connections
            if owner is None or key.owner == owner
        ]
        if not idle:
            return False
        self._close_idle(min(idle, key=lambda connection: connection.idle_until))
        return True

    def _close_idle(self, connection: ClientConnection) -> None:
        connection.abort()
        self._remove(connection)

    def _sweep(self) -> None:
        self._sweep_timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for connections in list(self._idle.values()):
            for connection in [idle for idle in connections if idle.idle_until <= now]:
                self._close_idle(connection)
        if self._idle:
            self._sweep_timer = loop.call_later(SWEEP_SECONDS, self._sweep)


def _load_trusted_certificates() -> ssl.SSLContext:
    """Loads the system's certificates, or the certificates in SSL_CERT_FILE. Blocks."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "the handshake failed").replace("_", " ").lower()
