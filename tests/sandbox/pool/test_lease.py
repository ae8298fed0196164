"""Leases: a lease holds a runner for one execution, and reports the outcome of the execution to the pool."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest
from tests.sandbox.fake_runners import FakeRunner, PoolHarness, settle
from tests.support.network.memory_channel import MemoryChannel

import hutch
from hutch.errors import Busy
from hutch.sandbox.runner.profile import Profile, profile_for
from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.messages import Started
from hutch.session.multiplexer import Multiplexer
from hutch.session.run import Result, RunHandle

QUICKJS, DENO = profile_for("quickjs"), profile_for("deno")
LIMITS = Limits(cancel_grace_ms=1)


async def hold(
    harness: PoolHarness, run: RunHandle, profile: Profile, max_seconds: float | None = None
) -> Result:
    async with harness.pool.lease(profile, "ann") as runner:
        return await runner.run(run, "", LIMITS, max_seconds=max_seconds)


async def session_of(run: RunHandle) -> Session:
    await settle()
    assert run.session is not None
    return run.session


async def test_lease_returns_the_result_and_releases_the_runner() -> None:
    harness, run = PoolHarness(), RunHandle("r")
    leased = asyncio.create_task(hold(harness, run, QUICKJS))
    session = await session_of(run)
    [runner] = harness.launched
    assert (runner.in_flight, runner.executions, [*runner.multiplexer.sessions]) == (1, 1, ["r"])
    session.succeed(5)
    result = await leased
    assert (result.result, result.run_id) == (5, "r")
    assert (runner.in_flight, runner.is_alive, runner.multiplexer.sessions) == (0, True, {})
    await harness.pool.close()


async def test_runner_prepares_before_execute_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    begin = Session.begin

    def recording_begin(session: Session) -> None:
        steps.append("execute")
        begin(session)

    monkeypatch.setattr(Session, "begin", recording_begin)
    monkeypatch.setattr(FakeRunner, "execution_started", lambda *_: steps.append("prepare"))
    harness, run = PoolHarness(), RunHandle()
    leased = asyncio.create_task(hold(harness, run, DENO))
    (await session_of(run)).succeed(None)
    await leased
    assert steps == ["prepare", "execute"]
    await harness.pool.close()


async def test_nothing_is_sent_to_a_runner_that_cannot_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = MemoryChannel.pair()
    sent: list[bytes] = []
    far.on_line = sent.append
    monkeypatch.setattr(FakeRunner, "multiplexer", Multiplexer(near))
    monkeypatch.setattr(FakeRunner, "execution_started", lambda _, session: session.mark_lost("no limit"))
    harness = PoolHarness()
    result = await hold(harness, RunHandle(), DENO)
    await settle()
    assert result.error is not None
    assert result.error.message == "The runner was lost: no limit"
    assert sent == []
    await harness.pool.close()


async def test_single_use_runner_ends_after_its_lease() -> None:
    harness, run = PoolHarness(), RunHandle()
    leased = asyncio.create_task(hold(harness, run, DENO))
    (await session_of(run)).succeed(None)
    assert (await leased).ok
    async with asyncio.timeout(10):
        await harness.launched[0].wait()
    await harness.pool.close()


async def test_runner_is_released_if_nothing_runs_or_the_body_fails() -> None:
    harness = PoolHarness()
    async with harness.pool.lease(QUICKJS, "ann"):
        assert harness.pool.stats().in_flight == {"quickjs": 1}
    with pytest.raises(ZeroDivisionError):
        async with harness.pool.lease(QUICKJS, "ann"):
            raise ZeroDivisionError
    assert harness.pool.stats().in_flight == {"quickjs": 0}
    await harness.pool.close()


async def test_cancelled_lease_cancels_the_guest_and_reports_an_unresponsive_runner() -> None:
    harness, run = PoolHarness(), RunHandle("r")
    leased = asyncio.create_task(hold(harness, run, QUICKJS))
    session = await session_of(run)
    leased.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leased
    assert session.result is not None
    assert session.result.error is not None
    assert session.result.error.code == "timeout"
    [runner] = harness.launched
    assert (runner.in_flight, runner.unanswered_sessions) == (0, {"r"})
    await harness.pool.close()


@pytest.mark.parametrize("has_started", [True, False])
async def test_runner_that_never_started_a_bounded_run_is_not_unresponsive(has_started: bool) -> None:
    harness, run = PoolHarness(), RunHandle("r")
    leased = asyncio.create_task(hold(harness, run, QUICKJS, max_seconds=0.001))
    session = await session_of(run)
    [runner] = harness.launched
    if has_started:
        session.receive(Started("r"))
    assert not (await leased).ok
    assert runner.unanswered_sessions == ({"r"} if has_started else set())
    await harness.pool.close()


async def test_try_lease_does_not_wait() -> None:
    harness = PoolHarness(max_processes=1)
    assert harness.pool.try_lease(QUICKJS, "ann") is None
    async with harness.pool.lease(QUICKJS, "ann"):
        assert harness.pool.try_lease(QUICKJS, "bob") is None
    lease = harness.pool.try_lease(QUICKJS, "ann")
    assert lease is not None
    async with lease:
        assert harness.launched[0].in_flight == 1
    assert harness.launched[0].in_flight == 0
    await harness.pool.close()


async def test_lease_raises_busy_if_no_runner_becomes_available() -> None:
    harness = PoolHarness(max_processes=1, queue_seconds=0.01)
    async with harness.pool.lease(DENO, "ann"):
        with pytest.raises(Busy):
            await hold(harness, RunHandle(), DENO)
    await harness.pool.close()


def test_protocols_have_runners_only_through_the_kernel() -> None:
    folder = Path(hutch.__file__).parent / "protocols"
    uses = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ImportFrom(module="hutch.sandbox.pool.pool" | "hutch.sandbox.pool.lease"):
                    uses.append(f"{path.relative_to(folder)}:{node.lineno}")
                case ast.Attribute(attr="pool" | "multiplexer"):
                    uses.append(f"{path.relative_to(folder)}:{node.lineno}")
    assert uses == []
