"""Work that is awaited to its end although the caller is cancelled, and work that starts immediately."""

from __future__ import annotations

import asyncio
import sys

import pytest

from hutch.tasks import finish, start_now


async def test_result_and_error_are_passed_on() -> None:
    async def fail() -> None:
        raise OSError("no")

    assert await finish(asyncio.sleep(0, "result")) == "result"
    with pytest.raises(OSError, match="no"):
        await finish(fail())


async def test_work_ends_before_the_cancellation_is_raised() -> None:
    started, may_end, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        started.set()
        await may_end.wait()
        ended.set()

    caller = asyncio.ensure_future(finish(work()))
    await started.wait()
    caller.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()


async def test_cancelled_work_cancels_its_caller() -> None:
    work = asyncio.ensure_future(asyncio.sleep(60))
    caller = asyncio.ensure_future(finish(work))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


async def test_work_that_never_suspends_ends_at_once_where_python_can() -> None:
    async def work() -> int:
        return 1

    task = start_now(work(), asyncio.get_running_loop())
    assert task.done() is (sys.version_info >= (3, 12))
    assert await task == 1
