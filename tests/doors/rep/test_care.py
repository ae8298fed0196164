"""Runs that wait, are put aside, altered, given up; in this process, where minutes can pass at once."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.doors.rep.stations import runtimes
from tests.flows import chain, flow, node
from tests.processes import PATIENCE, until
from tests.store.made import a_flow_run

from hutch.doors.rep import flows, holders
from hutch.doors.rep.care import Care, Said
from hutch.doors.rep.flows import ORIGIN, Flows, NotWaiting
from hutch.errors import Busy
from hutch.settings import Settings
from hutch.store.database import Statement
from hutch.store.journal import Entry
from hutch.store.rows import FlowRunRow, now
from hutch.store.store import Store
from hutch.vault.journals import open_store


class Cared:
    """A server's flows without a server."""

    def __init__(self, flows: Flows, store: Store) -> None:
        self.flows = flows
        self.store = store

    async def begin(self, ir: dict[str, Any], run_id: str = "r", **options: Any) -> FlowRunRow:
        row = FlowRunRow(
            run_id=run_id,
            owner="local",
            flow=ir["flow"]["name"],
            origin=ORIGIN,
            created_at=now(),
            document=json.dumps(ir),
            options=json.dumps(options),
        )
        return await self.flows.begin(row)

    async def head(self, run_id: str = "r") -> FlowRunRow:
        found = await self.store.journal.get(run_id)
        assert found is not None
        return found

    async def until(self, condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await condition():  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0.01)

    async def ended(self, run_id: str = "r") -> FlowRunRow:
        async def over() -> bool:
            return (await self.head(run_id)).is_over

        await self.until(over)
        return await self.head(run_id)


