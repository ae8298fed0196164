"""A run's events as a stream: resumption, the end, shutdown and errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.protocols.rep.flow_server import parse_events
from tests.store.factories import make_flow_run, make_run
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import StoreError
from hutch.http.auth import AccessControl
from hutch.protocols.rep.server.events import encoded_events
from hutch.settings import Settings
from hutch.store.models import FlowRunRow, now
from hutch.store.store import Store
from hutch.store.tables.journal import JournalEntry


async def running(store: Store, events: int) -> FlowRunRow:
    """Stores a run with this many events, as if this process executed the run. Returns the run's row."""
    row = make_flow_run()
    await store.journal.add(row)
    claimed = await store.journal.claim(row, "me", now())
    assert claimed is not None
    entries = [
        JournalEntry(number, json.dumps({"type": "log", "n": number})) for number in range(1, events + 1)
    ]
    assert await store.journal.write(row.run_id, "me", entries)
    return claimed


async def read_all(stream: AsyncIterator[bytes]) -> list[tuple[str | None, str, Any]]:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        text = b"".join([chunk async for chunk in stream]).decode()
    assert text.startswith("retry: 1000\n\n")
    return parse_events(text)


async def test_stream_continues_after_a_number_and_ends_with_the_run(store: Store) -> None:
    run = await running(store, 100)
    record = make_run(run.owner, run_id=run.run_id, protocol="rep", engine="flow")
    assert await store.journal.finish(run, record, '{"completed_steps": 1}', now())
    events = await read_all(encoded_events(store.journal, run, 97, AccessControl(Settings())))
    assert [(id, name) for id, name, _ in events] == [
        ("98", "log"),
        ("99", "log"),
        ("100", "log"),
        (None, "end"),
    ]
    assert events[-1][2]["summary"] == {"completed_steps": 1}


async def test_drain_ends_the_stream_of_a_running_run_after_its_events(store: Store) -> None:
    run = await running(store, 3)
    access = AccessControl(Settings())
    stream = encoded_events(store.journal, run, 0, access)
    reading = asyncio.create_task(read_all(stream))
    await asyncio.sleep(0)
    assert await access.drain(0) is True
    assert [id for id, _, _ in await reading] == ["1", "2", "3"]


async def test_expired_drain_ends_a_stream_that_always_has_events(store: Store) -> None:
    run = await running(store, 200)
    access = AccessControl(Settings())
    stream = encoded_events(store.journal, run, 0, access)
    assert await anext(stream) == b"retry: 1000\n\n"
    with access.track_request():
        assert await access.drain(0) is False
    rest = [chunk async for chunk in stream]
    assert len(rest) == 1


async def test_store_error_ends_the_stream_and_is_logged(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = await running(store, 1)

    async def fail(*_: Any, **__: Any) -> Any:
        raise StoreError("the disk is full")

    monkeypatch.setattr(store.journal, "events", fail)
    assert await read_all(encoded_events(store.journal, run, 0, AccessControl(Settings()))) == []
    assert "the disk is full" in caplog.text
