"""Reads the events of runs that other servers execute, for the clients that follow them at this server."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hutch.errors import HutchError
from hutch.store.tables.queue.followers import FollowedEvents, Follower

if TYPE_CHECKING:
    from hutch.store.store import Store

logger = logging.getLogger("hutch.queue")

READ_SECONDS = 0.2
"""Interval at which events are read, for all followers of this server together."""
LIFE_SECONDS = 15.0
"""Time after which a follower whose server has died is removed."""
RENEW_SECONDS = 4.0
MAX_FOLLOWERS = 500
"""Maximum number of followers of one server. Further ones get the events only at the end of the run."""


class RemoteFollower:
    """Events of a run of another server, for one client."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._events: deque[FollowedEvents] = deque()
        self._changed = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._events

    def add(self, events: FollowedEvents) -> None:
        self._events.append(events)
        self._changed.set()

    async def next(self, seconds: float) -> FollowedEvents | None:
        """Waits for events for at most `seconds`. Returns None if there are none by then."""
        try:
            async with asyncio.timeout(seconds):
                while not self._events:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return None
        return self._events.popleft()


class RemoteEvents:
    """This server's followers of runs that other servers execute. One task reads the events of all of them,
    while there are any.
    """

    def __init__(self, store: Callable[[], Awaitable[Store]], on_added: Callable[[], None]) -> None:
        """`on_added` is called after a follower was stored, and notifies the other servers."""
        self._store = store
        self._on_added = on_added
        self._followers: dict[str, RemoteFollower] = {}
        self._left: set[str] = set()
        self._reading: asyncio.Task[None] | None = None
        self._renewed_at = 0.0

    async def follow(self, run_id: str, after: int, offset: int = 0) -> RemoteFollower | None:
        """Follows a run. Call `leave` afterwards. Returns None if this server has too many followers. Raises
        StoreError.
        """
        if len(self._followers) >= MAX_FOLLOWERS:
            return None
        follower = RemoteFollower(secrets.token_hex(16))
        row = Follower(follower.id, run_id, after, offset)
        await (await self._store()).followers.add(row, int(LIFE_SECONDS * 1000))
        self._followers[follower.id] = follower
        if self._reading is None or self._reading.done():
            self._renewed_at = time.monotonic()
            self._reading = asyncio.get_running_loop().create_task(
                self._read(), name="hutch queue: events of other servers"
            )
        self._on_added()
        return follower

    def leave(self, follower: RemoteFollower) -> None:
        del self._followers[follower.id]
        self._left.add(follower.id)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _read(self) -> None:
        while self._followers or self._left:
            try:
                await self._read_once()
            except HutchError as error:
                logger.info("events of other servers cannot be read: %s", error)
            except Exception:
                logger.exception("events of other servers cannot be read")
            await asyncio.sleep(READ_SECONDS)

    async def _read_once(self) -> None:
        table = (await self._store()).followers
        if left := {*self._left}:
            await table.remove(left)
            self._left -= left
        now = time.monotonic()
        if self._followers and now - self._renewed_at > RENEW_SECONDS:
            await table.renew(self._followers, int(LIFE_SECONDS * 1000))
            self._renewed_at = now
        # Take no events for clients that have not read the previous ones. These events stay in the store,
        # where their number is limited.
        if ids := [id for id, follower in self._followers.items() if follower.is_empty]:
            for id, events in await table.take(ids):
                if (follower := self._followers.get(id)) is not None:
                    follower.add(events)
