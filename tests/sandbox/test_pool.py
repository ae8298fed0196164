"""The pool: who gets a runner, when, and what becomes of it. Its rules with runners that are played;
that real ones follow them, with real processes."""

from __future__ import annotations

import asyncio

import pytest
from tests.sandbox.played import Played, Stage, settle

import hutch
from hutch.errors import Busy, SandboxUnavailable
from hutch.sandbox.profile import Profile, profile_for
from hutch.session.host import Outcome

QUICKJS, DENO = profile_for("quickjs"), profile_for("deno")
PACKAGES = [Profile("npm", told=b"%d" % number) for number in range(4)]


async def test_executions_of_one_owner_share_a_process_and_owners_do_not() -> None:
    stage = Stage()
    first = await stage.pool.acquire(QUICKJS, "ann")
    assert await stage.pool.acquire(QUICKJS, "ann") is first
    assert await stage.pool.acquire(QUICKJS, "bob") is not first
    await stage.pool.close()


async def test_owners_share_a_process_when_the_setting_says_so() -> None:
    stage = Stage(owners_share=True)
    first = await stage.pool.acquire(QUICKJS, "ann")
    assert await stage.pool.acquire(QUICKJS, "bob") is first
    await stage.pool.close()


async def test_a_process_that_had_an_owner_is_never_given_to_another() -> None:
    stage = Stage(max_processes=1)
    first = await stage.pool.acquire(QUICKJS, "ann")
    stage.pool.release(first)
    second = await stage.pool.acquire(QUICKJS, "bob")
    assert second is not first
    assert first.exited
    await stage.pool.close()


async def test_load_brings_a_second_process_of_the_same_owner_up_to_the_limit() -> None:
    stage = Stage(quickjs_processes=2)
    for _ in range(12):
        await stage.pool.acquire(QUICKJS, "ann")
        await settle()
    assert sorted(each.in_flight for each in stage.launched) == [6, 6]
    await stage.pool.close()


async def test_while_others_keep_the_cores_busy_load_brings_an_owner_no_second_process() -> None:
    stage = Stage(quickjs_processes=2)
    await stage.pool.acquire(QUICKJS, "ann")
    await stage.pool.acquire(QUICKJS, "bob")
    for _ in range(12):
        await stage.pool.acquire(QUICKJS, "ann")
        await settle()
    assert sorted(each.in_flight for each in stage.launched) == [1, 13]
    await stage.pool.close()


async def test_a_single_use_runner_is_used_once() -> None:
    stage = Stage(deno_warm=0)
    first = await stage.pool.acquire(DENO, "ann")
    stage.pool.release(first)
    await settle()
    assert first.exited
    assert await stage.pool.acquire(DENO, "ann") is not first
    await stage.pool.close()


async def test_warm_runners_are_kept_ready_and_replaced_when_taken() -> None:
    stage = Stage()
    stage.pool.warm(DENO, 2)
    await settle()
    assert stage.pool.stats().warm == {"deno": 2}
    taken = await stage.pool.acquire(DENO, "ann")
    assert taken in stage.launched[:2]
    stage.pool.release(taken)
    await settle()
    assert stage.pool.stats().warm == {"deno": 2}
    await stage.pool.close()


async def test_who_waits_longest_is_served_first() -> None:
    stage = Stage(max_processes=1, deno_warm=0)
    first = await stage.pool.acquire(DENO, "ann")
    order: list[int] = []

    async def wait(number: int) -> None:
        runner = await stage.pool.acquire(DENO, "ann")
        order.append(number)
        stage.pool.release(runner)

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(wait(number)))
        await settle()
    assert stage.pool.stats().waiting == 4
    stage.pool.release(first)
    async with asyncio.timeout(10):
        await asyncio.gather(*tasks)
    assert order == [0, 1, 2, 3]
    await stage.pool.close()


async def test_a_queue_for_one_engine_does_not_hold_up_the_other() -> None:
    stage = Stage(max_processes=2, deno_warm=0)
    quick = await stage.pool.acquire(QUICKJS, "ann")
    await stage.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(stage.pool.acquire(DENO, "ann"))
    await settle()
    async with asyncio.timeout(5):
        assert await stage.pool.acquire(QUICKJS, "ann") is quick
    waiting.cancel()
    await stage.pool.close()


