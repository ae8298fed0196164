"""Spares of the pool, with fake runners."""

from __future__ import annotations

import asyncio

import pytest
from tests.sandbox.fake_runners import FakeRunner, PoolHarness, settle

from hutch.errors import SandboxUnavailable
from hutch.sandbox.runner.profile import Profile, profile_for
from hutch.session.run import Result

DENO = profile_for("deno")
PACKAGES = [Profile("npm", stdin_payload=b"%d" % number) for number in range(4)]


@pytest.fixture
def no_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pool start spares without a delay, and clean up every 10 ms."""
    monkeypatch.setattr("hutch.sandbox.pool.pool.REFILL_AFTER", 0)
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", 0.01)


async def run_once(harness: PoolHarness, profile: Profile) -> FakeRunner:
    """Simulates one execution. Returns the runner that has served it."""
    runner = await harness.pool.acquire(profile, "ann")
    runner.executions += 1
    harness.pool.release(runner, Result(ok=True))
    await settle()
    assert isinstance(runner, FakeRunner)
    return runner


async def expired_spare() -> PoolHarness:
    """Returns a pool whose only spare has expired."""
    harness = PoolHarness(spare_seconds=0.02)
    await run_once(harness, PACKAGES[0])
    async with asyncio.timeout(10):
        for each in harness.launched:
            await each.wait()
    await settle()
    return harness


def waiting(harness: PoolHarness) -> list[Profile]:
    """Returns the profiles of the packages that have a spare."""
    return [each.profile for each in harness.launched if each.is_alive and each.profile in PACKAGES]


async def test_used_package_has_one_spare_which_serves_once(no_delays: None) -> None:
    harness = PoolHarness()
    first = await run_once(harness, PACKAGES[0])
    await settle()
    assert first.has_exited
    [spare] = [each for each in harness.launched if each.is_alive]
    assert await run_once(harness, PACKAGES[0]) is spare
    await settle()
    assert spare.has_exited
    assert (len(harness.launched), waiting(harness)) == (3, PACKAGES[:1])
    await harness.pool.close()


async def test_number_of_spares_is_limited(no_delays: None) -> None:
    harness = PoolHarness(max_spares=2, max_processes=16)
    for profile in PACKAGES:
        await run_once(harness, profile)
    async with asyncio.timeout(10):
        for each in harness.launched:
            if each.profile in PACKAGES[:2]:
                await each.wait()
    await settle()
    assert waiting(harness) == PACKAGES[2:]
    assert harness.pool.stats().warm == {"npm": 2}
    await harness.pool.close()


async def test_age_of_spares_is_limited(no_delays: None) -> None:
    harness = await expired_spare()
    assert (waiting(harness), harness.pool.stats().warm) == ([], {})
    await harness.pool.close()


async def test_memory_of_spares_is_limited_and_the_oldest_ends(no_delays: None) -> None:
    harness = PoolHarness(spare_bytes=100, max_processes=16)
    for profile in PACKAGES[:2]:
        await run_once(harness, profile)
    await settle()
    old, new = (each for each in harness.launched if each.is_alive)
    old.idle_since, new.idle_since = 1.0, 2.0
    old.memory = new.memory = 60
    async with asyncio.timeout(10):
        await old.wait()
    await settle()
    assert waiting(harness) == [new.profile]
    await harness.pool.close()


async def test_spare_that_exits_by_itself_is_not_replaced(no_delays: None) -> None:
    harness = PoolHarness()
    await run_once(harness, PACKAGES[0])
    await settle()
    [spare] = [each for each in harness.launched if each.is_alive]
    spare.kill()
    await settle()
    assert waiting(harness) == []
    assert (await run_once(harness, PACKAGES[0])).has_exited
    await harness.pool.close()


async def test_start_that_keeps_failing_is_not_retried_for_a_spare(no_delays: None) -> None:
    harness = PoolHarness()
    runner = await harness.pool.acquire(PACKAGES[0], "ann")
    harness.failures = [SandboxUnavailable("its files are gone") for _ in range(3)]
    harness.pool.release(runner, Result(ok=True))
    async with asyncio.timeout(10):
        while harness.failures:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)
    harness.pool.release(await harness.pool.acquire(DENO, "ann"), Result(ok=True))
    await settle()
    assert [each.profile for each in harness.launched].count(PACKAGES[0]) == 1
    await harness.pool.close()


async def test_spares_are_evicted_for_waiters(no_delays: None) -> None:
    harness = PoolHarness(max_processes=2)
    await run_once(harness, PACKAGES[0])
    await run_once(harness, PACKAGES[1])
    await settle()
    assert harness.alive_count <= 2
    async with asyncio.timeout(10):
        runners = [await harness.pool.acquire(profile, "ann") for profile in PACKAGES[2:]]
    assert [each.profile for each in runners] == PACKAGES[2:]
    assert harness.alive_count == 2
    await harness.pool.close()


async def test_stdin_payload_of_an_unused_spare_is_dropped(no_delays: None) -> None:
    harness = await expired_spare()
    pool = harness.pool
    assert not pool.starter.spares.profiles()
    assert not any(
        PACKAGES[0] in profiles
        for profiles in (pool.runners.warm, pool.starter.warm_targets, pool.runners.starting)
    )
    await harness.pool.close()


async def test_profile_whose_preload_does_not_finish_gets_no_spare() -> None:
    harness = PoolHarness()
    profile = Profile("npm", stdin_payload=b"{}")
    runner = await harness.pool.acquire(profile, "ann")
    harness.launched[0].has_imported = False
    harness.pool.release(runner)
    await settle()
    harness.pool.starter.fill()
    await settle()
    assert (len(harness.launched), harness.alive_count) == (1, 0)
    await harness.pool.close()
