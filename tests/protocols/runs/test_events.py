"""Events of runs in progress."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.support.processes import TIMEOUT_SECONDS

from hutch.kernel.execution import Execution
from hutch.protocols.runs.catalog import FoundRun
from hutch.protocols.runs.events import LiveEvents
from hutch.protocols.runs.queued import QueuedRun, queued_events
from hutch.protocols.runs.responses import ActiveRun
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import Result, RunHandle
from hutch.store.tables.queue.queued_runs import QueuedRunRow


def active_run() -> tuple[Execution, RunHandle]:
    return Execution(code="1", profile=profile_for("quickjs")), RunHandle()


async def test_event_that_occurs_while_the_details_are_read_is_sent() -> None:
    execution, run = active_run()
    row = QueuedRunRow(run_id=run.id, owner="ann", kind="code", protocol="execbox", state="running")

    async def find() -> tuple[FoundRun, dict[str, Any]]:
        stale = ActiveRun(execution, run).detail()
        run.report_started()
        return FoundRun(active=(execution, run)), stale

    async def find_row(_: str) -> object:
        return row

    queue = cast("Any", SimpleNamespace(find=find_row))
    access = cast("Any", SimpleNamespace(is_draining=False, on_drain_expired=set()))
    sent = b""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        async for chunk in queued_events(find, QueuedRun(row).detail, 0, queue, access):
            sent += chunk
            if b"event: started" in sent and not run.outcome:
                run.end(Result(ok=True))
    kinds = [line for line in sent.decode().splitlines() if line.startswith("event:")]
    assert kinds == ["event: queued", "event: started", "event: end"]


async def test_follower_of_a_run_that_has_just_ended_gets_its_end() -> None:
    execution, run = active_run()
    run.report_started()
    run.end(Result(ok=True))
    events = LiveEvents.of_active(execution, run, 0)
    sent = b"".join(events.past_chunks()).decode()
    assert [line for line in sent.splitlines() if line.startswith("event:")][-1] == "event: end"
    assert await events.next() is None
