from __future__ import annotations

import asyncio
import os
import subprocess

import pytest

from hutch.sandbox import meter as module
from hutch.sandbox.meter import Meter
from tests.sandbox import jails

MIB = 1 << 20
GROWING = "const kept = []; setInterval(() => kept.push(new Uint8Array(4 << 20).fill(1)), 1);"
SOME = (
    "const kept = new Uint8Array(64 << 20).fill(1); console.log('ready'); setInterval(() => kept[0]++, 1000);"
)


def feed(child: subprocess.Popen[str], code: str) -> None:
    assert child.stdin is not None
    child.stdin.write(code)
    child.stdin.close()


@pytest.mark.parametrize("isolation", ["container", "process"])
def test_excess_of_a_guest_is_told_once_and_soon(isolation: str) -> None:
    async def body(child: subprocess.Popen[str]) -> None:
        told, excess = [], asyncio.Event()
        meter = Meter()
        watch = meter.watch(child.pid, 200 * MIB, lambda: (told.append(1), excess.set(), child.kill()))
        async with asyncio.timeout(jails.SECONDS):
            await excess.wait()
            await asyncio.to_thread(child.wait)
            await meter._task
        assert (watch.exceeded, told) == (True, [1])
        # Not before the limit, and not long after it.
        assert 200 * MIB < watch.peak_bytes < 600 * MIB

    with jails.guest(jails.container() if isolation == "container" else jails.process()) as child:
        feed(child, GROWING)
        asyncio.run(body(child))


def test_a_guest_within_its_limit_is_not_told_until_the_limit_is_lowered() -> None:
    async def body(child: subprocess.Popen[str]) -> None:
        meter, looked, excess = Meter(interval=0.001), asyncio.Event(), asyncio.Event()
        watch = meter.watch(child.pid, 512 * MIB, excess.set)
        other = meter.watch(os.getpid(), 0, looked.set)
        async with asyncio.timeout(jails.SECONDS):
            await looked.wait()
            while watch.peak_bytes < 64 * MIB:
                await asyncio.sleep(0)
            assert not watch.exceeded
            watch.limit_bytes = 32 * MIB
            await excess.wait()
        other.stop()
        watch.stop()
        # Its binary is not counted: that is some 100 MB, which all processes share.
        assert watch.peak_bytes < 110 * MIB

    with jails.guest(jails.container()) as child:
        feed(child, SOME)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        asyncio.run(body(child))


def test_nothing_runs_and_nothing_is_open_when_nothing_is_watched() -> None:
    async def body() -> None:
        before = len(os.listdir("/proc/self/fd"))
        meter, excess = Meter(interval=0.001), asyncio.Event()
        assert meter._task is None
        watch = meter.watch(os.getpid(), 0, excess.set)
        async with asyncio.timeout(jails.SECONDS):
            await excess.wait()
            watch.stop()
            await meter._task
        assert len(os.listdir("/proc/self/fd")) == before
        again = meter.watch(os.getpid(), 0, excess.set)
        assert not meter._task.done()
        again.stop()
        meter.close()

    asyncio.run(body())


def test_a_callback_that_fails_does_not_end_the_other_watches() -> None:
    async def body() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context["exception"])
        )
        meter, excess = Meter(interval=0.001), asyncio.Event()
        meter.watch(os.getpid(), 0, lambda: 1 // 0)
        async with asyncio.timeout(jails.SECONDS):
            while not failures:
                await asyncio.sleep(0)
            meter.watch(os.getpid(), 0, excess.set)
            await excess.wait()
        meter.close()

    asyncio.run(body())


def test_the_watch_of_a_process_that_ended_ends() -> None:
    async def body() -> None:
        child = subprocess.Popen(["/bin/true"])
        child.wait()
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
        assert sorted(module._tree(child.pid)) == expected
        monkeypatch.setattr(module, "_HAS_CHILDREN", False)
        assert sorted(module._tree(child.pid)) == expected
