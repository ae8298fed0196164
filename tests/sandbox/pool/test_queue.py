"""The pool's queue, in which owners take turns."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections import Counter

from tests.sandbox.fake_runners import PoolHarness, settle

import hutch
from hutch.sandbox.pool.queue import Waiter, WaitQueue
from hutch.sandbox.pool.shares import PoolShares
from hutch.sandbox.runner.profile import profile_for
from hutch.settings import Settings

QUICKJS, DENO = profile_for("quickjs"), profile_for("deno")


class OneProcess:
    """A pool with one process. Each execution ends as soon as it gets the process."""

    def __init__(self, **settings: object) -> None:
        self.harness = PoolHarness(**{"max_processes": 1, "deno_warm": 0, "max_queue": 20_000, **settings})
        self.order: list[str] = []
        self._served = asyncio.Condition()
        self.tasks: list[asyncio.Task[None]] = []

    async def block(self) -> None:
        self._first = await self.harness.pool.acquire(DENO, "first")

    async def queue(self, owner: str, count: int) -> None:
        self.tasks += [asyncio.create_task(self._wait(owner)) for _ in range(count)]
        await settle()

    async def _wait(self, owner: str) -> None:
        runner = await self.harness.pool.acquire(DENO, owner)
        async with self._served:
            self.order.append(owner)
            self._served.notify_all()
        self.harness.pool.release(runner, owner=owner)

    async def serve(self, count: int) -> list[str]:
        """Ends the first execution, which holds the process. Returns the owners of the next `count`
        executions.
        """
        self.harness.pool.release(self._first, owner="first")
        return await self.next(count)

    async def next(self, count: int) -> list[str]:
        async with asyncio.timeout(60), self._served:
            await self._served.wait_for(lambda: len(self.order) >= count)
        return self.order[:count]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.harness.pool.close()


async def test_one_execution_beside_ten_thousand_of_another_owner_is_next() -> None:
    pool = OneProcess()
    await pool.block()
    await pool.queue("greedy", 10_000)
    assert pool.harness.pool.stats().waiting == 10_000
    await pool.queue("bob", 1)
    assert "bob" in await pool.serve(2)
    await pool.close()
    assert pool.harness.pool.stats().waiting == 0


async def test_owners_take_turns() -> None:
    pool = OneProcess()
    await pool.block()
    for owner in ("ann", "bob", "cyd"):
        await pool.queue(owner, 4)
    assert (await pool.serve(12)) == ["ann", "bob", "cyd"] * 4
    await pool.close()


async def test_weights_decide_how_many_turns_an_owner_gets() -> None:
    pool = OneProcess()
    pool.harness.pool.shares.set_weight("ann", 3)
    await pool.block()
    await pool.queue("ann", 100)
    await pool.queue("bob", 100)
    served = Counter(await pool.serve(80))
    assert abs(served["ann"] - 60) <= 2
    await pool.close()


async def test_idle_owner_saves_up_one_turn_at_most() -> None:
    pool = OneProcess()
    await pool.block()
    await pool.queue("ann", 60)
    await pool.serve(30)
    await pool.queue("late", 20)
    served = Counter((await pool.next(50))[30:])
    assert 8 <= served["late"] <= 11
    await pool.close()


async def test_long_executions_of_one_owner_do_not_delay_another() -> None:
    harness = PoolHarness(max_processes=5, max_processes_per_owner=0, deno_warm=0)
    held = [await harness.pool.acquire(DENO, "ann") for _ in range(4)]
    more = [asyncio.create_task(harness.pool.acquire(DENO, "ann")) for _ in range(50)]
    await settle()
    for _ in range(20):
        async with asyncio.timeout(5):
            runner = await harness.pool.acquire(DENO, "bob")
        harness.pool.release(runner, owner="bob")
    assert all(not task.done() for task in more)
    for task in more:
        task.cancel()
    for runner in held:
        harness.pool.release(runner, owner="ann")
    await harness.pool.close()


async def test_one_warm_runner_stays_for_newcomers_while_owners_compete() -> None:
    harness = PoolHarness(max_processes=10, deno_warm=2)
    harness.pool.keep_warm(DENO, 2)
    await settle()
    for owner in ("ann", "bob"):
        harness.pool.release(await harness.pool.acquire(DENO, owner), owner=owner)
    await settle()
    assert harness.pool.stats().warm == {"deno": 2}
    harness.launch_allowed.clear()
    await harness.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(harness.pool.acquire(DENO, "ann"))
    await settle()
    assert not waiting.done()
    async with asyncio.timeout(5):
        await harness.pool.acquire(DENO, "newcomer")
    harness.launch_allowed.set()
    async with asyncio.timeout(5):
        await waiting
    await harness.pool.close()


async def test_newcomer_gets_the_runner_that_has_been_ready_longest() -> None:
    harness = PoolHarness(max_processes=40, deno_warm=2)
    harness.pool.keep_warm(DENO, 2)
    await settle()
    for _ in range(3):
        for owner in ("ann", "bob"):
            harness.pool.release(await harness.pool.acquire(DENO, owner), owner=owner)
            await settle()
    oldest = harness.pool.runners.warm[DENO][0]
    for owner in ("ann", "bob", "bob", "ann"):
        # Owners do not always take their turns in the same order.
        runner = await harness.pool.acquire(DENO, owner)
        assert runner is not oldest
        harness.pool.release(runner, owner=owner)
        await settle()
    assert await harness.pool.acquire(DENO, "newcomer") is oldest
    await harness.pool.close()


async def test_single_owner_may_take_the_last_warm_runner() -> None:
    harness = PoolHarness(max_processes=10, deno_warm=2)
    harness.pool.keep_warm(DENO, 2)
    await settle()
    harness.launch_allowed.clear()
    async with asyncio.timeout(5):
        for _ in range(2):
            await harness.pool.acquire(DENO, "ann")
    await harness.pool.close()


async def test_owner_whose_processes_are_full_does_not_block_the_next_owner() -> None:
    harness = PoolHarness(max_processes=4, quickjs_vms=1, quickjs_processes=1)
    await harness.pool.acquire(QUICKJS, "ann")
    waiting = asyncio.create_task(harness.pool.acquire(QUICKJS, "ann"))
    await settle()
    async with asyncio.timeout(5):
        await asyncio.gather(*(harness.pool.acquire(QUICKJS, owner) for owner in ("bob", "cyd")))
    assert not waiting.done()
    waiting.cancel()
    await harness.pool.close()


async def test_executions_in_shared_processes_take_turns_too() -> None:
    harness = PoolHarness(owners_share=True, quickjs_vms=1, max_processes=1)
    runner = await harness.pool.acquire(QUICKJS, "ann")
    order: list[str] = []

    async def wait(owner: str) -> None:
        runner = await harness.pool.acquire(QUICKJS, owner)
        order.append(owner)
        harness.pool.release(runner, owner=owner)

    tasks = [asyncio.create_task(wait(owner)) for owner in ("ann", "ann", "ann", "bob")]
    await settle()
    harness.pool.release(runner, owner="ann")
    async with asyncio.timeout(5):
        await asyncio.gather(*tasks)
    assert order.index("bob") == 0
    await harness.pool.close()


def queue_of(owners: int, each: int) -> tuple[WaitQueue, list[Waiter]]:
    queue = WaitQueue(PoolShares(Settings()))
    loop = asyncio.get_running_loop()
    waiters = [
        Waiter(DENO, f"owner-{number}", loop.create_future()) for number in range(owners) for _ in range(each)
    ]
    for waiter in waiters:
        queue.add(waiter)
    return queue, waiters


async def test_waiters_that_give_up_leave_nothing_behind() -> None:
    queue, waiters = queue_of(3, 2)
    for waiter in waiters:
        queue.remove(waiter)
        queue.remove(waiter)
    assert len(queue) == 0
    assert [*queue] == []


async def test_owners_that_give_up_again_and_again_do_not_fill_the_queue() -> None:
    queue, [stays] = queue_of(1, 1)
    tracemalloc.start()
    try:
        for number in range(1_000):
            waiter = Waiter(DENO, f"passing-{number}", asyncio.get_running_loop().create_future())
            queue.add(waiter)
            queue.remove(waiter)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [*queue] == [stays]
    # The cancelled entries were removed. Otherwise, 1000 cancelled entries would take half a megabyte.
    assert used < 100_000


async def test_planned_order_follows_the_turns() -> None:
    queue, _ = queue_of(3, 3)
    owners = [waiter.owner for waiter in queue.in_order(lambda waiter: waiter.owner != "owner-1")]
    assert owners == ["owner-0", "owner-2"] * 3


async def test_removing_does_not_get_slower_with_the_executions_of_an_owner() -> None:
    queue, waiters = queue_of(2, 20_000)
    began = time.monotonic()
    for waiter in reversed(waiters):
        queue.remove(waiter)
    assert len(queue) == 0
    assert time.monotonic() - began < 5


async def test_real_execution_starts_beside_many_waiting_ones_of_another_owner() -> None:
    """Idle executions of the owner "ann" hold all processes of her share, and more of her executions wait."""
    async with hutch.Hutch(max_processes=5, deno_warm=0, quickjs_warm=0) as h:
        sleep = "await new Promise((done) => setTimeout(done, 60_000))"
        sleeping = [
            asyncio.create_task(h.run(sleep, engine="deno", owner="ann", timeout_ms=60_000))
            for _ in range(30)
        ]
        async with asyncio.timeout(30):
            for engine in ("deno", "quickjs"):
                result = await h.run("1 + 1", engine=engine, owner="bob")  # type: ignore[arg-type]
                assert result.result == 2
        assert not any(task.done() for task in sleeping)
        for task in sleeping:
            task.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)
