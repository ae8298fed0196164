"""Shares of owners in processes and in the queue of the pool."""

from __future__ import annotations

import asyncio

import pytest
from tests.sandbox.fake_runners import PoolHarness, settle

from hutch.errors import Busy
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile, profile_for

QUICKJS, DENO = profile_for("quickjs"), profile_for("deno")


def shared_pool(**settings: object) -> PoolHarness:
    """Returns a pool with the default shares."""
    return PoolHarness(**{"max_processes_per_owner": 0, "deno_warm": 0, **settings})


async def occupy(harness: PoolHarness, profile: Profile, owner: str, count: int) -> list[Runner]:
    async with asyncio.timeout(10):
        return [await harness.pool.acquire(profile, owner) for _ in range(count)]


@pytest.mark.parametrize("profile", [QUICKJS, DENO])
async def test_newcomer_gets_a_process_although_another_owner_has_its_whole_share(profile: Profile) -> None:
    harness = shared_pool(max_processes=5)
    await occupy(harness, DENO, "ann", 4)
    more = [asyncio.create_task(harness.pool.acquire(DENO, "ann")) for _ in range(3)]
    await settle()
    assert harness.pool.stats().waiting == 3
    await occupy(harness, profile, "bob", 1)
    assert harness.alive_count == 5
    for task in more:
        task.cancel()
    await harness.pool.close()


async def test_two_owners_together_do_not_lock_out_a_third() -> None:
    harness = shared_pool(max_processes=10)
    await occupy(harness, DENO, "ann", 8)
    await occupy(harness, DENO, "bob", 1)
    greedy = asyncio.create_task(harness.pool.acquire(DENO, "bob"))
    await settle()
    assert not greedy.done()
    await occupy(harness, QUICKJS, "cyd", 1)
    greedy.cancel()
    await harness.pool.close()


async def test_waiting_owner_gets_the_next_process_of_its_own_share() -> None:
    harness = shared_pool(max_processes=5)
    first, *_ = await occupy(harness, DENO, "ann", 4)
    waiting = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    harness.pool.release(first)
    async with asyncio.timeout(10):
        await waiting
    await harness.pool.close()


async def test_idle_shared_process_does_not_count_towards_the_share() -> None:
    harness = shared_pool(max_processes=5)
    [quick] = await occupy(harness, QUICKJS, "ann", 1)
    harness.pool.release(quick)
    await occupy(harness, DENO, "ann", 4)
    await harness.pool.close()


async def test_place_of_a_lost_process_is_given_back_once() -> None:
    harness = shared_pool(max_processes=5)
    for _ in range(6):
        for runner in await occupy(harness, DENO, "ann", 4):
            runner.kill()
            await settle()
            harness.pool.release(runner)
    await harness.pool.close()


async def test_owner_without_a_process_is_served_before_an_owner_with_one() -> None:
    harness = shared_pool(max_processes=1)
    [first] = await occupy(harness, DENO, "ann", 1)
    order: list[str] = []

    async def wait(owner: str) -> None:
        runner = await harness.pool.acquire(DENO, owner)
        order.append(owner)
        harness.pool.release(runner)

    tasks = []
    for owner in ("ann", "ann", "bob"):
        tasks.append(asyncio.create_task(wait(owner)))
        await settle()
    # Simulate that the host has not processed the exit of the process yet. So the process still counts for
    # the owner.
    harness.pool.shares.processes.take("ann")
    harness.pool.release(first)
    async with asyncio.timeout(10):
        await tasks[-1]
    harness.pool.shares.processes.give_back("ann")
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert order[0] == "bob"
    await harness.pool.close()


async def test_full_share_of_the_queue_raises_busy_and_other_owners_can_wait() -> None:
    harness = shared_pool(max_processes=1, max_queue=5)
    await occupy(harness, DENO, "ann", 1)
    waiting = [asyncio.create_task(harness.pool.acquire(DENO, "ann")) for _ in range(4)]
    await settle()
    with pytest.raises(Busy, match=r"one owner may have 4 of them \(max_queue_per_owner\)") as caught:
        await harness.pool.acquire(DENO, "ann")
    assert caught.value.retry_after >= 1
    other = asyncio.create_task(harness.pool.acquire(DENO, "bob"))
    await settle()
    assert harness.pool.stats().waiting == 5
    with pytest.raises(Busy, match=r"max_queue\)"):
        await harness.pool.acquire(DENO, "cyd")
    for task in (*waiting, other):
        task.cancel()
    await settle()
    # cyd's execution was refused because the whole queue was full. ann's execution was refused because of
    # ann's share. Only a refusal because of the full queue is counted.
    assert harness.pool.stats().counters.refused == 1
    # All four places in the queue are free again.
    assert harness.pool.shares.queue.may_take("ann", 3, 3)
    await harness.pool.close()


async def test_wait_for_a_process_beyond_the_share_names_the_limit() -> None:
    harness = shared_pool(max_processes=5, queue_seconds=0.02)
    await occupy(harness, DENO, "ann", 4)
    with pytest.raises(Busy, match=r"one owner may have 4 of them \(max_processes_per_owner\)"):
        await harness.pool.acquire(DENO, "ann")
    await harness.pool.close()


async def test_waiters_beyond_the_share_start_no_processes() -> None:
    harness = shared_pool(max_processes=10, max_processes_per_owner=2)
    await occupy(harness, DENO, "ann", 2)
    waiting = [asyncio.create_task(harness.pool.acquire(DENO, "ann")) for _ in range(5)]
    await settle()
    assert len(harness.launched) == 2
    for task in waiting:
        task.cancel()
    await harness.pool.close()


async def test_owner_in_shared_processes_leaves_places_for_executions_of_others() -> None:
    harness = shared_pool(owners_share=True, quickjs_vms=5, queue_seconds=0.02)
    runners = await occupy(harness, QUICKJS, "ann", 4)
    with pytest.raises(Busy, match=r"one owner may have 4 executions in them \(quickjs_vms\)"):
        await harness.pool.acquire(QUICKJS, "ann")
    await occupy(harness, QUICKJS, "bob", 1)
    harness.pool.release(runners[0], owner="ann")
    await occupy(harness, QUICKJS, "cyd", 1)
    await harness.pool.close()


async def test_newcomer_passes_waiters_that_have_their_share_of_shared_processes() -> None:
    harness = shared_pool(owners_share=True, quickjs_vms=5)
    await occupy(harness, QUICKJS, "ann", 4)
    waiting = asyncio.create_task(harness.pool.acquire(QUICKJS, "ann"))
    await settle()
    await occupy(harness, QUICKJS, "bob", 1)
    assert not waiting.done()
    waiting.cancel()
    await harness.pool.close()
