"""Reads the events of a run from its journal and streams them as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from hutch.errors import HutchError
from hutch.http.sse import encode_event
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.server.responses import JsonText, encode_json
from hutch.protocols.rep.server.supervisor import ORIGIN
from hutch.store.models import FlowRunHead

if TYPE_CHECKING:
    from hutch.http.auth import AccessControl
    from hutch.store.tables.journal import JournalTable

logger = logging.getLogger("hutch.rep")

MIN_POLL_SECONDS = 0.05
MAX_POLL_SECONDS = 0.5
"""Maximum poll interval. The interval grows up to this value while there are no events."""
BATCH_SIZE = 64
"""Number of events that are read at once. It is small, because events may be long and clients slow."""

NumberedEvent = tuple[int, dict[str, Any]]


async def iter_events(
    journal: JournalTable, run_id: str, *, after: int = 0, follow: bool = True, with_records: bool = False
) -> AsyncIterator[NumberedEvent]:
    """Yields events with their numbers. With `follow`, continues until the run ends or no process executes it
    any more.

    With `with_records`, also yields the records of finished steps.
    """
    batches = _iter_batches(journal, run_id, after=after, follow=follow, with_records=with_records)
    async for batch in batches:
        for entry in batch:
            yield entry


async def _iter_batches(
    journal: JournalTable,
    run_id: str,
    *,
    after: int = 0,
    follow: bool = True,
    keep_waiting: bool = False,
    with_records: bool = False,
) -> AsyncGenerator[list[NumberedEvent], None]:
    """Yields batches of events. Yields an empty batch for every poll without new events.

    With `keep_waiting`, continues even if no process executes the run, because the server will resume the
    run.
    """
    delay = MIN_POLL_SECONDS
    while True:
        # Read the run before its events. If the run has ended by now, its last events are already stored.
        run = await journal.head(run_id)
        entries = await journal.events(run_id, after, BATCH_SIZE, with_records=with_records)
        if entries:
            after = entries[-1].number
            delay = MIN_POLL_SECONDS
            yield [(entry.number, json.loads(entry.body)) for entry in entries]
            continue
        if not follow or run is None or run.is_over:
            return
        if not keep_waiting and run.status == "running" and not lease.is_held(run):
            return
        yield []
        await asyncio.sleep(delay)
        delay = min(MAX_POLL_SECONDS, delay * 1.5)


# Reconnect delay for the client, in milliseconds.
_RETRY_HINT = b"retry: 1000\n\n"


async def encoded_events(
    journal: JournalTable, run: FlowRunHead, after: int, access: AccessControl
) -> AsyncIterator[bytes]:
    """Yields the events of a run after event number `after` as server-sent events, and then the final event.

    Ends early at a shutdown or an error. The client then reconnects, to this or another server, with the
    number of its last event.
    """
    yield _RETRY_HINT
    try:
        keep_waiting = run.origin == ORIGIN
        batches = _iter_batches(journal, run.run_id, after=after, keep_waiting=keep_waiting)
        async with aclosing(batches):
            async for batch in batches:
                if batch:
                    yield b"".join(_encode(event["type"], event, number) for number, event in batch)
                if access.drain_expired.is_set() or (access.is_draining and not batch):
                    return
        yield await _final_event(journal, run)
    except HutchError as error:
        logger.error("events of run %s cannot be read: %s", run.run_id, error)


async def _final_event(journal: JournalTable, run: FlowRunHead) -> bytes:
    """Returns the final event: `end`, or `interrupted` if no process executes the run."""
    stored = await journal.get(run.run_id)
    head = stored or run
    summary = None if stored is None or stored.summary is None else JsonText(stored.summary)
    final_fields = {
        "run_id": head.run_id,
        "state": lease.run_state(head),
        "status": head.status,  # former name of `state`, until version 0.3
        "outcome": head.outcome,
        "summary": summary,
    }
    return _encode("end" if head.is_over else "interrupted", final_fields)


def _encode(name: str, value: dict[str, Any], number: int | None = None) -> bytes:
    return encode_event(name, encode_json(value).encode(), number)
