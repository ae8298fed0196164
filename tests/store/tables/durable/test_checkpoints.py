"""Table of suspended runs. For suspending and resuming, see tests/kernel/durable/test_suspended_runs.py."""

from __future__ import annotations

from hutch.store.models import now
from hutch.store.store import Store
from hutch.store.tables.durable.checkpoints import CheckpointRow


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
