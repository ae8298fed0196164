from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.sandbox import jails

from hutch.sandbox.jail import memory_meter
from hutch.sandbox.jail.memory_meter import MemoryMeter

MIB = 1 << 20
GROWING = (
    "const data = []; setInterval(() => data.length < 200 && data.push(new Uint8Array(4 << 20).fill(1)), 1);"
)
HOLDING = (
    "const data = new Uint8Array(64 << 20).fill(1); console.log('ready'); setInterval(() => data[0]++, 1000);"
)


def feed(child: subprocess.Popen[str], code: str) -> None:
    assert child.stdin is not None
    child.stdin.write(code)
    child.stdin.close()


async def next_sample(meter: MemoryMeter) -> None:
    """Waits for the next sample of the meter. Watches this process with a limit of 0, so the next sample
    certainly exceeds the limit.
    """
    sampled = asyncio.Event()
    meter.watch(os.getpid(), 0, sampled.set)
    await sampled.wait()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("isolation", ["container", "process"])
def test_excess_of_a_guest_is_reported_soon_enough_to_kill_it(isolation: str) -> None:
    async def body(child: subprocess.Popen[str]) -> None:
        meter = MemoryMeter()
        watch = meter.watch(child.pid, 200 * MIB, child.kill)
        try:
            async with asyncio.timeout(jails.TIMEOUT_SECONDS):
                await asyncio.to_thread(child.wait)
                await meter._task
        finally:
            child.kill()
        assert watch.exceeded
        # The meter noticed the limit of 200 MiB not too early, and not long after the process had exceeded
        # it.
        assert 200 * MIB < watch.peak_bytes < 600 * MIB

    with jails.guest(jails.container() if isolation == "container" else jails.process()) as child:
        feed(child, GROWING)
        asyncio.run(body(child))


def test_excess_is_reported_once_and_only_above_the_limit() -> None:
    async def body(child: subprocess.Popen[str]) -> None:
        meter, excesses = MemoryMeter(interval=0.001), asyncio.Queue[None]()
        watch = meter.watch(child.pid, 512 * MIB, lambda: excesses.put_nowait(None))
        async with asyncio.timeout(jails.TIMEOUT_SECONDS):
            await next_sample(meter)
            await next_sample(meter)
            assert watch.peak_bytes > 64 * MIB
            assert not watch.exceeded
            watch.limit_bytes = 32 * MIB
            await excesses.get()
            await next_sample(meter)
            await next_sample(meter)
        meter.close()
        assert excesses.empty()
        # Deno's binary of about 100 MB does not count, because all processes share it.
        assert watch.peak_bytes < 110 * MIB

    with jails.guest(jails.container()) as child:
        feed(child, HOLDING)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        asyncio.run(body(child))


def test_meter_without_watches_has_no_task_and_no_descriptors() -> None:
    async def body() -> None:
        before = descriptors()
        meter, excess = MemoryMeter(interval=0.001), asyncio.Event()
        assert meter._task is None
        watch = meter.watch(os.getpid(), 0, excess.set)
        async with asyncio.timeout(jails.TIMEOUT_SECONDS):
            await excess.wait()
            watch.stop()
            await meter._task
            assert descriptors() == before
            await next_sample(meter)
        meter.close()
        assert descriptors() == before

    asyncio.run(body())


def test_failing_callback_does_not_end_other_watches() -> None:
    async def body() -> None:
        failed = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda *_: failed.set())
        meter = MemoryMeter(interval=0.001)
        meter.watch(os.getpid(), 0, lambda: 1 // 0)
        async with asyncio.timeout(jails.TIMEOUT_SECONDS):
            await failed.wait()
            await next_sample(meter)
        meter.close()

    asyncio.run(body())


def test_watch_of_an_exited_process_ends() -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()

    async def body() -> None:
        meter = MemoryMeter(interval=0.001)
        watch = meter.watch(child.pid, 0, lambda: None)
        async with asyncio.timeout(jails.TIMEOUT_SECONDS):
            await meter._task
        assert not watch.exceeded

    asyncio.run(body())


def test_kernels_that_do_not_list_children_give_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    with jails.guest(jails.container()) as child:
        jails.start_waiting(child)
        expected = sorted(jails.descendants(child.pid))
        assert sorted(memory_meter.process_tree(child.pid)) == expected
        monkeypatch.setattr(memory_meter, "_HAS_CHILDREN", False)
        assert sorted(memory_meter.process_tree(child.pid)) == expected
