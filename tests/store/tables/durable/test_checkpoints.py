"""Table of suspended runs. For suspending and resuming, see tests/kernel/durable/test_suspended_runs.py."""

from __future__ import annotations

import msgspec
import pytest

from hutch.errors import AlreadyExists, VaultError
from hutch.store.backends.base import SqlStatement
from hutch.store.models import now
from hutch.store.store import Store
from hutch.store.tables.durable.checkpoints import CheckpointRow, NewPendingCall
from hutch.store.tables.durable.recorded_calls import RecordedCall


def row(generation: int, expires_in: float) -> CheckpointRow:
    return CheckpointRow(
        run_id="run",
        owner="ann",
        protocol="python",
        bundle="bundle",
        generation=generation,
        expires_at=now(plus_seconds=expires_in),
        bytes=1,
    )


async def test_process_that_was_overtaken_cannot_overwrite_the_state(store: Store) -> None:
    table = store.checkpoints
    assert await table.save(row(1, 100), [b"start"], [], None)
    assert await table.take("run", "ann", "first process", now(plus_seconds=-1)) is not None
    assert await table.take("run", "ann", "second process", now(plus_seconds=30)) is not None
    newer = row(2, 200)
    assert await table.save(newer, [b"newer"], [], "second process")
    assert not await table.save(row(2, 300), [b"stale"], [], "first process")
    assert await table.state(newer) == [b"newer"]


async def test_suspended_and_answered_runs_are_found_by_their_ids(store: Store) -> None:
    later = now(plus_seconds=60)
    for run_id in ("waiting", "answered", "ended"):
        row = CheckpointRow(
            run_id=run_id,
            owner="ada",
            protocol="p",
            bundle="b",
            generation=1,
            holder="me",
            expires_at=later,
            bytes=1,
        )
        call = NewPendingCall(call_id=f"{run_id}-1", provider="s", tool="t", question="{}")
        assert await store.checkpoints.save(row, [b"state"], [call], None)
    assert await store.checkpoints.answer("answered", {"answered-1": b"=1"}, 1_000) == []
    recorded = RecordedCall(number=0, server="s", tool="t", digest="d", answer=b"answer")
    await store.recorded_calls.add("ended", "ada", recorded, later)
    assert await store.checkpoints.end("ended", None, [b"result"], later)
    runs = ["waiting", "answered", "ended", "unknown"]
    assert sorted(await store.checkpoints.suspended(runs, "me")) == ["answered", "waiting"]
    assert await store.checkpoints.answered(runs) == ["answered"]
    assert await store.checkpoints.suspended([], "me") == []
    assert await store.checkpoints.suspended(runs, "other") == []
    # The end of a run deletes the record of its calls.
    assert await store.recorded_calls.of_run("ended", "ada") == []


async def test_recorded_calls_are_added_together_and_can_be_kept_longer(store: Store) -> None:
    calls = [
        RecordedCall(number=number, server="s", tool="t", digest="d", answer=answer)
        for number, answer in enumerate((b"first", None))
    ]
    table = store.recorded_calls
    await table.add_all("run", "ada", calls, "2000-01-01T00:00:00.000Z")
    with pytest.raises(AlreadyExists):
        await table.add_all("run", "ada", calls[1:], "2000-01-01T00:00:00.000Z")
    assert await table.of_run("run", "ada") == calls
    await table.extend("run", "ada", "2100-01-01T00:00:00.000Z")
    await table.delete_expired("2050-01-01T00:00:00.000Z")
    assert await table.of_run("run", "ada") == calls


async def test_call_is_recorded_only_while_no_other_process_continues_the_run(store: Store) -> None:
    later, calls = now(plus_seconds=60), store.recorded_calls

    async def add(number: int) -> bool:
        call = RecordedCall(number=number, server="s", tool="t", digest="d")
        return await calls.add_held("run", "ann", call, later, "first process")

    assert await add(0), "the run is not stored yet"
    suspended = msgspec.structs.replace(row(1, 100), holder="first process")
    assert await store.checkpoints.save(suspended, [b"state"], [], None)
    assert await add(1)
    assert await store.checkpoints.take("run", "ann", "second process", later) is not None
    assert not await add(2)
    again = await store.checkpoints.take("run", "ann", "first process", later, last_holder="first process")
    assert again is None
    await store.checkpoints.release("run", "second process")
    assert not await add(2)
    again = await store.checkpoints.take("run", "ann", "first process", later, last_holder="first process")
    assert again is None
    assert [call.number for call in await calls.of_run("run", "ann")] == [0, 1]


@pytest.mark.parametrize("column", ["server", "tool", "digest", "number"])
async def test_result_of_one_call_is_not_used_for_another(store: Store, column: str) -> None:
    later, calls = now(plus_seconds=60), store.recorded_calls
    call = RecordedCall(number=0, server="s", tool="t", digest="d", answer=b"answer")
    await calls.add("run", "ann", call, later)
    value = 1 if column == "number" else "x"
    await store._database.write(
        SqlStatement(f"UPDATE recorded_calls SET {column} = :value", {"value": value})
    )
    with pytest.raises(VaultError):
        await calls.of_run("run", "ann")
