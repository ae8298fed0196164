"""Validation of flows in threads. Owners take turns, and a validation ends at its time limit or when it is
cancelled.
"""

from __future__ import annotations

import asyncio
import threading

import pytest

from hutch.protocols.rep.ir.budget import ValidationBudget
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.server.validation import ValidationPool

pytestmark = pytest.mark.anyio


def work_forever(budget: ValidationBudget) -> None:
    while True:
        budget.check()


async def test_result_and_error_are_passed_on() -> None:
    pool = ValidationPool()
    assert await pool.run("ann", lambda budget: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await pool.run("ann", lambda budget: 1 // 0)
    pool.close()


async def test_work_ends_when_its_time_is_over() -> None:
    pool = ValidationPool(max_cpu_seconds=0.01)
    with pytest.raises(InvalidFlow, match=r"takes more than 0\.01 s to validate"):
        await pool.run("ann", work_forever)
    pool.close()


async def test_one_owner_cannot_take_all_threads() -> None:
    pool = ValidationPool(max_cpu_seconds=60)
    release = threading.Event()
    waiting = [asyncio.create_task(pool.run("eve", lambda budget: release.wait(60))) for _ in range(10)]
    async with asyncio.timeout(30):
        await asyncio.sleep(0)
        assert await pool.run("bo", lambda budget: "done") == "done"
        release.set()
        assert all(await asyncio.gather(*waiting))
    pool.close()


async def test_cancelled_work_stops() -> None:
    pool = ValidationPool(max_cpu_seconds=60)
    began, ended = threading.Event(), threading.Event()

    def work(budget: ValidationBudget) -> None:
        began.set()
        try:
            work_forever(budget)
        finally:
            ended.set()

    task = asyncio.create_task(pool.run("eve", work))
    assert await asyncio.to_thread(began.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 30)
    pool.close()
