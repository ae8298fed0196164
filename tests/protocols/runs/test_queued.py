"""A client follows a run at a server that does not execute it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.support.processes import TIMEOUT_SECONDS

from hutch.protocols.runs.queued import _Position, _remote_events
from hutch.queue.events.publisher import EventPublisher
from hutch.queue.events.remote import RemoteEvents
from hutch.store.store import Store
from hutch.store.tables.queue.queued_runs import QueuedRunRow


class OneEvent:
    """Source whose past events the follower has already. One event is live."""

    def __init__(self) -> None:
        self.number = 3
        self.has_ended = False

    def past_chunks(self) -> Iterator[bytes]:
        return iter(())

    async def next(self) -> bytes | None:
        if self.has_ended:
            return None
        self.has_ended = True
        return b"live event"

    def detach(self) -> None: ...


@asynccontextmanager
async def published(store: Store) -> AsyncIterator[RemoteEvents]:
    """Publishes one live event to each follower, as the server that executes the run does."""
    publisher = EventPublisher(store.followers, lambda follower: OneEvent())

    async def opened() -> Store:
        return store

    remote = RemoteEvents(opened, publisher.wake)
    running = asyncio.create_task(publisher.run())
    try:
        yield remote
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await publisher.close()
        await remote.close()


@pytest.mark.parametrize(("started_again", "received"), [(False, [b"live event"]), (True, [])])
async def test_events_of_a_later_start_are_not_sent_with_the_numbers_of_an_earlier_start(
    store: Store, started_again: bool, received: list[bytes]
) -> None:
    """The server that executes a run dies, and another server starts the run again. It numbers the events
    from 1, so the follower has to ask again with a new offset.
    """
    row = QueuedRunRow(
        run_id="run", owner="local", kind="script", protocol="toolscript", state="running", generation=1
    )
    now = msgspec.structs.replace(row, state="queued", generation=2 if started_again else 1)

    async def find(run_id: str) -> QueuedRunRow:
        return now

    async with published(store) as remote, asyncio.timeout(TIMEOUT_SECONDS):
        queue: Any = SimpleNamespace(find=find, remote_events=remote)
        access: Any = SimpleNamespace(is_draining=False)
        events = [events.data async for events in _remote_events(row, _Position(2), queue, access)]
    assert events == received