async def test_a_wait_that_is_too_long_is_busy_with_a_time_to_come_back() -> None:
    stage = Stage(max_processes=1, queue_seconds=0.02, deno_warm=0)
    await stage.pool.acquire(DENO, "ann")
    with pytest.raises(Busy, match=r"No place came free within 0.02 s") as caught:
        await stage.pool.acquire(DENO, "ann")
    assert caught.value.retry_after >= 1
    assert stage.pool.stats().tally.refused == 1
    assert stage.pool.stats().waiting == 0
    await stage.pool.close()


async def test_it_is_told_why_processes_ended_and_how_long_executions_waited() -> None:
    stage = Stage(max_processes=2, deno_warm=0, recycle_after=1, idle_seconds=0)
    pool = stage.pool
    pool.release(await pool.acquire(DENO, "ann"))
    recycled = await pool.acquire(QUICKJS, "ann")
    recycled.executions = 1
    pool.release(recycled)
    idle = await pool.acquire(QUICKJS, "ann")
    pool.release(idle)
    idle.idle_since -= 1
    pool._tidy()
    lost = await pool.acquire(QUICKJS, "ann")
    lost.kill()
    await settle()
    first = await pool.acquire(QUICKJS, "ann")
    pool.release(first)
    await pool.acquire(DENO, "bo")
    # There is room for two: who idles gives way.
    await pool.acquire(DENO, "bo")
    tally = pool.stats().tally
    assert tally.ended == {"used": 1, "recycled": 1, "idle": 1, "lost": 1, "crowded out": 1}
    assert (tally.started, tally.waited, tally.refused) == (7, 7, 0)
    assert tally.waited_seconds >= 0
    await pool.close()


async def test_a_full_queue_is_busy_at_once() -> None:
    stage = Stage(max_processes=1, max_queue=1, deno_warm=0)
    await stage.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(stage.pool.acquire(DENO, "ann"))
    await settle()
    with pytest.raises(Busy, match="1 executions are waiting already"):
        await stage.pool.acquire(DENO, "ann")
    waiting.cancel()
    await stage.pool.close()


async def test_who_stops_waiting_leaves_no_trace_and_takes_no_runner_along() -> None:
    stage = Stage(max_processes=1, deno_warm=0)
    stage.gate.clear()
    gone = asyncio.create_task(stage.pool.acquire(DENO, "ann"))
    await settle()
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    stage.gate.set()
    async with asyncio.timeout(10):
        runner = await stage.pool.acquire(DENO, "ann")
    assert runner.in_flight == 1
    assert stage.alive == 1
    await stage.pool.close()


async def test_a_runner_given_in_the_moment_of_cancelling_comes_back() -> None:
    stage = Stage()
    stage.gate.clear()
    task = asyncio.create_task(stage.pool.acquire(QUICKJS, "ann"))
    await settle()
    # Due before the waiter can wake up with the runner that it is about to be given.
    stage.before_return = lambda: asyncio.get_running_loop().call_soon(task.cancel)
    stage.gate.set()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()
    assert stage.launched[0].in_flight == 0
    await stage.pool.close()


async def test_a_process_is_replaced_after_its_share_of_executions() -> None:
    stage = Stage(recycle_after=2)
    first = await stage.pool.acquire(QUICKJS, "ann")
    first.executions = 2
    stage.pool.release(first)
    assert first.exited
    assert await stage.pool.acquire(QUICKJS, "ann") is not first
    await stage.pool.close()


async def test_an_unresponsive_runner_gets_nothing_new_and_goes_unless_it_answers() -> None:
    for answers in (True, False):
        stage = Stage(quickjs_processes=2)
        runner = await stage.pool.acquire(QUICKJS, "ann")
        session = runner.link.open("e", "", hutch.session.host.Limits(), [])
        runner.link.forget(session)
        stage.pool.release(runner, Outcome(ok=False, unresponsive=True), session)
        assert await stage.pool.acquire(QUICKJS, "ann") is not runner
        if answers:
            runner.link.on_late("e")
            assert runner.suspects == set()
        else:
            async with asyncio.timeout(10):
                await runner.wait()
        await stage.pool.close()


