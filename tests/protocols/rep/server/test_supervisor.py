"""Supervision of runs in this process, with short intervals: parked runs, tampered runs, lost runtimes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.protocols.rep.flow_server import runtime_pids
from tests.store.factories import make_flow_run
from tests.support.flows import chain, flow, node
from tests.support.network.counting import CountingApi
from tests.support.processes import TIMEOUT_SECONDS, wait_until

from hutch.errors import Busy
from hutch.protocols.rep.orchestrator.options import RunOutcome
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.runtime.context import ApprovalDecision
from hutch.protocols.rep.server import supervisor as server_supervisor
from hutch.protocols.rep.server.supervised_run import SupervisedRun
from hutch.protocols.rep.server.supervisor import ORIGIN, FlowSupervisor, NotWaiting
from hutch.settings import Settings
from hutch.store.backends.base import SqlStatement
from hutch.store.models import FlowRunRow, now
from hutch.store.store import Store
from hutch.store.tables.journal import JournalEntry
from hutch.vault.flow_keys import open_store


class SupervisorHarness:
    """The supervisor of flow runs alone, without an HTTP server."""

    def __init__(self, supervisor: FlowSupervisor, store: Store) -> None:
        self.supervisor = supervisor
        self.store = store

    async def start_run(self, ir: dict[str, Any], run_id: str = "r", **options: Any) -> FlowRunRow:
        row = FlowRunRow(
            run_id=run_id,
            owner="local",
            flow=ir["flow"]["name"],
            origin=ORIGIN,
            created_at=now(),
            document=json.dumps(ir),
            options=json.dumps(options),
        )
        return await self.supervisor.start_run(row)

    async def head(self, run_id: str = "r") -> FlowRunRow:
        found = await self.store.journal.get(run_id)
        assert found is not None
        return found

    async def is_parked(self) -> bool:
        """Returns True if the run is parked: its steps ask for approvals, and no process executes the run."""
        run = await self.head()
        return not lease.is_held(run) and bool(await self.supervisor.questions(run))

    async def wait_until(self, condition: Any) -> None:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while not await condition():  # noqa: ASYNC110 - the store has no notification
                await asyncio.sleep(0.01)

    async def ended(self, run_id: str = "r") -> FlowRunRow:
        async def is_over() -> bool:
            return (await self.head(run_id)).is_over

        await self.wait_until(is_over)
        return await self.head(run_id)


@pytest.fixture
async def harness(
    store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SupervisorHarness]:
    monkeypatch.setattr(server_supervisor, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(server_supervisor, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(server_supervisor, "PARK_SECONDS", 0.2)
    async with await open_store(store_settings) as store:

        async def existing_store() -> Store:
            return store

        supervisor = FlowSupervisor(
            msgspec.structs.replace(store_settings, max_flows=1, max_queue=3), existing_store
        )
        supervisor.start()
        try:
            yield SupervisorHarness(supervisor, store)
        finally:
            await supervisor.close()


# The supervisor uses databases only through the store, and the tests of the store run on SQLite and
# PostgreSQL. So most tests here run only on SQLite. The tests of parked runs and lost runtimes run on both
# databases.
on_sqlite = pytest.mark.parametrize("store_settings", ["sqlite"], indirect=True)

ASKS = flow(
    [node("a", "approve", message="A?"), node("b", "approve", message="B?"), node("e", "finish", outputs=1)],
    [*chain("a", "e"), *chain("b", "e")],
)


async def test_run_that_only_waits_is_parked_and_resumed_by_the_approval(
    harness: SupervisorHarness,
) -> None:
    run = await harness.start_run(ASKS)

    await harness.wait_until(harness.is_parked)
    assert [each["step_id"] for each in await harness.supervisor.questions(run)] == ["a", "b"]
    # The parked run has freed the only slot. So another run can start.
    await harness.start_run(flow([node("w", "wait", seconds=0)]), "other")
    assert (await harness.ended("other")).status == "completed"
    await asyncio.to_thread(wait_until, lambda: not runtime_pids(os.getpid()))
    # The runtime has ended, and the steps still wait.
    assert await harness.store.journal.waiting_steps(["r"]) == {"r": ["a", "b"]}
    with pytest.raises(NotWaiting):
        await harness.supervisor.approve(await harness.head(), "e", ApprovalDecision(True))
    await harness.supervisor.approve(await harness.head(), "b", ApprovalDecision(True, by="Bo"))

    async def has_b() -> bool:
        return "b" in dict(await harness.store.journal.steps("r"))

    await harness.wait_until(has_b)
    await harness.wait_until(harness.is_parked)
    assert [each["step_id"] for each in await harness.supervisor.questions(run)] == ["a"]
    await harness.supervisor.approve(await harness.head(), "a", ApprovalDecision(True))
    assert (await harness.ended()).status == "completed"
    result = json.loads(dict(await harness.store.journal.steps("r"))["b"])
    assert result["output"] == {"approved": True, "by": "Bo"}


async def test_run_resumed_while_its_supervision_ends_is_supervised_again_without_a_sweep(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def existing_store() -> Store:
        return store

    seen: list[str] = []
    may_end, resumed = asyncio.Event(), asyncio.Event()

    async def run_to_end(run_id: str, _: SupervisedRun) -> None:
        seen.append(run_id)
        if len(seen) == 1:
            await may_end.wait()
        else:
            resumed.set()

    # This supervisor is not started, so that it does not look for runs by itself.
    supervisor = FlowSupervisor(store_settings, existing_store)
    monkeypatch.setattr(supervisor, "_run_to_end", run_to_end)
    await SupervisorHarness(supervisor, store).start_run(flow([node("w", "wait", seconds=0)]))
    sql = "UPDATE flow_runs SET status = 'failed', ended_at = created_at, holder = ''"
    await store._database.write(SqlStatement(sql, {}))
    failed = await store.journal.head("r")
    assert failed is not None
    await supervisor.resume(failed)
    may_end.set()
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await resumed.wait()
    assert seen == ["r", "r"]
    await supervisor.close()


@on_sqlite
async def test_run_resumed_before_its_orchestrator_returns_keeps_no_old_outcome(
    harness: SupervisorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_return = asyncio.Event()

    class SlowOrchestrator(server_supervisor.Orchestrator):
        async def run(self) -> RunOutcome:
            outcome = await super().run()
            await may_return.wait()
            return outcome

    with CountingApi() as upstream:
        upstream.fail("/breaks", 1)
        monkeypatch.setattr(server_supervisor, "Orchestrator", SlowOrchestrator)
        nodes = [node("breaks", "http.get", **upstream.step("breaks"))]
        await harness.start_run(flow(nodes), egress_allow=[upstream.address])
        failed = await harness.ended()
        assert failed.status == "failed"
        await harness.supervisor.resume(failed)
        may_return.set()
        assert (await harness.ended()).status == "completed"


@on_sqlite
async def test_tampered_run_is_logged_once_and_left_unchanged(
    harness: SupervisorHarness, caplog: pytest.LogCaptureFixture
) -> None:
    row = make_flow_run(run_id="bad", origin=ORIGIN, holder=lease.this_holder())
    assert await harness.store.journal.add(row)
    sql = "UPDATE flow_runs SET holder = '', inputs = options WHERE run_id = 'bad'"
    await harness.store._database.write(SqlStatement(sql, {}))

    async def is_logged() -> bool:
        return "run bad cannot be resumed: The encrypted text was altered" in caplog.text

    await harness.wait_until(is_logged)
    await harness.start_run(flow([node("w", "wait", seconds=0.3)]))
    assert (await harness.ended()).status == "completed"
    assert caplog.text.count("run bad cannot be resumed") == 1
    head = await harness.store.journal.head("bad")
    assert head is not None
    assert (head.status, head.holder) == ("pending", "")


async def execute_sql(harness: SupervisorHarness, sql: str, **values: Any) -> None:
    await harness.store._database.write(SqlStatement(sql, values))


def count_failures(caplog: pytest.LogCaptureFixture, run_id: str = "r") -> int:
    """Counts the log messages that say that the run cannot be resumed."""
    return caplog.text.count(f"run {run_id} cannot be resumed")


async def store_tampered_run(harness: SupervisorHarness, caplog: pytest.LogCaptureFixture) -> str:
    """Stores a run whose inputs cannot be decrypted, and waits until the log reports it. Returns the original
    inputs.
    """
    row = msgspec.structs.replace(a_row(flow([node("w", "wait", seconds=0)])), holder=lease.this_holder())
    assert await harness.store.journal.add(row)
    inputs = await harness.store._database.read("SELECT inputs FROM flow_runs")
    await execute_sql(harness, "UPDATE flow_runs SET holder = '', inputs = options")

    async def is_logged() -> bool:
        return count_failures(caplog) > 0

    await harness.wait_until(is_logged)
    return str(inputs[0][0])


@on_sqlite
async def test_run_with_tampered_journal_is_logged_once_and_left_unchanged(
    harness: SupervisorHarness, caplog: pytest.LogCaptureFixture
) -> None:
    row = msgspec.structs.replace(a_row(ASKS), holder=lease.this_holder())
    assert await harness.store.journal.add(row)
    result = JournalEntry(1, '{"state":"succeeded","output":1}', "a", "succeeded")
    assert await harness.store.journal.write("r", row.holder, [result])
    await execute_sql(harness, "UPDATE flow_journal SET step = 'b'")
    await execute_sql(harness, "UPDATE flow_runs SET holder = ''")

    async def is_logged() -> bool:
        return count_failures(caplog) > 0 or (await harness.head()).is_over

    await harness.wait_until(is_logged)
    assert "cannot be resumed: The runtime failed: The encrypted text was altered" in caplog.text
    await harness.start_run(flow([node("w", "wait", seconds=0.3)]), "other")
    assert (await harness.ended("other")).status == "completed"
    assert count_failures(caplog) == 1
    head = await harness.head()
    assert (head.is_over, head.holder, head.claims) == (False, "", 0)


@on_sqlite
async def test_tampered_run_can_be_cancelled_and_is_pruned(
    harness: SupervisorHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await store_tampered_run(harness, caplog)
    await harness.supervisor.cancel("r")
    head = await harness.store.journal.head("r")
    assert head is not None
    assert (head.is_over, head.outcome) == (True, "cancelled")
    assert await harness.store.journal.prune(now(plus_seconds=60)) == 1


@on_sqlite
async def test_run_is_resumed_once_it_can_be_decrypted_again(
    harness: SupervisorHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_supervisor, "UNREADABLE_SECONDS", 0.3)
    inputs = await store_tampered_run(harness, caplog)
    await execute_sql(harness, "UPDATE flow_runs SET inputs = :inputs", inputs=inputs)
    assert (await harness.ended()).status == "completed"


@on_sqlite
async def test_approval_of_a_tampered_run_starts_one_attempt(
    harness: SupervisorHarness, caplog: pytest.LogCaptureFixture
) -> None:
    run = await harness.start_run(ASKS)

    async def is_logged() -> bool:
        return count_failures(caplog) > 0

    await harness.wait_until(harness.is_parked)
    await execute_sql(harness, "UPDATE flow_runs SET inputs = options")
    await harness.supervisor.approve(run, "a", ApprovalDecision(True))
    await harness.wait_until(is_logged)
    await harness.start_run(flow([node("w", "wait", seconds=0)]), "other")
    assert (await harness.ended("other")).status == "completed"
    assert count_failures(caplog) == 1


@on_sqlite
async def test_parked_run_can_be_cancelled(harness: SupervisorHarness) -> None:
    await harness.start_run(ASKS)

    await harness.wait_until(harness.is_parked)
    await harness.supervisor.cancel("r")
    assert (await harness.ended()).outcome == "cancelled"
    assert not await harness.is_parked()


@on_sqlite
async def test_run_with_a_timeout_is_never_parked(harness: SupervisorHarness) -> None:
    await harness.start_run(flow([node("a", "approve", timeout_ms=1_500, message="A?")]))
    ended = await harness.ended()
    assert json.loads(ended.summary or "")["error"]["data"]["cause"] == "Timeout"
    assert ended.claims == 1


async def test_run_fails_after_too_many_lost_runtimes(harness: SupervisorHarness) -> None:
    dying = ("python3", "-c", "import sys; sys.stdin.readline(); sys.exit(7)")
    harness.supervisor._choice = msgspec.structs.replace(harness.supervisor._choice, command=dying)
    await harness.start_run(flow([node("w", "wait", seconds=0)]))
    ended = await harness.ended()
    summary = json.loads(ended.summary or "")
    assert (ended.outcome, summary["error"]["code"]) == ("runtime_failed", 3001)
    assert "lost 5 times without progress" in summary["error"]["message"]


@on_sqlite
async def test_finished_items_are_progress_of_a_run_that_loses_its_runtimes(
    harness: SupervisorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_counts: list[int] = []
    done = asyncio.Event()

    async def lose_after_an_item(
        self: FlowSupervisor, run_id: str, supervised: SupervisedRun, lost: int
    ) -> bool:
        lost_counts.append(lost)
        number = len(lost_counts)
        if number == 1:
            assert await harness.store.journal.claim(await harness.head(), lease.this_holder(), now())
        entry = JournalEntry(number, "{}", f"each/{number}", "succeeded")
        assert await harness.store.journal.write(run_id, lease.this_holder(), [entry])
        if number == 4:
            done.set()
        return number < 4

    monkeypatch.setattr(FlowSupervisor, "_run_once", lose_after_an_item)
    await harness.start_run(flow([node("w", "wait", seconds=0)]))
    async with asyncio.timeout(TIMEOUT_SECONDS):
        await done.wait()
    assert lost_counts == [0, 1, 1, 1]


async def test_lost_runtimes_are_counted_across_servers(
    harness: SupervisorHarness,
) -> None:
    await harness.supervisor.close()
    row = a_row(ASKS)
    await harness.store.journal.add(row)
    for _ in range(server_supervisor.MAX_LOST_RUNTIMES):
        seen = await harness.head()
        assert await harness.store.journal.claim(seen, "a dead process", now(plus_seconds=-1_000))

    async def existing_store() -> Store:
        return harness.store

    resumed = FlowSupervisor(harness.supervisor.settings, existing_store)
    resumed.start()
    try:
        assert (await harness.ended()).outcome == "runtime_failed"
    finally:
        await resumed.close()


def a_row(ir: dict[str, Any]) -> FlowRunRow:
    return FlowRunRow(
        run_id="r",
        owner="local",
        flow="tested",
        origin=ORIGIN,
        created_at=now(),
        document=json.dumps(ir),
    )


@on_sqlite
async def test_full_queue_raises_busy(harness: SupervisorHarness) -> None:
    for number in range(3):
        await harness.start_run(flow([node("w", "wait", seconds=60)]), f"r{number}")
    with pytest.raises(Busy, match="Too many flow runs"):
        await harness.start_run(flow([node("w", "wait", seconds=60)]), "r3")
    assert await harness.store.journal.get("r3") is None
    for number in range(3):
        await harness.supervisor.cancel(f"r{number}")
    for number in range(3):
        assert (await harness.ended(f"r{number}")).outcome == "cancelled"


@on_sqlite
async def test_run_of_an_unreadable_flow_version_fails(harness: SupervisorHarness) -> None:
    await harness.start_run({**flow([node("w", "wait", seconds=0)]), "version": "9.0.0"})
    assert (await harness.ended()).outcome == "invalid_flow"
