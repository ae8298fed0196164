"""HTTP proxy that enforces the egress policy. A jail can reach the network only through this proxy.

It supports tunnels (CONNECT) and http:// requests, one per connection. It buffers only data in transit: while
one side cannot be written to, the other side is not read. It also answers the DNS queries of the jail. Its
own error responses have the header X-Hutch-Egress, which contains Node's code for the error.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable

from hutch.egress.addresses import Address
from hutch.egress.policy import EgressPolicy, EgressRefused
from hutch.egress.proxy.dns import DnsServer
from hutch.egress.proxy.forwarding import GuestSide
from hutch.egress.proxy.http1 import ProxyRequest
from hutch.egress.request_log import OutgoingRequest
from hutch.egress.resolver import HostUnreachable, connect_to_first, resolve
from hutch.tasks import finish
from hutch.telemetry.counters import EgressCounters

logger = logging.getLogger("hutch")

COUNTED_AS = "proxy"
"""Name of the proxy in metrics."""
MAX_CONNECTIONS = 128
MAX_LOOKUPS = 8
# Maximum number of failed tunnels to remember.
MAX_FAILURES = 64
# Maximum number of requests of a run to record.
MAX_LOGGED_REQUESTS = 200
# Pause after an accept has failed, for example because no file descriptor was free.
PAUSE_SECONDS = 0.1

OnRefused = Callable[[str], None]


class EgressProxy:
    def __init__(
        self,
        listener: socket.socket,
        policy: EgressPolicy,
        on_refused: OnRefused | None = None,
        dns: socket.socket | None = None,
        counters: EgressCounters | None = None,
    ) -> None:
        self._counters = counters or EgressCounters()
        self.policy = policy
        self.failures: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        """Responses to the last failed tunnels, by host and port."""
        self.request_log: list[OutgoingRequest] = []
        """The first requests and tunnels since `start_log`."""
        self.sent_bytes = 0
        self.received_bytes = 0
        self._listener = listener
        self._on_refused = on_refused
        self._slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._lookups = asyncio.Semaphore(MAX_LOOKUPS)
        self._clients: set[GuestSide] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._dns = None if dns is None else DnsServer(dns, self._resolve_name)
        self._closed = False

    @classmethod
    async def start(
        cls,
        listener: socket.socket,
        policy: EgressPolicy,
        on_refused: OnRefused | None = None,
        dns: socket.socket | None = None,
        counters: EgressCounters | None = None,
    ) -> EgressProxy:
        """Starts a proxy that serves until `close`. The proxy takes over both sockets and closes them."""
        listener.setblocking(False)
        proxy = cls(listener, policy, on_refused, dns, counters)
        proxy._accepting = asyncio.get_running_loop().create_task(proxy._accept(), name="hutch-proxy")
        return proxy

    @property
    def connections(self) -> int:
        return len(self._clients)

    async def close(self) -> None:
        self._closed = True
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.wait((self._accepting,))
        self._listener.close()
        if self._dns is not None:
            await self._dns.close()
        clients = list(self._clients)
        for client in clients:
            client.abort_both()
        for client in clients:
            await client.wait_closed()
        self._counters.add_bytes(COUNTED_AS, self.sent_bytes, self.received_bytes)

    async def _accept(self) -> None:
        """Accepts connections while a slot is free. Further connections wait in the backlog of the jail's
        socket.
        """
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            try:
                sock, _ = await loop.sock_accept(self._listener)
                await self._start_client(sock)
            except OSError as error:
                self._slots.release()
                logger.warning("A tool's connection cannot be accepted: %s", error)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _start_client(self, sock: socket.socket) -> None:
        """Creates the client for an accepted socket. Completes even if cancelled, because nothing would
        notice the end of a connection without a client.
        """
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        try:
            await finish(loop.connect_accepted_socket(lambda: GuestSide(self), sock))
        except OSError:
            sock.close()
            raise

    def add_client(self, client: GuestSide) -> None:
        self._clients.add(client)
        if self._closed:
            client.abort_both()

    def remove_client(self, client: GuestSide) -> None:
        self._clients.discard(client)
        self._slots.release()

    async def connect(self, host: str, port: int) -> socket.socket:
        """Connects to a destination that the policy permits. Raises EgressRefused and HostUnreachable."""
        outcome = "closed"
        try:
            sock = await connect_to_first(await self._resolve(host, port), host, port)
            outcome = "ok"
            return sock
        except EgressRefused:
            outcome = "egress_refused"
            raise
        except HostUnreachable:
            outcome = "unreachable"
            raise
        finally:
            self._counters.add(COUNTED_AS, outcome)

    async def _resolve_name(self, name: str) -> list[Address]:
        return await self._resolve(name, None)

    async def _resolve(self, host: str, port: int | None) -> list[Address]:
        try:
            async with self._lookups:
                return await resolve(self.policy, host, port)
        except EgressRefused as error:
            if self._on_refused is not None:
                self._on_refused(error.message)
            raise

    def start_log(self) -> list[OutgoingRequest]:
        """Starts a new log, for the next run."""
        self.request_log = []
        return self.request_log

    def log_request(self, request: ProxyRequest) -> OutgoingRequest:
        """Creates the log entry of a request. Adds it to the log unless the log is full."""
        is_usual = request.port == (443 if request.is_tunnel else 80)
        host = request.host if is_usual else f"{request.host}:{request.port}"
        entry = OutgoingRequest(method=request.method.decode("latin-1"), host=host)
        if len(self.request_log) < MAX_LOGGED_REQUESTS:
            self.request_log.append(entry)
        return entry

    def remember_failure(self, request: ProxyRequest, response: bytes) -> None:
        key = request.host, request.port
        self.failures.pop(key, None)
        self.failures[key] = response
        if len(self.failures) > MAX_FAILURES:
            self.failures.popitem(last=False)
