"""Rules of the pool, with fake runners and, at the end, with real processes."""

from __future__ import annotations

import asyncio

import pytest
from tests.sandbox.fake_runners import PoolHarness, settle

import hutch
from hutch.errors import Busy, SandboxUnavailable
from hutch.sandbox.runner.profile import Profile, profile_for
from hutch.session.run import Result

QUICKJS, DENO = profile_for("quickjs"), profile_for("deno")
PACKAGES = [Profile("npm", stdin_payload=b"%d" % number) for number in range(4)]


async def test_one_owners_executions_share_a_process_and_owners_do_not() -> None:
    harness = PoolHarness()
    first = await harness.pool.acquire(QUICKJS, "ann")
    assert await harness.pool.acquire(QUICKJS, "ann") is first
    assert await harness.pool.acquire(QUICKJS, "bob") is not first
    await harness.pool.close()


async def test_owners_share_a_process_if_configured() -> None:
    harness = PoolHarness(owners_share=True)
    first = await harness.pool.acquire(QUICKJS, "ann")
    assert await harness.pool.acquire(QUICKJS, "bob") is first
    await harness.pool.close()


async def test_process_of_one_owner_is_never_given_to_another() -> None:
    harness = PoolHarness(max_processes=1)
    first = await harness.pool.acquire(QUICKJS, "ann")
    harness.pool.release(first)
    second = await harness.pool.acquire(QUICKJS, "bob")
    assert second is not first
    assert first.has_exited
    await harness.pool.close()


async def test_load_starts_more_processes_of_one_owner_up_to_the_limit() -> None:
    harness = PoolHarness(quickjs_processes=2)
    for _ in range(12):
        await harness.pool.acquire(QUICKJS, "ann")
        await settle()
    assert sorted(each.in_flight for each in harness.launched) == [6, 6]
    await harness.pool.close()


async def test_load_starts_no_second_process_while_others_keep_the_cores_busy() -> None:
    harness = PoolHarness(quickjs_processes=2)
    await harness.pool.acquire(QUICKJS, "ann")
    await harness.pool.acquire(QUICKJS, "bob")
    for _ in range(12):
        await harness.pool.acquire(QUICKJS, "ann")
        await settle()
    assert sorted(each.in_flight for each in harness.launched) == [1, 13]
    await harness.pool.close()


async def test_single_use_runner_is_used_once() -> None:
    harness = PoolHarness(deno_warm=0)
    first = await harness.pool.acquire(DENO, "ann")
    harness.pool.release(first)
    await settle()
    assert first.has_exited
    assert await harness.pool.acquire(DENO, "ann") is not first
    await harness.pool.close()


async def test_warm_runners_are_kept_ready_and_replaced_when_taken() -> None:
    harness = PoolHarness()
    harness.pool.keep_warm(DENO, 2)
    await settle()
    assert harness.pool.stats().warm == {"deno": 2}
    taken = await harness.pool.acquire(DENO, "ann")
    assert taken in harness.launched[:2]
    harness.pool.release(taken)
    await settle()
    assert harness.pool.stats().warm == {"deno": 2}
    await harness.pool.close()


async def test_longest_waiter_is_served_first() -> None:
    harness = PoolHarness(max_processes=1, deno_warm=0)
    first = await harness.pool.acquire(DENO, "ann")
    order: list[int] = []

    async def wait(number: int) -> None:
        runner = await harness.pool.acquire(DENO, "ann")
        order.append(number)
        harness.pool.release(runner)

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(wait(number)))
        await settle()
    assert harness.pool.stats().waiting == 4
    harness.pool.release(first)
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    await harness.pool.close()


async def test_queue_for_one_engine_does_not_block_the_other() -> None:
    harness = PoolHarness(max_processes=2, deno_warm=0)
    quick = await harness.pool.acquire(QUICKJS, "ann")
    await harness.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    async with asyncio.timeout(5):
        assert await harness.pool.acquire(QUICKJS, "ann") is quick
    waiting.cancel()
    await harness.pool.close()


async def test_wait_timeout_raises_busy_with_retry_after() -> None:
    harness = PoolHarness(max_processes=1, queue_seconds=0.02, deno_warm=0)
    await harness.pool.acquire(DENO, "ann")
    with pytest.raises(Busy, match=r"No runner became available within 0.02 s") as caught:
        await harness.pool.acquire(DENO, "ann")
    assert caught.value.retry_after >= 1
    assert harness.pool.stats().counters.refused == 1
    assert harness.pool.stats().waiting == 0
    await harness.pool.close()