async def test_a_failing_start_is_tried_again() -> None:
    stage = Stage()
    stage.failures = [SandboxUnavailable("no memory"), OSError("no processes")]
    async with asyncio.timeout(10):
        assert (await stage.pool.acquire(QUICKJS, "ann")).alive
    await stage.pool.close()


async def test_a_start_that_keeps_failing_is_told_to_who_waits() -> None:
    stage = Stage()
    stage.failures = [SandboxUnavailable("no memory") for _ in range(3)]
    async with asyncio.timeout(10):
        with pytest.raises(SandboxUnavailable, match="no memory"):
            await stage.pool.acquire(QUICKJS, "ann")
    assert (await stage.pool.acquire(QUICKJS, "ann")).alive
    await stage.pool.close()


async def test_failing_starts_of_one_kind_are_not_counted_with_another_s() -> None:
    stage = Stage()
    stage.failures = [SandboxUnavailable("no memory") for _ in range(4)]
    async with asyncio.timeout(10):
        both = await asyncio.gather(stage.pool.acquire(QUICKJS, "ann"), stage.pool.acquire(DENO, "ann"))
    assert all(runner.alive for runner in both)
    await stage.pool.close()


async def test_a_process_that_dies_is_forgotten_and_replaced() -> None:
    stage = Stage()
    first = await stage.pool.acquire(QUICKJS, "ann")
    first.kill()
    await settle()
    assert stage.pool.stats().processes == {}
    assert await stage.pool.acquire(QUICKJS, "ann") is not first
    await stage.pool.close()


async def test_idle_processes_beyond_the_warm_ones_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.HOUSEKEEPING_SECONDS", 0.01)
    stage = Stage(idle_seconds=0.0)
    stage.pool.warm(QUICKJS, 1)
    runner = await stage.pool.acquire(QUICKJS, "ann")
    stage.pool.release(runner)
    async with asyncio.timeout(10):
        await runner.wait()
    await settle()
    assert stage.pool.stats().warm == {"quickjs": 1}
    await stage.pool.close()


async def test_close_ends_everything_and_lets_nobody_in() -> None:
    stage = Stage(max_processes=2, deno_warm=0)
    await stage.pool.acquire(QUICKJS, "ann")
    await stage.pool.acquire(DENO, "ann")
    waiting = asyncio.create_task(stage.pool.acquire(DENO, "ann"))
    await settle()
    await stage.pool.close()
    assert stage.alive == 0
    with pytest.raises(Busy, match="shutting down"):
        await waiting
    with pytest.raises(Busy, match="shutting down"):
        await stage.pool.acquire(QUICKJS, "ann")


async def test_real_owners_run_in_different_processes_and_the_same_one_again_in_its_own() -> None:
    async with hutch.Hutch(quickjs_processes=1) as h:
        kernel = h._kernel
        assert kernel is not None
        for owner in ("ann", "bob", "ann"):
            assert (await h.run("1 + 1", owner=owner)).result == 2
        owners = {key[1]: set(mine) for key, mine in kernel.pool._shared.items()}
        assert set(owners) == {"ann", "bob"}
        assert owners["ann"].isdisjoint(owners["bob"])
        assert kernel.pool.stats().tally.started == 2


async def test_a_real_pool_that_is_drained_serves_everybody_in_turn() -> None:
    async with hutch.Hutch(max_processes=2, deno_warm=1) as h:
        results = await asyncio.gather(*(h.run(f"{n} * 2", engine="deno") for n in range(12)))
    assert [each.result for each in results] == [n * 2 for n in range(12)]


