"""A run's events out of its journal: those that are there, and then as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Any

from hutch.doors.rep import holders

if TYPE_CHECKING:
    from hutch.store.journal import Journal

SHORTEST_SECONDS = 0.05
LONGEST_SECONDS = 0.5
"""How often we look: more seldom the longer nothing happens."""
AT_ONCE = 64
"""Events in a piece: each may be long, and whoever asked may never read it."""

Numbered = tuple[int, dict[str, Any]]


async def tail(
    journal: Journal, run_id: str, *, after: int = 0, follow: bool = True
) -> AsyncIterator[Numbered]:
    """Each with its number. With `follow`, until the run is over or there is nobody who runs it."""
    async for batch in batches(journal, run_id, after=after, follow=follow):
        for each in batch:
            yield each


async def batches(
    journal: Journal, run_id: str, *, after: int = 0, follow: bool = True, waits: bool = False
) -> AsyncGenerator[list[Numbered], None]:
    """The same in pieces, with an empty one for every look that found nothing.

    `waits`: somebody will go on with a run that nobody runs at the moment.
    """
    pause = SHORTEST_SECONDS
    while True:
        # Before its events are read: those of a run that is over are all there.
        run = await journal.head(run_id)
        found = await journal.events(run_id, after, AT_ONCE)
        if found:
            after = found[-1].number
            pause = SHORTEST_SECONDS
            yield [(each.number, json.loads(each.body)) for each in found]
            continue
        if not follow or run is None or run.is_over:
            return
        if not waits and run.status == "running" and not holders.is_held(run):
            return
        yield []
        await asyncio.sleep(pause)
        pause = min(LONGEST_SECONDS, pause * 1.5)