async def test_stats_count_why_processes_ended_and_how_long_executions_waited() -> None:
    harness = PoolHarness(max_processes=2, deno_warm=0, recycle_after=1, idle_seconds=0)
    pool = harness.pool
    pool.release(await pool.acquire(DENO, "ann"))
    recycled = await pool.acquire(QUICKJS, "ann")
    recycled.executions = 1
    pool.release(recycled)
    idle = await pool.acquire(QUICKJS, "ann")
    pool.release(idle)
    idle.idle_since -= 1
    pool._clean_up()
    lost = await pool.acquire(QUICKJS, "ann")
    lost.kill()
    await settle()
    first = await pool.acquire(QUICKJS, "ann")
    pool.release(first)
    await pool.acquire(DENO, "bo")
    # The pool has capacity for only two processes, so it evicts the idle quickjs process.
    await pool.acquire(DENO, "bo")
    counters = pool.stats().counters
    assert counters.ended == {"used": 1, "recycled": 1, "idle": 1, "lost": 1, "crowded out": 1}
    assert (counters.started, counters.waited, counters.refused) == (7, 7, 0)
    assert counters.waited_seconds >= 0
    await pool.close()


async def test_full_queue_raises_busy_immediately() -> None:
    harness = PoolHarness(max_processes=1, max_queue=1, deno_warm=0)
    await harness.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    with pytest.raises(Busy, match="1 executions are waiting already"):
        await harness.pool.acquire(DENO, "ann")
    waiting.cancel()
    await harness.pool.close()


async def test_cancelled_waiter_leaves_no_trace_and_keeps_no_runner() -> None:
    harness = PoolHarness(max_processes=1, deno_warm=0)
    harness.launch_allowed.clear()
    cancelled = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    harness.launch_allowed.set()
    async with asyncio.timeout(10):
        runner = await harness.pool.acquire(DENO, "ann")
    assert runner.in_flight == 1
    assert harness.alive_count == 1
    await harness.pool.close()


async def test_runner_assigned_during_cancellation_is_released() -> None:
    harness = PoolHarness()
    harness.launch_allowed.clear()
    task = asyncio.create_task(harness.pool.acquire(QUICKJS, "ann"))
    await settle()
    # The pool has given the runner to the waiting task. Cancel the task before it wakes up.
    harness.before_return = lambda: asyncio.get_running_loop().call_soon(task.cancel)
    harness.launch_allowed.set()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert harness.launched[0].in_flight == 0
    await harness.pool.close()


async def test_process_is_replaced_after_its_maximum_of_executions() -> None:
    harness = PoolHarness(recycle_after=2)
    first = await harness.pool.acquire(QUICKJS, "ann")
    first.executions = 2
    harness.pool.release(first)
    assert first.has_exited
    assert await harness.pool.acquire(QUICKJS, "ann") is not first
    await harness.pool.close()


async def test_unresponsive_runner_gets_no_executions_and_ends_unless_it_answers() -> None:
    for answers in (True, False):
        harness = PoolHarness(quickjs_processes=2)
        runner = await harness.pool.acquire(QUICKJS, "ann")
        session = runner.multiplexer.open("e", "", hutch.session.host.Limits(), [])
        runner.multiplexer.forget(session)
        session.unresponsive = True
        harness.pool.release(runner, Result(ok=False), session)
        assert await harness.pool.acquire(QUICKJS, "ann") is not runner
        if answers:
            runner.multiplexer.on_late_done("e")
            assert runner.unanswered_sessions == set()
        else:
            async with asyncio.timeout(10):
                await runner.wait()
        await harness.pool.close()


async def test_runner_that_does_not_start_an_execution_keeps_its_other_executions() -> None:
    harness = PoolHarness()
    runner = await harness.pool.acquire(QUICKJS, "ann")
    assert await harness.pool.acquire(QUICKJS, "ann") is runner
    session = runner.multiplexer.open("e", "", hutch.session.host.Limits(), [])
    runner.multiplexer.forget(session)
    session.unresponsive = True
    harness.pool.release(runner, Result(ok=False), session)
    # The silent process must not get new executions, so the pool starts another process.
    assert await harness.pool.acquire(QUICKJS, "ann") is not runner
    assert runner.is_alive
    harness.pool.release(runner, Result(ok=True))
    async with asyncio.timeout(10):
        await runner.wait()
    await harness.pool.close()


async def test_failed_start_is_retried() -> None:
    harness = PoolHarness()
    harness.failures = [SandboxUnavailable("no memory"), OSError("no processes")]
    async with asyncio.timeout(10):
        assert (await harness.pool.acquire(QUICKJS, "ann")).is_alive
    await harness.pool.close()


