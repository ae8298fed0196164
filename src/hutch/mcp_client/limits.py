"""Time and size limits for MCP servers."""

from __future__ import annotations

import random

import msgspec

from hutch.settings import MIB


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for all servers. The configuration of a server can override `connect_seconds` and
    `call_seconds`.
    """

    connect_seconds: float = 30.0
    """Time to start the server, initialise the connection and list the tools."""
    call_seconds: float = 120.0
    liveness_seconds: float = 5.0
    """Timeout of the liveness check that follows the timeout of a call."""

    retry_seconds: float = 0.5
    """Delay before the first reconnect. It doubles with every further attempt."""
    max_retry_seconds: float = 30.0
    max_retries: int = 8
    """Maximum number of automatic reconnects in a row. After that, only calls try to reconnect."""
    stable_seconds: float = 60.0
    """Duration of a connection after which the count of reconnects starts again at 0."""
    failure_seconds: float = 0.5
    """Time after a failed attempt during which calls fail immediately instead of making another attempt."""

    max_pages: int = 500
    max_tools: int = 5_000
    max_tool_list_bytes: int = 32 * MIB
    """Maximum size of all names, descriptions and schemas of a server together."""
    max_unsolicited_per_second: float = 1_000.0
    """Maximum number of unsolicited messages per second. A burst may have twice that number. Messages beyond
    the limit are delayed.
    """
    flood_seconds: float = 10.0
    """A server that exceeds the rate for this time is disconnected."""

    def retry_delay(self, failures: int) -> float:
        delay = min(self.max_retry_seconds, self.retry_seconds * 2.0 ** min(failures, 20))
        # Jitter, so that servers that were lost at the same time do not reconnect at the same time.
        return delay * random.uniform(0.5, 1.0)


class FloodMeter:
    """Token bucket that slows down a server that sends many unsolicited messages."""

    def __init__(self, limits: ServerLimits) -> None:
        self._rate = limits.max_unsolicited_per_second
        self._max_flood_seconds = limits.flood_seconds
        self._tokens = self._capacity = 2 * self._rate
        self._updated_at = 0.0
        self._empty_since: float | None = None

    def delay(self, cost: float, now: float) -> float | None:
        """Returns how many seconds to wait before the next message, or None if the server has exceeded the
        rate for too long.
        """
        self._tokens = min(self._capacity, self._tokens + (now - self._updated_at) * self._rate) - cost
        self._updated_at = now
        if self._tokens >= 0:
            if self._tokens > self._rate:
                self._empty_since = None
            return 0.0
        if self._empty_since is None:
            self._empty_since = now
        return None if now - self._empty_since > self._max_flood_seconds else -self._tokens / self._rate
