"""A server that is killed, a runtime that is killed, and what other processes run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.doors.rep.server.answers import approvals
from tests.doors.rep.stations import Caller, Station, runtimes, station
from tests.flows import chain, flow, node
from tests.hostile.processes import gone
from tests.processes import PATIENCE, Traces, hutch, started, until
from tests.store.made import a_flow_run

from hutch.doors.rep import holders
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.vault import keys


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(Settings(home=str(tmp_path / "home"))) as made:
        yield made


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
