"""Whose place is whose where there are no more: what is claimed, what gives way, and what does not."""

from __future__ import annotations

import asyncio

from tests.sandbox.played import Stage, settle

from hutch.sandbox.profile import profile_for

QUICKJS, DENO = profile_for("quickjs"), profile_for("deno")


async def test_what_is_claimed_is_started_before_whoever_waits_once_there_is_room() -> None:
    stage = Stage(max_processes=1, deno_warm=0)
    first = await stage.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(stage.pool.acquire(DENO, "ann"))
    await settle()
    stage.pool.claim(QUICKJS)
    stage.pool.claim(QUICKJS)
    stage.pool.release(first)
    async with asyncio.timeout(10):
        await waiting
    assert [each.profile for each in stage.launched] == [DENO, QUICKJS, DENO]
    await stage.pool.close()


async def test_nobody_is_ended_for_what_is_claimed_and_it_is_not_started_twice() -> None:
    stage = Stage(max_processes=2, deno_warm=0)
    bob = await stage.pool.acquire(QUICKJS, "bob")
    deno = await stage.pool.acquire(DENO, "ann")
    stage.pool.claim(QUICKJS)
    waiting = asyncio.create_task(stage.pool.acquire(QUICKJS, "ann"))
    await settle()
    stage.pool.release(deno)
    async with asyncio.timeout(10):
        await waiting
    await settle()
    assert bob.alive
    assert [each.profile for each in stage.launched] == [QUICKJS, DENO, QUICKJS]
    await stage.pool.close()


async def test_a_single_use_runner_takes_the_place_of_one_that_idles_and_not_of_one_just_used() -> None:
    stage = Stage(max_processes=2, deno_warm=0)
    quick = await stage.pool.acquire(QUICKJS, "ann")
    stage.pool.release(quick)
    await stage.pool.acquire(DENO, "ann")
    quick.idle_since = asyncio.get_running_loop().time()
    waiting = asyncio.create_task(stage.pool.acquire(DENO, "ann"))
    await settle()
    assert quick.alive
    quick.idle_since -= 1
    async with asyncio.timeout(10):
        await waiting
    assert not quick.alive
    await stage.pool.close()


async def test_one_just_used_gives_way_at_once_where_no_single_use_runner_is_about_to_end() -> None:
    stage = Stage(max_processes=1, deno_warm=0)
    quick = await stage.pool.acquire(QUICKJS, "ann")
    stage.pool.release(quick)
    quick.idle_since = asyncio.get_running_loop().time() + 3600
    async with asyncio.timeout(10):
        await stage.pool.acquire(DENO, "ann")
    assert not quick.alive
    await stage.pool.close()