async def test_waiters_get_the_error_of_a_start_that_keeps_failing() -> None:
    harness = PoolHarness()
    harness.failures = [SandboxUnavailable("no memory") for _ in range(3)]
    async with asyncio.timeout(10):
        with pytest.raises(SandboxUnavailable, match="no memory"):
            await harness.pool.acquire(QUICKJS, "ann")
    assert (await harness.pool.acquire(QUICKJS, "ann")).is_alive
    await harness.pool.close()


async def test_failed_start_of_a_warm_runner_is_a_problem_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", 0.01)
    harness = PoolHarness()
    harness.failures = [SandboxUnavailable("no memory") for _ in range(6)]
    harness.pool.keep_warm(DENO, 1)
    await settle()
    assert harness.pool.problem == "no memory"
    async with asyncio.timeout(10):
        while harness.pool.problem is not None:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)
    assert harness.failures == []
    assert harness.pool.stats().warm == {"deno": 1}
    await harness.pool.close()


async def test_failed_start_of_other_runners_is_not_reported_as_a_problem() -> None:
    harness = PoolHarness()
    harness.pool.keep_warm(DENO, 1)
    await settle()
    harness.failures = [SandboxUnavailable("its files are gone") for _ in range(3)]
    with pytest.raises(SandboxUnavailable):
        await harness.pool.acquire(PACKAGES[0], "ann")
    assert harness.pool.problem is None
    await harness.pool.close()


async def test_failed_start_is_not_reported_once_enough_runners_exist(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", 0.01)
    harness = PoolHarness()
    harness.pool.keep_warm(QUICKJS, 1)
    await settle()
    harness.failures = [SandboxUnavailable("no memory") for _ in range(3)]
    runner = await harness.pool.acquire(QUICKJS, "ann")
    await settle()
    assert harness.pool.problem == "no memory"
    harness.pool.keep_warm(QUICKJS, 0)
    async with asyncio.timeout(10):
        while harness.pool.problem is not None:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)
    harness.pool.release(runner, Result(ok=True))
    await harness.pool.close()


async def test_failed_starts_are_counted_per_profile() -> None:
    harness = PoolHarness()
    harness.failures = [SandboxUnavailable("no memory") for _ in range(4)]
    async with asyncio.timeout(10):
        both = await asyncio.gather(harness.pool.acquire(QUICKJS, "ann"), harness.pool.acquire(DENO, "ann"))
    assert all(runner.is_alive for runner in both)
    await harness.pool.close()


async def test_exited_process_is_removed_and_replaced() -> None:
    harness = PoolHarness()
    first = await harness.pool.acquire(QUICKJS, "ann")
    first.kill()
    await settle()
    assert harness.pool.stats().processes == {}
    assert await harness.pool.acquire(QUICKJS, "ann") is not first
    await harness.pool.close()


async def test_idle_processes_beyond_the_warm_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", 0.01)
    harness = PoolHarness(idle_seconds=0.0)
    harness.pool.keep_warm(QUICKJS, 1)
    runner = await harness.pool.acquire(QUICKJS, "ann")
    harness.pool.release(runner)
    async with asyncio.timeout(10):
        await runner.wait()
    await settle()
    assert harness.pool.stats().warm == {"quickjs": 1}
    await harness.pool.close()


async def test_close_ends_everything_and_rejects_new_executions() -> None:
    harness = PoolHarness(max_processes=2, deno_warm=0)
    await harness.pool.acquire(QUICKJS, "ann")
    await harness.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    await harness.pool.close()
    assert harness.alive_count == 0
    with pytest.raises(Busy, match="shutting down"):
        await waiting
    with pytest.raises(Busy, match="shutting down"):
        await harness.pool.acquire(QUICKJS, "ann")


async def test_real_owners_run_in_separate_processes_which_they_reuse() -> None:
    async with hutch.Hutch(quickjs_processes=1) as h:
        kernel = h._kernel
        assert kernel is not None
        for owner in ("ann", "bob", "ann"):
            assert (await h.run("1 + 1", owner=owner)).result == 2
        owners = {key[1]: set(mine) for key, mine in kernel.pool.runners.shared.items()}
        assert set(owners) == {"ann", "bob"}
        assert owners["ann"].isdisjoint(owners["bob"])
        assert kernel.pool.stats().counters.started == 2


async def test_real_exhausted_pool_serves_all_in_turn() -> None:
    async with hutch.Hutch(max_processes=2, deno_warm=1) as h:
        results = await asyncio.gather(*(h.run(f"{n} * 2", engine="deno") for n in range(12)))
    assert [each.result for each in results] == [n * 2 for n in range(12)]
