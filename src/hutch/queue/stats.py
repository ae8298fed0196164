"""Figures of the queue for metrics."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from hutch.errors import HutchError

if TYPE_CHECKING:
    from hutch.store.store import Store

logger = logging.getLogger("hutch.queue")

CACHED_SECONDS = 10.0
MAX_SECONDS = 2.0
"""Maximum time of the queries. A slow database must not make `/metrics` time out."""
MAX_COUNTED = 20_000
"""Maximum number of runs or messages of one state that are counted, so that the queries stay short."""


class QueueStats(NamedTuple):
    runs: Mapping[str, int]
    """Runs of all servers by state, at most MAX_COUNTED of each."""
    oldest_waiting_seconds: float
    """Time since the oldest queued run was due; 0 if there is none."""
    webhooks: Mapping[str, int]
    """Webhook messages by state: `pending` and `failed`."""


class QueueMonitor:
    """Reads the figures from the store, and caches them."""

    def __init__(self, store: Callable[[], Awaitable[Store]]) -> None:
        self._store = store
        self._stats: QueueStats | None = None
        self._read_at = -CACHED_SECONDS
        self._reading = asyncio.Lock()

    async def stats(self) -> QueueStats | None:
        """Returns the figures of the last seconds, or None if the database does not answer."""
        async with self._reading:
            if time.monotonic() - self._read_at >= CACHED_SECONDS:
                self._stats = await self._read()
                self._read_at = time.monotonic()
            return self._stats

    async def _read(self) -> QueueStats | None:
        try:
            async with asyncio.timeout(MAX_SECONDS):
                store = await self._store()
                counts = await store.queued_runs.load(MAX_COUNTED)
                webhooks = await store.webhooks.counts(MAX_COUNTED)
        except (HutchError, TimeoutError) as error:
            logger.info("the figures of the queue cannot be read: %s", error)
            return None
        return QueueStats(counts.runs, counts.oldest_waiting_ms / 1000, webhooks)
