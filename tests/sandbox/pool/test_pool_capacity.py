"""Capacity of the pool: reserved starts and evictions."""

from __future__ import annotations

import asyncio

from tests.sandbox.fake_runners import PoolHarness, settle

from hutch.sandbox.runner.profile import profile_for

QUICKJS, DENO = profile_for("quickjs"), profile_for("deno")


async def test_reserved_start_comes_before_waiters_once_there_is_capacity() -> None:
    harness = PoolHarness(max_processes=1, deno_warm=0)
    first = await harness.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    harness.pool.reserve_start(QUICKJS)
    harness.pool.reserve_start(QUICKJS)
    harness.pool.release(first)
    async with asyncio.timeout(10):
        await waiting
    assert [each.profile for each in harness.launched] == [DENO, QUICKJS, DENO]
    await harness.pool.close()


async def test_reserved_start_evicts_nothing_and_happens_once() -> None:
    harness = PoolHarness(max_processes=2, deno_warm=0)
    bob = await harness.pool.acquire(QUICKJS, "bob")
    deno = await harness.pool.acquire(DENO, "ann")
    harness.pool.reserve_start(QUICKJS)
    waiting = asyncio.create_task(harness.pool.acquire(QUICKJS, "ann"))
    await settle()
    harness.pool.release(deno)
    async with asyncio.timeout(10):
        await waiting
    await settle()
    assert bob.is_alive
    assert [each.profile for each in harness.launched] == [QUICKJS, DENO, QUICKJS]
    await harness.pool.close()


async def test_single_use_runner_evicts_an_idle_process_but_not_a_recently_used_one() -> None:
    harness = PoolHarness(max_processes=2, deno_warm=0)
    quick = await harness.pool.acquire(QUICKJS, "ann")
    harness.pool.release(quick)
    await harness.pool.acquire(DENO, "ann")
    quick.idle_since = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    assert quick.is_alive
    quick.idle_since -= 1
    async with asyncio.timeout(10):
        await waiting
    assert not quick.is_alive
    await harness.pool.close()


async def test_recently_used_process_is_evicted_if_no_single_use_runner_is_about_to_end() -> None:
    harness = PoolHarness(max_processes=1, deno_warm=0)
    quick = await harness.pool.acquire(QUICKJS, "ann")
    harness.pool.release(quick)
    quick.idle_since = asyncio.get_running_loop().time() + 3600
    async with asyncio.timeout(10):
        await harness.pool.acquire(DENO, "ann")
    assert not quick.is_alive
    await harness.pool.close()
