"""CPU priority of the processes of owners that use much CPU time."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.sandbox.fake_runners import FakeRunner, PoolHarness
from tests.sandbox.sandboxes import open_sandbox
from tests.support.processes import descendants
from tests.support.waiting import eventually

import hutch
from hutch.sandbox.pool import cpu_shares
from hutch.sandbox.pool.cpu_shares import CpuShares
from hutch.sandbox.pool.inventory import RunnerInventory
from hutch.sandbox.runner.profile import profile_for

QUICKJS = profile_for("quickjs")
DENO = profile_for("deno")


class ComputingRunner(FakeRunner):
    """A shared runner whose CPU time is set by the test."""

    def __init__(self, owner: str) -> None:
        super().__init__(QUICKJS)
        self.owner = self.holder = owner
        self.in_flight = 1
        self.seconds = 0.0

    def cpu_seconds(self) -> float:
        return self.seconds


def ticks(shares: CpuShares, used: dict[ComputingRunner, float], count: int = 40) -> None:
    """Simulates ticks. In each tick, every runner uses its number of seconds of CPU time."""
    for _ in range(count):
        for runner, seconds in used.items():
            runner.seconds += seconds
        shares._tick()


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_shares, "cores", lambda: 2)


def shares_of(*runners: ComputingRunner) -> CpuShares:
    inventory = RunnerInventory()
    for runner in runners:
        inventory.shared.setdefault((QUICKJS, str(runner.owner)), []).append(runner)
    return CpuShares(inventory)


async def test_only_owners_that_use_much_run_in_the_background() -> None:
    busy, newcomer = [ComputingRunner(f"busy-{n}") for n in range(4)], ComputingRunner("newcomer")
    shares = shares_of(*busy, newcomer)
    ticks(shares, {**dict.fromkeys(busy, 0.02), newcomer: 0.0005})
    assert [runner.is_in_background for runner in busy] == [True] * 4
    assert not newcomer.is_in_background
    ticks(shares, dict.fromkeys(busy, 0.0), count=1)
    assert not any(runner.is_in_background for runner in busy), "nobody computes any more"
    shares.close()


async def test_owner_below_the_average_keeps_its_priority_until_it_exceeds_the_average() -> None:
    """The CPU time of a new process includes the compilation of QuickJS, half of a busy owner's time."""
    busy, other = [ComputingRunner(f"busy-{n}") for n in range(4)], ComputingRunner("other")
    shares = shares_of(*busy, other)
    ticks(shares, {**dict.fromkeys(busy, 0.02), other: 0.014})
    assert not other.is_in_background
    ticks(shares, {**dict.fromkeys(busy, 0.02), other: 0.03})
    assert other.is_in_background
    ticks(shares, {**dict.fromkeys(busy, 0.02), other: 0.014})
    assert other.is_in_background, "it does not change back and forth"
    ticks(shares, {**dict.fromkeys(busy, 0.02), other: 0.005})
    assert not other.is_in_background
    shares.close()


@pytest.mark.parametrize(
    "used",
    [
        pytest.param({"a": 0.05, "a2": 0.05, "a3": 0.05}, id="only one owner"),
        pytest.param({"a": 0.05, "b": 0.05}, id="a core for each process"),
        pytest.param({"a": 0.0012, "b": 0.0012, "c": 0.0012}, id="little CPU time"),
    ],
)
async def test_owners_that_do_not_compete_keep_their_priority(used: dict[str, float]) -> None:
    chosen = {ComputingRunner(name[0]): seconds for name, seconds in used.items()}
    shares = shares_of(*chosen)
    ticks(shares, chosen)
    assert not any(runner.is_in_background for runner in chosen)
    shares.close()


async def test_real_process_of_a_busy_owner_gets_a_lower_priority_and_gets_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu_shares, "cores", lambda: 1)
    async with hutch.Hutch(quickjs_warm=0) as h:
        pool = h._kernel.pool
        spin = [
            asyncio.create_task(h.run("for (;;);", owner=owner, timeout_ms=60_000))
            for owner in ("ann", "bob")
        ]

        def priorities() -> set[int]:
            pids = [runner._guest_pid for runner in pool.runners.all_shared()]  # type: ignore[attr-defined]
            return {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids if pid}

        own = os.getpriority(os.PRIO_PROCESS, 0)
        await eventually(lambda: priorities() == {min(19, own + 10)})
        for task in spin:
            task.cancel()
        await asyncio.gather(*spin, return_exceptions=True)
        for owner in ("ann", "bob"):
            # If the priority of a runner cannot be restored, the runner is replaced. So the code runs in any
            # case.
            assert (await h.run("1 + 1", owner=owner)).result == 2
        await eventually(lambda: own in priorities())


@pytest.mark.parametrize("can_restore", [True, False])
async def test_runners_start_in_the_background_while_several_owners_have_executions(
    monkeypatch: pytest.MonkeyPatch, *, can_restore: bool
) -> None:
    monkeypatch.setattr(cpu_shares, "can_restore", lambda: can_restore)
    fake = PoolHarness(deno_warm=0)
    runners = [await fake.pool.acquire(DENO, owner) for owner in ("ann", "bob", "cat")]
    assert fake.background_starts == [False, False, can_restore]
    assert not runners[-1].is_in_background, "its owner uses little CPU time"
    for runner, owner in zip(runners, ("ann", "bob", "cat"), strict=True):
        fake.pool.release(runner, owner=owner)
    await fake.pool.close()


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_real_process_that_starts_in_the_background_gets_a_lower_priority(engine: str) -> None:
    async with open_sandbox() as sandbox:
        process = await sandbox.launcher.launch(profile_for(engine), in_background=True)
        try:
            assert process.is_in_background
            own = os.getpriority(os.PRIO_PROCESS, 0)
            pids = [process.pid, *descendants(process.pid)]
            assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids} == {min(19, own + 10)}
            # The kernel schedules sessions as groups, so the session has a priority, too.
            assert {os.getsid(pid) for pid in pids} == {process.pid}
        finally:
            process.kill()
            await process.wait()