@pytest.fixture
async def cared(store_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cared]:
    monkeypatch.setattr(flows, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(flows, "SWEEP_SECONDS", 0.05)
    monkeypatch.setattr(flows, "ASIDE_SECONDS", 0.2)
    async with await open_store(store_settings) as store:

        async def opened() -> Store:
            return store

        made = Flows(msgspec.structs.replace(store_settings, max_flows=1, max_queue=3), opened)
        made.start()
        try:
            yield Cared(made, store)
        finally:
            await made.close()


ASKS = flow(
    [node("a", "approve", message="A?"), node("b", "approve", message="B?"), node("e", "finish", outputs=1)],
    [*chain("a", "e"), *chain("b", "e")],
)


async def test_run_that_only_waits_gives_up_its_process_and_goes_on_when_somebody_speaks(
    cared: Cared,
) -> None:
    run = await cared.begin(ASKS)

    async def aside() -> bool:
        return cared.flows.is_aside("r")

    await cared.until(aside)
    assert [each["step_id"] for each in await cared.flows.questions(run)] == ["a", "b"]
    # There is room for another now, though there is but one place.
    await cared.begin(flow([node("w", "wait", seconds=0)]), "other")
    assert (await cared.ended("other")).status == "completed"
    await asyncio.to_thread(until, lambda: not runtimes(os.getpid()))
    with pytest.raises(NotWaiting):
        await cared.flows.approve(await cared.head(), "e", Said(True))
    await cared.flows.approve(await cared.head(), "b", Said(True, by="Bo"))

    async def has_b() -> bool:
        return "b" in dict(await cared.store.journal.steps("r"))

    await cared.until(has_b)
    await cared.until(aside)
    assert [each["step_id"] for each in await cared.flows.questions(run)] == ["a"]
    await cared.flows.approve(await cared.head(), "a", Said(True))
    assert (await cared.ended()).status == "completed"
    result = json.loads(dict(await cared.store.journal.steps("r"))["b"])
    assert result["output"] == {"approved": True, "by": "Bo"}


async def test_run_that_is_resumed_while_its_end_is_still_seen_to_goes_on_without_a_sweep(
    store: Store, store_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def opened() -> Store:
        return store

    seen: list[str] = []
    leaves, again = asyncio.Event(), asyncio.Event()

    async def see_through(run_id: str, _: Care) -> None:
        seen.append(run_id)
        if len(seen) == 1:
            await leaves.wait()
        else:
            again.set()

    # Not started, so that nobody looks for runs that are left.
    made = Flows(store_settings, opened)
    monkeypatch.setattr(made, "_see_through", see_through)
    await Cared(made, store).begin(flow([node("w", "wait", seconds=0)]))
    sql = "UPDATE flow_runs SET status = 'failed', ended_at = created_at, holder = ''"
    await store._database.write(Statement(sql, {}))
    failed = await store.journal.head("r")
    assert failed is not None
    await made.resume(failed)
    leaves.set()
    async with asyncio.timeout(PATIENCE):
        await again.wait()
    assert seen == ["r", "r"]
    await made.close()


async def test_run_that_was_altered_is_told_once_and_left_as_it_is(
    cared: Cared, caplog: pytest.LogCaptureFixture
) -> None:
    row = a_flow_run(run_id="bad", origin=ORIGIN, holder=holders.here())
    assert await cared.store.journal.add(row)
    sql = "UPDATE flow_runs SET holder = '', inputs = options WHERE run_id = 'bad'"
    await cared.store._database.write(Statement(sql, {}))

    async def told() -> bool:
        return "run bad cannot be gone on with: The sealed text was altered" in caplog.text

    await cared.until(told)
    await cared.begin(flow([node("w", "wait", seconds=0.3)]))
    assert (await cared.ended()).status == "completed"
    assert caplog.text.count("run bad cannot be gone on with") == 1
    left = await cared.store.journal.head("bad")
    assert left is not None
    assert (left.status, left.holder) == ("pending", "")


async def changed(cared: Cared, sql: str, **values: Any) -> None:
    await cared.store._database.write(Statement(sql, values))


def shut(caplog: pytest.LogCaptureFixture, run_id: str = "r") -> int:
    """How often it was told that it does not open."""
    return caplog.text.count(f"run {run_id} cannot be gone on with")


async def altered(cared: Cared, caplog: pytest.LogCaptureFixture) -> str:
    """A run whose inputs do not open, as was found; its inputs as they were."""
    row = msgspec.structs.replace(a_row(flow([node("w", "wait", seconds=0)])), holder=holders.here())
    assert await cared.store.journal.add(row)
    inputs = await cared.store._database.read("SELECT inputs FROM flow_runs")
    await changed(cared, "UPDATE flow_runs SET holder = '', inputs = options")

    async def told() -> bool:
        return shut(caplog) > 0

    await cared.until(told)
    return str(inputs[0][0])


async def test_run_whose_journal_was_altered_is_told_once_and_left_as_it_is(
    cared: Cared, caplog: pytest.LogCaptureFixture
) -> None:
    row = msgspec.structs.replace(a_row(ASKS), holder=holders.here())
    assert await cared.store.journal.add(row)
    result = Entry(1, '{"state":"succeeded","output":1}', "a", "succeeded")
    assert await cared.store.journal.write("r", row.holder, [result])
    await changed(cared, "UPDATE flow_journal SET step = 'b'")
    await changed(cared, "UPDATE flow_runs SET holder = ''")

    async def told() -> bool:
        return shut(caplog) > 0 or (await cared.head()).is_over

    await cared.until(told)
    assert "gone on with: The runtime failed: The sealed text was altered" in caplog.text
    await cared.begin(flow([node("w", "wait", seconds=0.3)]), "other")
    assert (await cared.ended("other")).status == "completed"
    assert shut(caplog) == 1
    left = await cared.head()
    assert (left.is_over, left.holder, left.claims) == (False, "", 0)


async def test_run_that_was_altered_can_be_cancelled_and_is_forgotten_in_its_time(
    cared: Cared, caplog: pytest.LogCaptureFixture
) -> None:
    await altered(cared, caplog)
    await cared.flows.cancel("r")
    left = await cared.store.journal.head("r")
    assert left is not None
    assert (left.is_over, left.outcome) == (True, "cancelled")
    assert await cared.store.journal.prune(now(plus_seconds=60)) == 1


async def test_run_that_opens_again_is_gone_on_with(
    cared: Cared, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "SHUT_SECONDS", 0.3)
    inputs = await altered(cared, caplog)
    await changed(cared, "UPDATE flow_runs SET inputs = :inputs", inputs=inputs)
    assert (await cared.ended()).status == "completed"


async def test_word_for_a_run_that_was_altered_meanwhile_has_it_tried_once(
    cared: Cared, caplog: pytest.LogCaptureFixture
) -> None:
    run = await cared.begin(ASKS)

    async def aside() -> bool:
        return cared.flows.is_aside("r")

    async def told() -> bool:
        return shut(caplog) > 0

    await cared.until(aside)
    await changed(cared, "UPDATE flow_runs SET inputs = options")
    await cared.flows.approve(run, "a", Said(True))
    await cared.until(told)
    await cared.begin(flow([node("w", "wait", seconds=0)]), "other")
    assert (await cared.ended("other")).status == "completed"
    assert shut(caplog) == 1


async def test_run_that_was_put_aside_is_cancelled(cared: Cared) -> None:
    await cared.begin(ASKS)

    async def aside() -> bool:
        return cared.flows.is_aside("r")

    await cared.until(aside)
    await cared.flows.cancel("r")
    assert (await cared.ended()).outcome == "cancelled"
    assert not cared.flows.is_aside("r")


async def test_run_with_a_time_limit_is_never_put_aside(cared: Cared) -> None:
    await cared.begin(flow([node("a", "approve", timeout_ms=1_500, message="A?")]))
    ended = await cared.ended()
    assert json.loads(ended.summary or "")["error"]["data"]["cause"] == "Timeout"
    assert ended.claims == 1


async def test_runtime_that_always_dies_is_given_up(cared: Cared) -> None:
    dying = ("python3", "-c", "import sys; sys.stdin.readline(); sys.exit(7)")
    cared.flows._choice = msgspec.structs.replace(cared.flows._choice, command=dying)
    await cared.begin(flow([node("w", "wait", seconds=0)]))
    ended = await cared.ended()
    summary = json.loads(ended.summary or "")
    assert (ended.outcome, summary["error"]["code"]) == ("runtime_failed", 3001)
    assert "lost 5 times at the same place" in summary["error"]["message"]


async def test_runtime_that_dies_in_the_same_step_again_and_again_is_given_up_also_by_the_next_server(
    cared: Cared,
) -> None:
    await cared.flows.close()
    row = a_row(ASKS)
    await cared.store.journal.add(row)
    for _ in range(flows.MOST_LOST):
        seen = await cared.head()
        assert await cared.store.journal.claim(seen, "somebody who died", now(plus_seconds=-1_000))

    async def opened() -> Store:
        return cared.store

    again = Flows(cared.flows.settings, opened)
    again.start()
    try:
        assert (await cared.ended()).outcome == "runtime_failed"
    finally:
        await again.close()


def a_row(ir: dict[str, Any]) -> FlowRunRow:
    return FlowRunRow(
        run_id="r",
        owner="local",
        flow="tested",
        origin=ORIGIN,
        created_at=now(),
        document=json.dumps(ir),
    )


async def test_too_many_runs_are_told_to_come_back(cared: Cared) -> None:
    for number in range(3):
        await cared.begin(flow([node("w", "wait", seconds=60)]), f"r{number}")
    with pytest.raises(Busy, match="Too many runs"):
        await cared.begin(flow([node("w", "wait", seconds=60)]), "r3")
    assert await cared.store.journal.get("r3") is None
    for number in range(3):
        await cared.flows.cancel(f"r{number}")
    for number in range(3):
        assert (await cared.ended(f"r{number}")).outcome == "cancelled"


async def test_flow_that_this_hutch_cannot_read_any_more_fails_with_the_reason(cared: Cared) -> None:
    await cared.begin({**flow([node("w", "wait", seconds=0)]), "version": "9.0.0"})
    assert (await cared.ended()).outcome == "invalid_flow"
