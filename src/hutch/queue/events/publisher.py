"""Stores the events of runs that this server executes, for clients that follow them at other servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from hutch.errors import HutchError
from hutch.store.tables.queue.followers import FollowedEvents, Follower

if TYPE_CHECKING:
    from hutch.store.tables.queue.followers import FollowerTable

logger = logging.getLogger("hutch.queue")

FLUSH_SECONDS = 0.1
"""Minimum time between two writes for one follower. Events in between are written together."""
LOOK_SECONDS = 0.5
"""Interval at which this server looks for followers while there are any. A suspended run can continue at any
server.
"""
FULL_SECONDS = 0.5
"""Time until the next attempt to write to a follower that has not read earlier events."""
MAX_PUBLISHED = 200
"""Maximum number of followers at other servers. Further ones get the events only at the end of the run."""


class EventSource(Protocol):
    """Encoded events of a run in progress. Drops events that are not read in time, so that memory is
    bounded.
    """

    @property
    def number(self) -> int:
        """Number of the last event, as clients see it: with the follower's offset."""

    @property
    def has_ended(self) -> bool:
        """True if the last event was returned."""

    def past_chunks(self) -> Iterator[bytes]: ...

    async def next(self) -> bytes | None: ...

    def detach(self) -> None: ...


OpenEvents = Callable[[Follower], EventSource | None]
"""Returns the events of a run that this server executes, or None if the run has not begun, or has too many
followers.
"""


class EventPublisher:
    def __init__(self, table: FollowerTable, open_events: OpenEvents) -> None:
        self._table = table
        self._open = open_events
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Tasks by follower. A task that has ended stays here until its follower has left."""
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Makes the publisher look for followers now."""
        self._wake.set()

    async def run(self) -> None:
        """Looks for followers when woken up. While there are any, also looks regularly."""
        has_followers = False
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS if has_followers else None):
                    await self._wake.wait()
            self._wake.clear()
            try:
                has_followers = await self._update()
            except HutchError as error:
                has_followers = True
                logger.info("followers at other servers cannot be read: %s", error)
            except Exception:
                logger.exception("followers at other servers cannot be read")
            await asyncio.sleep(FLUSH_SECONDS)

    async def _update(self) -> bool:
        """Publishes to new followers, and stops publishing to followers that have left. Returns False if
        there are no followers.
        """
        followers = {follower.id: follower for follower in await self._table.list()}
        for id in [id for id in self._tasks if id not in followers]:
            self._tasks.pop(id).cancel()
        for follower in followers.values():
            if follower.id in self._tasks or len(self._tasks) >= MAX_PUBLISHED:
                continue
            if (events := self._open(follower)) is not None:
                self._tasks[follower.id] = asyncio.get_running_loop().create_task(
                    self._publish(follower.id, events), name=f"hutch queue: events for {follower.id}"
                )

        return bool(followers)

    async def close(self) -> None:
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _publish(self, id: str, events: EventSource) -> None:
        parts = itertools.count()
        try:
            if past := b"".join(events.past_chunks()):
                await self._put(id, FollowedEvents(next(parts), events.number, past, events.has_ended))
            while (data := await events.next()) is not None:
                await self._put(id, FollowedEvents(next(parts), events.number, data, events.has_ended))
                await asyncio.sleep(FLUSH_SECONDS)
        except Exception:
            logger.exception("the events of a run cannot be sent to a follower at another server")
        finally:
            events.detach()

    async def _put(self, id: str, events: FollowedEvents) -> None:
        """Stores events. Waits while the follower does not read its earlier events. If the follower has left,
        `_update` cancels this task.
        """
        while True:
            try:
                if await self._table.put(id, events):
                    return
            except HutchError as error:
                logger.info("events cannot be sent to a follower at another server yet: %s", error)
            await asyncio.sleep(FULL_SECONDS)
