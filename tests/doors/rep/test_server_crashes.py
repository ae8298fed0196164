"""A server that is killed, a runtime that is killed, runs that wait, and what other processes run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.doors.rep.stations import Caller, Station, station
from tests.doors.rep.test_server import approvals
from tests.flows import SERVE, chain, flow, node
from tests.hostile.processes import gone
from tests.processes import PATIENCE, Traces, arguments_of, descendants, hutch, started, until
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
from hutch.vault import keys
from hutch.vault.journals import open_store


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(Settings(home=str(tmp_path / "home"))) as made:
        yield made


def runtimes(pid: int) -> list[int]:
    return [each for each in descendants(pid) if arguments_of(each)[-2:] == SERVE[-2:]]


async def asked(place: Station, path: str, times: int = 1) -> None:
    await asyncio.to_thread(place.upstream.until_asked, path, times)


# --- the master key ---


async def test_server_with_another_master_key_than_that_of_its_runs_does_not_start(
    store: Store, store_settings: Settings
) -> None:
    await store.journal.add(a_flow_run())
    env = {"HUTCH_HOME": store_settings.home, "HUTCH_MASTER_KEY": keys.generate()}
    env["HUTCH_DATABASE_URL"] = store_settings.database_url or ""
    done = await asyncio.to_thread(hutch, "serve", "--port", "0", env=env)
    assert (done.returncode, done.stdout) == (1, "")
    assert "The master key is not the one that this database is sealed with" in done.stderr


# --- killed ---


async def test_killed_server_leaves_no_process_and_the_next_goes_on_without_repeating_anything(
    store_settings: Settings,
) -> None:
    async with station(store_settings) as place:
        place.upstream.hold("/held")
        async with place.serving() as there:
            ann = await place.user(there, "ann")
            await ann.begin(place.steps("a", "b", "held", "d"), "r")
            await asked(place, "/held")
            with Traces(there.server.process.pid) as traces:
                there.server.process.kill()
                there.server.process.wait(PATIENCE)
                assert [each for each in traces.remaining() if each.isdigit()] == []
        place.upstream.let_go("/held")
        async with place.serving() as there:
            ann = await place.user(there, "ann")
            ended = await ann.ended("r")
        assert ended["status"] == "completed"
        assert ended["summary"]["completed_steps"] == 4
        assert place.upstream.asked == {"/a": 1, "/b": 1, "/held": 2, "/d": 1}


async def test_killed_runtime_is_replaced_and_the_run_goes_on_without_repeating_anything(
    place: Station,
) -> None:
    place.upstream.hold("/held")
    async with place.serving() as there:
        await there.begin(place.steps("a", "held", "d"), "r")
        await asked(place, "/held")
        [pid] = runtimes(there.server.process.pid)
        os.kill(pid, signal.SIGKILL)
        await asked(place, "/held", 2)
        place.upstream.let_go("/held")
        assert (await there.ended("r"))["status"] == "completed"
        assert "was lost" in there.server.logged("was lost")
    assert place.upstream.asked == {"/a": 1, "/held": 2, "/d": 1}


async def test_run_that_was_waiting_for_its_turn_is_begun_by_the_next_server(place: Station) -> None:
    place.upstream.hold("/first")
    async with place.serving(HUTCH_MAX_FLOWS="1") as there:
        await there.begin(place.steps("first", name="one"), "r1")
        await asked(place, "/first")
        await there.begin(place.steps("second", name="two"), "r2")
        await there.begin(place.steps("third", name="three"), "r3")
        assert (await there.post("/runs/r3/cancel")).json()["ok"] is True
        assert (await there.got("/runs/r3"))["state"] == "cancelled"
        assert (await there.got("/runs/r2"))["state"] == "pending"
        assert place.upstream.asked["/second"] == 0
        [runtime] = runtimes(there.server.process.pid)
        there.server.process.kill()
        there.server.process.wait(PATIENCE)
        # As long as it is there, it would take the answer.
        await gone(runtime)
    place.upstream.let_go("/first")
    async with place.serving(HUTCH_MAX_FLOWS="1") as there:
        assert (await there.ended("r1"))["status"] == (await there.ended("r2"))["status"] == "completed"
        assert (await there.got("/runs/r3"))["state"] == "cancelled"
    assert place.upstream.asked == {"/first": 2, "/second": 1}


async def test_server_that_is_told_to_stop_lets_runs_finish(place: Station) -> None:
    place.upstream.hold("/held")
    async with place.serving() as there:
        await there.begin(place.steps("held", "after"), "r")
        await there.begin(flow([node("ask", "approve", message="?")], name="asks"), "waiting")
        await approvals(there, "waiting")
        await asked(place, "/held")
        there.server.process.terminate()
        there.server.logged("draining")
        place.upstream.let_go("/held")
        assert await asyncio.to_thread(there.server.wait) == 0
    assert place.upstream.asked == {"/held": 1, "/after": 1}
    found = await place.store.journal.head("r")
    assert found is not None
    assert found.status == "completed"
    left = await place.store.journal.head("waiting")
    assert left is not None
    # It was let go in good order, and nobody counts that against it.
    assert (holders.state(left), left.holder, left.claims) == ("interrupted", "", 0)


async def test_server_that_has_no_time_to_stop_leaves_its_runs_to_the_next(place: Station) -> None:
    place.upstream.hold("/held")
    async with place.serving(HUTCH_DRAIN_SECONDS="0") as there:
        await there.begin(place.steps("a", "held", "d"), "r")
        await asked(place, "/held")
        with Traces(there.server.process.pid) as traces:
            there.server.process.terminate()
            assert await asyncio.to_thread(there.server.wait) == 0
            assert [each for each in traces.remaining() if each.isdigit()] == []
    place.upstream.let_go("/held")
    async with place.serving() as there:
        assert (await there.ended("r"))["status"] == "completed"
    assert place.upstream.asked == {"/a": 1, "/held": 2, "/d": 1}


async def test_another_server_on_the_same_database_takes_over(postgres: Any, tmp_path: Path) -> None:
    settings = Settings(home=str(tmp_path / "one"), database_url=postgres.new_database())
    async with station(settings) as place:
        place.upstream.hold("/held")
        async with place.serving() as other, place.serving() as one:
            await one.begin(place.steps("a", "held", "d"), "r")
            await asked(place, "/held")
            # The other sees it, and can end what it does not run.
            assert (await other.got("/runs/r"))["state"] == "running"
            one.server.process.kill()
            one.server.process.wait(PATIENCE)
            await asked(place, "/held", 2)
            place.upstream.let_go("/held")
            assert (await other.ended("r"))["status"] == "completed"
        assert place.upstream.asked == {"/a": 1, "/held": 2, "/d": 1}


# --- runs of other processes ---


async def test_run_by_hand_is_seen_approved_and_cancelled_through_the_server(
    place: Station, tmp_path: Path
) -> None:
    nodes = [node("ask", "approve", message="Really?"), node("w", "wait", seconds=600)]
    file = tmp_path / "flow.json"
    file.write_text(json.dumps(flow(nodes, chain("ask", "w"))))
    command = ["flow", "run", str(file), "--run-id", "byhand", "--timeout", "0"]
    async with place.serving() as there:
        with started(command, env={"HUTCH_HOME": str(place.home)}, stdin=subprocess.DEVNULL) as process:
            await asyncio.to_thread(until, lambda: "byhand" in _listed(place))
            [question] = await approvals(there, "byhand")
            assert question["message"] == "Really?"
            assert (await there.post("/runs/byhand/approvals/ask", {"approved": True})).status_code == 200
            await _until_event(there, "byhand", '"step_id": "w"')
            assert (await there.post("/runs/byhand/cancel")).json()["ok"] is True
            assert (await there.ended("byhand"))["state"] == "cancelled"
            assert process.wait(PATIENCE) == 130


def _listed(place: Station) -> str:
    done = hutch("flow", "runs", "--json", env={"HUTCH_HOME": str(place.home)})
    assert done.returncode == 0, done.stderr
    return done.stdout


async def _until_event(there: Caller, run_id: str, part: str) -> None:
    url = f"{there.server.url}/runs/{run_id}/events"
    seen = ""
    async with asyncio.timeout(PATIENCE), there.client.stream("GET", url) as stream:
        async for text in stream.aiter_text():
            seen += text
            if part in seen:
                return


# --- in this process: what would take minutes ---


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
