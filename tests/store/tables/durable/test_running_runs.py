"""Tests of the table of runs in progress."""

from __future__ import annotations

from tests.store.factories import add_runs, make_run

from hutch.store.models import NewRun, now
from hutch.store.store import Store
from hutch.store.tables.durable.checkpoints import CheckpointRow


async def test_only_runs_without_record_or_checkpoint_are_interrupted(store: Store) -> None:
    table, later = store.running_runs, now(plus_seconds=60)
    lost, ended, stored, other = (
        NewRun(make_run(run_id=id, outcome="interrupted"), None, ("server.add",))
        for id in ("lost", "ended", "stored", "other")
    )
    await table.put("dead", [lost, ended, stored])
    await table.put("alive", [other])
    await add_runs(store, [make_run(run_id="ended")])
    checkpoint = CheckpointRow(
        run_id="stored", owner="ada", protocol="python", bundle="b", generation=1, expires_at=later, bytes=1
    )
    assert await store.checkpoints.save(checkpoint, [b"state"], [], None)

    assert set(await table.holders()) == {"dead", "alive"}
    assert set(await table.interrupt("dead", later)) == {"lost", "ended"}
    outcomes = {id: await store.runs.get(id) for id in ("lost", "ended", "stored", "other")}
    assert {id: run and run.outcome for id, run in outcomes.items()} == {
        "lost": "interrupted",
        "ended": "ok",
        "stored": None,
        "other": None,
    }
    assert await store.checkpoints.delete_suspended("stored")
    assert await table.interrupt("dead", later) == ["stored"]
    assert set(await table.holders()) == {"alive"}


async def test_late_record_replaces_interrupted(store: Store) -> None:
    await store.running_runs.put("slow", [NewRun(make_run(run_id="run", outcome="interrupted"))])
    await store.running_runs.interrupt("slow", now(plus_seconds=60))
    await add_runs(store, [make_run(run_id="run")])
    run = await store.runs.get("run")
    assert run is not None
    assert run.outcome == "ok"


async def test_holder_of_a_run_was_seen_with_its_latest_run(store: Store) -> None:
    table = store.running_runs
    await table.put("server", [NewRun(make_run(run_id="run"))])
    assert await table.holder_of("other") is None
    await table.renew("server")
    seen_at = (await table.holders())["server"]
    assert await table.holder_of("run") == ("server", seen_at)
