"""The journal of a run in this process: its entries, its lease and write errors."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from tests.protocols.rep.flow_harness import FlowHarness, NoServices
from tests.support.flows import chain, edge, flow, node
from tests.support.processes import TIMEOUT_SECONDS, wait_until
from tests.support.waiting import eventually

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.kinds.registry import Call, Kind, Registry
from hutch.protocols.rep.runtime import journal, lease
from hutch.protocols.rep.runtime.context import PendingApprovals, RunContext
from hutch.protocols.rep.runtime.journal import StoreJournals
from hutch.protocols.rep.runtime.run import RuntimeRun
from hutch.settings import Settings
from hutch.store.models import FlowRunRow, now
from hutch.store.store import Store


class JournalHarness:
    """Runs flows with a journal and a FlowHarness."""

    def __init__(self, settings: Settings) -> None:
        self.harness = FlowHarness()
        self.journals = StoreJournals(lambda: settings)

    def run(self, document: dict[str, Any], run_id: str = "r", **options: Any) -> RuntimeRun:
        context = RunContext(run_id=run_id, services=NoServices(), approvals=PendingApprovals())
        return RuntimeRun(
            parse_flow(document),
            {},
            self.harness.registry,
            context,
            concurrency=64,
            journals=self.journals,
            options=options,
        )

    async def ended(self, run: RuntimeRun) -> dict[str, Any]:
        await eventually(lambda: run.is_over)
        return run.poll()


@pytest.fixture
async def runner(store_settings: Settings) -> Any:
    child = JournalHarness(store_settings)
    yield child
    await child.journals.close()


async def test_journal_contains_results_events_and_the_end(runner: JournalHarness, store: Store) -> None:
    nodes = [node("a", "echo", value=1), node("b", "fail"), node("c", "echo", value="$step.b.error.code")]
    run = runner.run(flow(nodes, [edge("a", "b"), edge("b", "c", "failure")]), concurrency=2, user=None)
    polled = await runner.ended(run)
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
    assert (record.protocol, record.label, record.outcome, record.created_at) == (
        "rep",
        "tested",
        "ok",
        found.created_at,
    )
    assert json.loads(record.details)["failed_steps"] == 1


async def test_inputs_and_outputs_of_steps_are_recorded_encrypted(
    runner: JournalHarness, store: Store
) -> None:
    nodes = [
        node("a", "echo", value="findable", password="hunter2-hunter2"),
        node("b", "fail", retriable=False, from_a="$step.a"),
    ]
    await runner.ended(runner.run(flow(nodes, chain("a", "b"))))
    a, b = [json.loads(each.body) for each in await store.journal.records("r")]
    assert (a["step_id"], a["kind"], a["state"], a["attempt"], a["output"]) == (
        *("a", "echo", "succeeded", 0),
        "findable",
    )
    assert a["input"] == {"value": "findable", "password": "[redacted]"}
    assert (b["state"], b["input"]["from_a"], b["error"]["message"]) == (
        *("failed", "findable"),
        "failed on request",
    )
    assert await store.journal.count_records("r") == 2
    assert [json.loads(each.body)["step_id"] for each in await store.journal.records("r", offset=1)] == ["b"]
    # Entries of the kind "record" are stored beside the events, but are neither polled nor streamed.
    assert "record" not in {each.kind for each in await store.journal.events("r")}
    records = [each for each in await store.journal.events("r", with_records=True) if each.kind == "record"]
    # Records have no subject, because each subject would need another index entry.
    assert [each.subject for each in records] == [None, None]
    rows = await store._database.scan("SELECT body FROM flow_journal WHERE run_id = :run_id", run_id="r")
    assert len(rows) > 4
    assert not [body for (body,) in rows if "findable" in body]


async def test_results_of_concurrent_steps_share_transactions(
    runner: JournalHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hutch.store.tables.journal import JournalTable

    sizes: list[int] = []
    write = JournalTable.write

    async def counting_write(self: JournalTable, run_id: str, holder: str, entries: Any) -> bool:
        sizes.append(sum(each.step is not None for each in entries))
        return await write(self, run_id, holder, entries)

    monkeypatch.setattr(JournalTable, "write", counting_write)
    ids = [f"s{number}" for number in range(60)]
    nodes = [*(node(id, "hold") for id in ids), node("end", "echo")]
    run = runner.run(flow(nodes, [edge(id, "end") for id in ids]))
    await runner.harness.until_running(*ids)
    for id in ids:
        runner.harness.release_event(id).set()
    assert (await runner.ended(run))["status"] == "completed"
    assert sum(sizes) == 61
    assert len([size for size in sizes if size]) < 20
    assert len(await store.journal.steps("r")) == 61


async def test_event_that_comes_during_a_write_is_stored_soon(
    runner: JournalHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hutch.store.tables.journal import JournalTable

    written: list[str] = []
    is_writing, may_end = asyncio.Event(), asyncio.Event()
    write = JournalTable.write

    async def slow_write(self: JournalTable, run_id: str, holder: str, entries: Any) -> bool:
        is_writing.set()
        await may_end.wait()
        written.extend(entry.kind for entry in entries)
        return await write(self, run_id, holder, entries)

    monkeypatch.setattr(JournalTable, "write", slow_write)
    run = runner.run(
        flow([node("first", "hold"), node("ask", "approve", message="?")], chain("first", "ask"))
    )
    await is_writing.wait()
    run._emit("approval", step_id="first", message="?")
    may_end.set()
    await eventually(lambda: "approval" in written)
    await run.stop()


async def test_run_taken_over_by_another_process_stops_writing(runner: JournalHarness, store: Store) -> None:
    run = runner.run(flow([node("a", "hold"), node("b", "echo")], chain("a", "b")))
    await runner.harness.until_running("a")
    found = await store.journal.head("r")
    assert found is not None
    assert await store.journal.claim(found, "another process", now())
    runner.harness.release_event("a").set()
    ended = await runner.ended(run)
    assert ended["summary"]["error"]["code"] == 3002
    assert "taken over" in ended["summary"]["error"]["message"]
    assert runner.harness.attempts == {"a": 1}
    taken = await store.journal.head("r")
    assert taken is not None
    assert (taken.status, taken.holder) == ("running", "another process")
    assert await store.journal.steps("r") == []


async def test_holder_renews_its_lease_and_stops_when_it_loses_it(
    runner: JournalHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(journal, "REQUEST_POLL_SECONDS", 0.01)
    run = runner.run(flow([node("a", "hold")]))
    await runner.harness.until_running("a")
    first = await store.journal.head("r")
    assert first is not None
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while (seen := await store.journal.head("r")) is None or seen.seen_at == first.seen_at:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # there is no event to wait for
    await store.journal.claim(seen, "another process", now())
    assert (await runner.ended(run))["summary"]["cancelled"] is True
    assert runner.harness.cancelled == ["a"]


async def test_other_processes_can_cancel_and_approve_through_the_store(
    runner: JournalHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "REQUEST_POLL_SECONDS", 0.01)
    nodes = [node("ask", "approve", message="Really?"), node("a", "hold")]
    run = runner.run(flow(nodes, chain("ask", "a")))
    await eventually(run.context.approvals.step_ids)
    for step in ("other", "ask"):
        request = {"type": "approve", "step_id": step, "approved": True, "by": "Bo"}
        await store.journal.add_request("r", json.dumps(request), now())
    await runner.harness.until_running("a")
    approved = [each for each in run.poll()["events"] if each["type"] == "approved"]
    assert [(each["step_id"], each["approved"], each["by"]) for each in approved] == [("ask", True, "Bo")]
    await store.journal.add_request("r", '{"type":"cancel"}', now())
    assert (await runner.ended(run))["summary"]["cancelled"] is True


async def test_stored_logs_are_limited(
    runner: JournalHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_LOG_BYTES", 1_000)
    nodes = [node("a", "fail", retries=50, times=50)]
    assert (await runner.ended(runner.run(flow(nodes))))["status"] == "completed"
    events = [json.loads(each.body) for each in await store.journal.events("r")]
    logs = [each["message"] for each in events if each["type"] == "log"]
    assert len(logs) < 12
    assert logs[-1] == "further logs are not stored: there are too many"
    assert events[-1]["state"] == "succeeded"


async def test_event_of_any_type_name_is_stored(runner: JournalHarness, store: Store) -> None:
    async def odd(call: Call) -> None:
        call.emit("odd \0 \ud800", value="é")

    runner.harness.registry = Registry({"odd": Kind("odd", odd)}, {})
    ended = await runner.ended(runner.run(flow([node("a", "odd")])))
    assert ended["status"] == "completed"
    events = [json.loads(each.body) for each in await store.journal.events("r")]
    assert [(each["type"], each["value"]) for each in events if "value" in each] == [("odd \0 \ud800", "é")]


async def test_store_error_ends_the_run_but_it_can_be_resumed(
    runner: JournalHarness, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hutch.errors import StoreError
    from hutch.store.tables.journal import JournalTable

    async def broken(*_: object) -> bool:
        raise StoreError("The disk is full.")

    document = flow([node("a", "hold"), node("b", "echo")], chain("a", "b"))
    run = runner.run(document)
    await runner.harness.until_running("a")
    with monkeypatch.context() as patch:
        patch.setattr(JournalTable, "write", broken)
        runner.harness.release_event("a").set()
        ended = await runner.ended(run)
    assert (ended["status"], ended["summary"]["error"]["code"]) == ("failed", 3002)
    assert "The disk is full." in ended["summary"]["error"]["message"]
    found = await store.journal.head("r")
    assert found is not None
    assert found.status == "running"


# --- leases ---


def test_local_holder_is_looked_up_and_remote_holder_times_out() -> None:
    def held(holder: str, seconds_ago: float = 0.0, **more: Any) -> bool:
        values: dict[str, Any] = {"run_id": "r", "owner": "o", "flow": "f", "origin": "cli"}
        values |= {"created_at": now(), "document": "{}", "status": "running", **more}
        return lease.is_held(FlowRunRow(**values, holder=holder, seen_at=now(plus_seconds=-seconds_ago)))

    this_holder = lease.this_holder()
    boot, _, process = this_holder.partition(" ")
    namespace, pid, start = process.split("-")
    assert held(this_holder, 10_000)
    assert not held(f"{boot} {namespace}-{pid}-{int(start) + 1}")
    assert not held("")
    assert not held(this_holder, status="completed", ended_at=now())
    for elsewhere in (f"other {process}", f"{boot} 1-{pid}-{start}"):
        assert held(elsewhere, 30)
        assert not held(elsewhere, 100)


def test_killed_holder_is_detected_at_once() -> None:
    code = "from hutch.protocols.rep.runtime import lease; print(lease.this_holder(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        holder = child.stdout.readline().strip()
        row = FlowRunRow(
            run_id="r", owner="o", flow="f", origin="cli", created_at=now(), document="{}", holder=holder
        )
        assert lease.is_held(row)
        child.kill()
        child.wait(TIMEOUT_SECONDS)
    wait_until(lambda: not lease.is_held(row))