# --- spares ---


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be done a moment later, or now and then, is done at once."""
    monkeypatch.setattr("hutch.sandbox.pool.REFILL_AFTER", 0)
    monkeypatch.setattr("hutch.sandbox.pool.HOUSEKEEPING_SECONDS", 0.01)


async def used(stage: Stage, profile: Profile) -> Played:
    """A runner that has served one execution to its end."""
    runner = await stage.pool.acquire(profile, "ann")
    runner.executions += 1
    stage.pool.release(runner, Outcome(ok=True))
    await settle()
    assert isinstance(runner, Played)
    return runner


async def unused() -> Stage:
    """One whose only spare nobody used for as long as one is kept."""
    stage = Stage(spare_seconds=0.02)
    await used(stage, PACKAGES[0])
    async with asyncio.timeout(10):
        for each in stage.launched:
            await each.wait()
    await settle()
    return stage


def waiting(stage: Stage) -> list[Profile]:
    """The packages of which a spare waits."""
    return [each.profile for each in stage.launched if each.alive and each.profile in PACKAGES]


async def test_package_that_was_used_has_one_spare_which_serves_once(soon: None) -> None:
    stage = Stage()
    first = await used(stage, PACKAGES[0])
    await settle()
    assert first.exited
    [spare] = [each for each in stage.launched if each.alive]
    assert await used(stage, PACKAGES[0]) is spare
    await settle()
    assert spare.exited
    assert (len(stage.launched), waiting(stage)) == (3, PACKAGES[:1])
    await stage.pool.close()


async def test_spares_of_packages_are_bounded_in_number(soon: None) -> None:
    stage = Stage(max_spares=2, max_processes=16)
    for profile in PACKAGES:
        await used(stage, profile)
    async with asyncio.timeout(10):
        for each in stage.launched:
            if each.profile in PACKAGES[:2]:
                await each.wait()
    await settle()
    assert waiting(stage) == PACKAGES[2:]
    assert stage.pool.stats().warm == {"npm": 2}
    await stage.pool.close()


async def test_spares_are_bounded_in_age(soon: None) -> None:
    stage = await unused()
    assert (waiting(stage), stage.pool.stats().warm) == ([], {})
    await stage.pool.close()


async def test_spares_are_bounded_in_memory_and_the_oldest_goes(soon: None) -> None:
    stage = Stage(spare_bytes=100, max_processes=16)
    for profile in PACKAGES[:2]:
        await used(stage, profile)
    await settle()
    old, new = (each for each in stage.launched if each.alive)
    old.idle_since, new.idle_since = 1.0, 2.0
    old.memory = new.memory = 60
    async with asyncio.timeout(10):
        await old.wait()
    await settle()
    assert waiting(stage) == [new.profile]
    await stage.pool.close()


async def test_spare_that_ends_by_itself_is_not_replaced(soon: None) -> None:
    stage = Stage()
    await used(stage, PACKAGES[0])
    await settle()
    [spare] = [each for each in stage.launched if each.alive]
    spare.kill()
    await settle()
    assert waiting(stage) == []
    assert (await used(stage, PACKAGES[0])).exited
    await stage.pool.close()


async def test_start_that_keeps_failing_is_not_tried_for_a_spare_again(soon: None) -> None:
    stage = Stage()
    runner = await stage.pool.acquire(PACKAGES[0], "ann")
    stage.failures = [SandboxUnavailable("its files are gone") for _ in range(3)]
    stage.pool.release(runner, Outcome(ok=True))
    async with asyncio.timeout(10):
        while stage.failures:  # noqa: ASYNC110 - nobody says when
            await asyncio.sleep(0.001)
    stage.pool.release(await stage.pool.acquire(DENO, "ann"), Outcome(ok=True))
    await settle()
    assert [each.profile for each in stage.launched].count(PACKAGES[0]) == 1
    await stage.pool.close()


async def test_spares_give_way_to_who_waits(soon: None) -> None:
    stage = Stage(max_processes=2)
    await used(stage, PACKAGES[0])
    await used(stage, PACKAGES[1])
    await settle()
    assert stage.alive <= 2
    async with asyncio.timeout(10):
        runners = [await stage.pool.acquire(profile, "ann") for profile in PACKAGES[2:]]
    assert [each.profile for each in runners] == PACKAGES[2:]
    assert stage.alive == 2
    await stage.pool.close()


async def test_what_a_spare_was_told_is_forgotten_when_nobody_uses_it(soon: None) -> None:
    stage = await unused()
    pool = stage.pool
    assert not pool._spares.profiles()
    assert not any(PACKAGES[0] in held for held in (pool._warm, pool._targets, pool._starting))
    await stage.pool.close()


async def test_what_did_not_load_in_a_whole_execution_gets_no_spare() -> None:
    stage = Stage()
    profile = Profile("npm", told=b"{}")
    runner = await stage.pool.acquire(profile, "ann")
    stage.launched[0].imported = False
    stage.pool.release(runner)
    await settle()
    stage.pool._fill()
    await settle()
    assert (len(stage.launched), stage.alive) == (1, 0)
    await stage.pool.close()
