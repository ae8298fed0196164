from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.sandbox import jails

from hutch.sandbox import meter as module
from hutch.sandbox.meter import Meter

MIB = 1 << 20
GROWING = (
    "const kept = []; setInterval(() => kept.length < 200 && kept.push(new Uint8Array(4 << 20).fill(1)), 1);"
)
SOME = (
    "const kept = new Uint8Array(64 << 20).fill(1); console.log('ready'); setInterval(() => kept[0]++, 1000);"
)


def feed(child: subprocess.Popen[str], code: str) -> None:
    assert child.stdin is not None
    child.stdin.write(code)
    child.stdin.close()


async def next_look(meter: Meter) -> None:
    """Wait until the meter has looked at something that certainly has more than nothing."""
    looked = asyncio.Event()
    meter.watch(os.getpid(), 0, looked.set)
    await looked.wait()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("isolation", ["container", "process"])
def test_excess_of_a_guest_is_told_soon_enough_to_kill_it(isolation: str) -> None:
    async def body(child: subprocess.Popen[str]) -> None:
        meter = Meter()
        watch = meter.watch(child.pid, 200 * MIB, child.kill)
        try:
            async with asyncio.timeout(jails.SECONDS):
                await asyncio.to_thread(child.wait)
                await meter._task
        finally:
            child.kill()
        assert watch.exceeded
        # Not before the limit, and not long after it.
        assert 200 * MIB < watch.peak_bytes < 600 * MIB

    with jails.guest(jails.container() if isolation == "container" else jails.process()) as child:
        feed(child, GROWING)
        asyncio.run(body(child))


def test_a_guest_within_its_limit_is_not_told_until_the_limit_is_lowered_and_then_once() -> None:
    async def body(child: subprocess.Popen[str]) -> None:
        meter, told = Meter(interval=0.001), asyncio.Queue[None]()
        watch = meter.watch(child.pid, 512 * MIB, lambda: told.put_nowait(None))
        async with asyncio.timeout(jails.SECONDS):
            await next_look(meter)
            await next_look(meter)
            assert watch.peak_bytes > 64 * MIB
            assert not watch.exceeded
            watch.limit_bytes = 32 * MIB
            await told.get()
            await next_look(meter)
            await next_look(meter)
        meter.close()
        assert told.empty()
        # Its binary is not counted: that is some 100 MB, which all processes share.
        assert watch.peak_bytes < 110 * MIB

    with jails.guest(jails.container()) as child:
        feed(child, SOME)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        asyncio.run(body(child))


def test_nothing_runs_and_nothing_is_open_when_nothing_is_watched() -> None:
    async def body() -> None:
        before = descriptors()
        meter, excess = Meter(interval=0.001), asyncio.Event()
        assert meter._task is None
        watch = meter.watch(os.getpid(), 0, excess.set)
        async with asyncio.timeout(jails.SECONDS):
            await excess.wait()
            watch.stop()
            await meter._task
            assert descriptors() == before
            await next_look(meter)
        meter.close()
        assert descriptors() == before

    asyncio.run(body())


def test_a_callback_that_fails_does_not_end_the_other_watches() -> None:
    async def body() -> None:
        failed = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(lambda *_: failed.set())
        meter = Meter(interval=0.001)
        meter.watch(os.getpid(), 0, lambda: 1 // 0)
        async with asyncio.timeout(jails.SECONDS):
            await failed.wait()
            await next_look(meter)
        meter.close()

    asyncio.run(body())


def test_the_watch_of_a_process_that_ended_ends() -> None:
    child = subprocess.Popen(["/bin/true"])
    child.wait()

    async def body() -> None:
        meter = Meter(interval=0.001)
        watch = meter.watch(child.pid, 0, lambda: None)
        async with asyncio.timeout(jails.SECONDS):
            await meter._task
        assert not watch.exceeded

    asyncio.run(body())


def test_kernels_that_do_not_list_children_give_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    with jails.guest(jails.container()) as child:
        jails.start_waiting(child)
        expected = sorted(jails.descendants(child.pid))
        assert sorted(module.process_tree(child.pid)) == expected
        monkeypatch.setattr(module, "_HAS_CHILDREN", False)
        assert sorted(module.process_tree(child.pid)) == expected
