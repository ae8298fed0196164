"""The journal of a run in this process: what is in it, who holds it, and when it cannot be written."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.doors.rep.boards import Board, NoRooms
from tests.flows import chain, edge, flow, node
from tests.processes import PATIENCE, until
from tests.waiting import eventually

from hutch.doors.rep import holders, journal
from hutch.doors.rep.context import Approvals, Context
from hutch.doors.rep.flow import read
from hutch.doors.rep.journal import StoreJournals
from hutch.doors.rep.kinds.registry import Call, Kind, Registry
from hutch.doors.rep.runs import Run
from hutch.settings import Settings
from hutch.store.rows import FlowRunRow, now
from hutch.store.store import Store


class Journaled:
    """Runs of steps that a test holds up, written down."""

    def __init__(self, settings: Settings) -> None:
        self.board = Board()
        self.journals = StoreJournals(lambda: settings)

    def run(self, document: dict[str, Any], run_id: str = "r", **options: Any) -> Run:
        context = Context(run_id=run_id, rooms=NoRooms(), approvals=Approvals())
        return Run(
            read(document),
            {},
            self.board.registry,
            context,
            concurrency=64,
            journals=self.journals,
            options=options,
        )

    async def ended(self, run: Run) -> dict[str, Any]:
        await eventually(lambda: run.is_over)
        return run.poll()


@pytest.fixture
async def journaled(store_settings: Settings) -> Any:
    one = Journaled(store_settings)
    yield one
    await one.journals.close()


async def test_journal_has_results_events_and_the_end(journaled: Journaled, store: Store) -> None:
    nodes = [node("a", "echo", value=1), node("b", "fail"), node("c", "echo", value="$step.b.error.code")]
    run = journaled.run(flow(nodes, [edge("a", "b"), edge("b", "c", "failure")]), concurrency=2, user=None)
    polled = await journaled.ended(run)
    steps = dict(await store.journal.steps("r"))
    assert json.loads(steps["a"]) == {"state": "succeeded", "output": 1, "error": None, "attempts": 1}
    assert json.loads(steps["b"])["error"]["code"] == 2001
    events = await store.journal.events("r")
    assert [json.loads(each.body) for each in events] == polled["events"]
    found = await store.journal.get("r")
    assert found is not None
    assert (found.status, found.outcome, found.owner, found.origin) == ("completed", "ok", "local", "cli")
    assert json.loads(found.summary or "") == polled["summary"]
    assert json.loads(found.options) == {"concurrency": 2, "user": None}
    record = await store.runs.get("r")
    assert record is not None
    assert (record.door, record.label, record.outcome, record.started_at) == (
        "rep",
        "tested",
        "ok",
        found.started_at,
    )
    assert json.loads(record.details)["failed_steps"] == 1


async def test_steps_that_end_together_wait_for_the_disk_together(
    journaled: Journaled, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hutch.store.journal import Journal

    sizes: list[int] = []
    write = Journal.write

    async def counted(self: Journal, run_id: str, holder: str, entries: Any) -> bool:
        sizes.append(sum(each.step is not None for each in entries))
        return await write(self, run_id, holder, entries)

    monkeypatch.setattr(Journal, "write", counted)
    ids = [f"s{number}" for number in range(60)]
    nodes = [*(node(id, "hold") for id in ids), node("end", "echo")]
    run = journaled.run(flow(nodes, [edge(id, "end") for id in ids]))
    await journaled.board.until_running(*ids)
    for id in ids:
        journaled.board.gate(id).set()
    assert (await journaled.ended(run))["status"] == "completed"
    assert sum(sizes) == 61
    assert len([size for size in sizes if size]) < 20
    assert len(await store.journal.steps("r")) == 61


async def test_whoever_lost_a_run_to_another_stops_and_writes_no_more(
    journaled: Journaled, store: Store
) -> None:
    run = journaled.run(flow([node("a", "hold"), node("b", "echo")], chain("a", "b")))
    await journaled.board.until_running("a")
    found = await store.journal.head("r")
    assert found is not None
    assert await store.journal.claim(found, "somebody else", now())
    journaled.board.gate("a").set()
    ended = await journaled.ended(run)
    assert ended["summary"]["error"]["code"] == 3002
    assert "taken over" in ended["summary"]["error"]["message"]
    assert journaled.board.attempts == {"a": 1}
    taken = await store.journal.head("r")
    assert taken is not None
    assert (taken.status, taken.holder) == ("running", "somebody else")
    assert await store.journal.steps("r") == []


async def test_holder_says_that_it_is_there_and_stops_when_it_is_not_wanted_any_more(
    journaled: Journaled, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holders, "BEAT_SECONDS", 0.0)
    monkeypatch.setattr(journal, "ASKED_SECONDS", 0.01)
    run = journaled.run(flow([node("a", "hold")]))
    await journaled.board.until_running("a")
    first = await store.journal.head("r")
    assert first is not None
    async with asyncio.timeout(PATIENCE):
        while (seen := await store.journal.head("r")) is None or seen.seen_at == first.seen_at:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # nobody is told of it
    await store.journal.claim(seen, "somebody else", now())
    assert (await journaled.ended(run))["summary"]["cancelled"] is True
    assert journaled.board.cancelled == ["a"]


async def test_others_can_cancel_and_approve_through_the_store(
    journaled: Journaled, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "ASKED_SECONDS", 0.01)
    nodes = [node("ask", "approve", message="Really?"), node("a", "hold")]
    run = journaled.run(flow(nodes, chain("ask", "a")))
    await eventually(run.context.approvals.waiting)
    for step in ("nobody", "ask"):
        request = {"type": "approve", "step_id": step, "approved": True, "by": "Bo"}
        await store.journal.ask("r", json.dumps(request), now())
    await journaled.board.until_running("a")
    approved = [each for each in run.poll()["events"] if each["type"] == "approved"]
    assert [(each["step_id"], each["approved"], each["by"]) for each in approved] == [("ask", True, "Bo")]
    await store.journal.ask("r", '{"type":"cancel"}', now())
    assert (await journaled.ended(run))["summary"]["cancelled"] is True


async def test_logs_of_a_run_are_kept_up_to_a_limit(
    journaled: Journaled, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_LOG_BYTES", 1_000)
    nodes = [node("a", "fail", retries=50, times=50)]
    assert (await journaled.ended(journaled.run(flow(nodes))))["status"] == "completed"
    events = [json.loads(each.body) for each in await store.journal.events("r")]
    logs = [each["message"] for each in events if each["type"] == "log"]
    assert len(logs) < 12
    assert logs[-1] == "logs from here on are not kept: there are too many"
    assert events[-1]["state"] == "succeeded"


async def test_event_of_a_kind_of_its_own_is_kept_whatever_it_is_called(
    journaled: Journaled, store: Store
) -> None:
    async def odd(call: Call) -> None:
        call.emit("odd \0 \ud800", value="é")

    journaled.board.registry = Registry({"odd": Kind("odd", odd)}, {})
    ended = await journaled.ended(journaled.run(flow([node("a", "odd")])))
    assert ended["status"] == "completed"
    events = [json.loads(each.body) for each in await store.journal.events("r")]
    assert [(each["type"], each["value"]) for each in events if "value" in each] == [("odd \0 \ud800", "é")]


async def test_fault_of_the_store_ends_the_run_and_it_can_be_gone_on_with(
    journaled: Journaled, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hutch.errors import StoreError
    from hutch.store.journal import Journal

    async def broken(*_: object) -> bool:
        raise StoreError("The disk is full.")

    document = flow([node("a", "hold"), node("b", "echo")], chain("a", "b"))
    run = journaled.run(document)
    await journaled.board.until_running("a")
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "write", broken)
        journaled.board.gate("a").set()
        ended = await journaled.ended(run)
    assert (ended["status"], ended["summary"]["error"]["code"]) == ("failed", 3002)
    assert "The disk is full." in ended["summary"]["error"]["message"]
    found = await store.journal.head("r")
    assert found is not None
    assert found.status == "running"


# --- holders ---


def test_holder_of_this_machine_is_looked_for_and_others_are_believed_for_a_while() -> None:
    def held(holder: str, seconds_ago: float = 0.0, **more: Any) -> bool:
        values: dict[str, Any] = {"run_id": "r", "owner": "o", "flow": "f", "origin": "cli"}
        values |= {"created_at": now(), "document": "{}", "status": "running", **more}
        return holders.is_held(FlowRunRow(**values, holder=holder, seen_at=now(plus_seconds=-seconds_ago)))

    me = holders.here()
    boot, _, process = me.partition(" ")
    namespace, pid, start = process.split("-")
    assert held(me, 10_000)
    assert not held(f"{boot} {namespace}-{pid}-{int(start) + 1}")
    assert not held("")
    assert not held(me, status="completed", ended_at=now())
    for elsewhere in (f"other {process}", f"{boot} 1-{pid}-{start}"):
        assert held(elsewhere, 30)
        assert not held(elsewhere, 100)


def test_process_that_was_killed_is_known_to_be_gone_at_once() -> None:
    code = "from hutch.doors.rep import holders; print(holders.here(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        holder = one.stdout.readline().strip()
        row = FlowRunRow(
            run_id="r", owner="o", flow="f", origin="cli", created_at=now(), document="{}", holder=holder
        )
        assert holders.is_held(row)
        one.kill()
        one.wait(PATIENCE)
    until(lambda: not holders.is_held(row))
