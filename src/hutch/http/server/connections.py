"""Limits on open connections, in total and per address, and on the headers of a request.

If a limit is reached, the connection that has waited longest for its client is closed. So idle clients,
clients that send or read slowly, and clients that open many connections cannot keep others out. Imports
neither uvicorn nor Starlette.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from hutch.egress.addresses import unmap_ipv4

logger = logging.getLogger("hutch.serve")

# Number of connections that only clients on this machine can use, so that the operator can always connect.
LOOPBACK_RESERVE = 16
# Maximum number of refused connections that stay open until their client has read the reason.
MAX_LINGERING = 64
LOG_SECONDS = 60.0
MAX_HEAD_BYTES = 64 * 1024
# Maximum time from the start of the connection, or from the first byte after the previous request, to the end
# of the headers.
HEAD_SECONDS = 20.0


class ClientAddress(NamedTuple):
    group: str
    """The IPv4 address, or the IPv6 network of 64 bits, because one client can have all addresses in it."""
    is_loopback: bool


class ConnectionSlot:
    """One counted connection. The protocol of the connection reports here whether the server waits for the
    client, and when the connection ends.
    """

    def __init__(self, limits: ConnectionLimits, address: ClientAddress, close: Callable[[], None]) -> None:
        self._limits = limits
        self.address = address
        self.close = close
        """Closes the connection immediately."""

    def set_waiting(self, waiting: bool) -> None:
        """Records whether the server waits for the client: for a request, for its body, or for the client to
        read the response.
        """
        self._limits.set_waiting(self, waiting)

    def release(self) -> None:
        self._limits.release(self)


class ConnectionLimits:
    """Counts the open connections of one server."""

    def __init__(self, max_connections: int, max_per_address: int) -> None:
        """`max_per_address` does not apply to loopback addresses, from which a reverse proxy may connect."""
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._max_remote = max_connections - min(LOOPBACK_RESERVE, max_connections // 4)
        self._open: set[ConnectionSlot] = set()
        self._by_address: Counter[str] = Counter()
        # The longest-waiting connection comes first.
        self._waiting: OrderedDict[ConnectionSlot, None] = OrderedDict()
        self._lingering = 0
        self._logged_at = -LOG_SECONDS

    @property
    def connections(self) -> int:
        return len(self._open)

    def open(self, host: str, close: Callable[[], None]) -> ConnectionSlot | None:
        """Counts a new connection, which waits for its client. If a limit is reached, closes the connection
        that has been waiting for the longest time. If no connection is waiting, returns None: the new
        connection must be refused.
        """
        address = parse_address(host)
        if not address.is_loopback and self._by_address[address.group] >= self._max_per_address:
            self._log(f"max_connections_per_address={self._max_per_address}", address.group)
            if not self._close_waiting(address.group):
                return None
        limit = self._max_connections if address.is_loopback else self._max_remote
        if len(self._open) >= limit:
            self._log(f"max_connections={self._max_connections}", "all addresses")
            if not self._close_waiting():
                return None
        slot = ConnectionSlot(self, address, close)
        self._open.add(slot)
        self._by_address[address.group] += 1
        self._waiting[slot] = None
        return slot

    def release(self, slot: ConnectionSlot) -> None:
        """Stops counting a connection. Does nothing if it is not counted."""
        if slot not in self._open:
            return
        self._open.remove(slot)
        self._waiting.pop(slot, None)
        group = slot.address.group
        self._by_address[group] -= 1
        if not self._by_address[group]:
            del self._by_address[group]

    def set_waiting(self, slot: ConnectionSlot, waiting: bool) -> None:
        if not waiting:
            self._waiting.pop(slot, None)
        elif slot in self._open:
            self._waiting.setdefault(slot)

    def start_lingering(self) -> bool:
        """Counts a refused connection that stays open until its client has read the reason. Returns False if
        there are too many of them.
        """
        if self._lingering >= MAX_LINGERING:
            return False
        self._lingering += 1
        return True

    def stop_lingering(self) -> None:
        self._lingering -= 1

    def _close_waiting(self, group: str | None = None) -> bool:
        longest = next((each for each in self._waiting if group in (None, each.address.group)), None)
        if longest is None:
            return False
        # Stop counting the connection now, because it reports its own end only later.
        self.release(longest)
        longest.close()
        return True

    def _log(self, limit: str, whose: str) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.warning("the limit on connections is reached (%s, %s)", limit, whose)


@lru_cache(1024)
def parse_address(host: str) -> ClientAddress:
    try:
        address = unmap_ipv4(ipaddress.ip_address(host))
    except ValueError:
        return ClientAddress(host, is_loopback=False)
    group = str(address)
    if address.version == 6:
        group = str(ipaddress.ip_network((address, 64), strict=False))
    return ClientAddress(group, address.is_loopback)


class HeadTimeout:
    """Timer that runs while request headers are expected."""

    def __init__(self, on_timeout: Callable[[], None]) -> None:
        self._on_timeout = on_timeout
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_running(self) -> bool:
        return self._timer is not None

    def start(self, seconds: float | None = None) -> None:
        """Starts the timer unless it is already running. The default delay is HEAD_SECONDS."""
        if self._timer is None:
            delay = HEAD_SECONDS if seconds is None else seconds
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self._on_timeout()
