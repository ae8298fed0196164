"""Memory in the host for states of runs: shares of owners, and reservations that wait for free memory."""

from __future__ import annotations

import asyncio

import pytest

from hutch.errors import Busy
from hutch.kernel.state_memory import StateMemory


async def test_owner_waits_for_room_and_leaves_a_fifth_to_others() -> None:
    memory = StateMemory(100, max_wait_seconds=30.0)
    first = await memory.reserve("hog", 50)
    assert not memory.fits("hog", 31)
    assert memory.fits("other", 50)
    waiting = [asyncio.ensure_future(memory.reserve("hog", 40)) for _ in range(2)]
    await asyncio.sleep(0)
    other = await memory.reserve("other", 20)
    assert [task.done() for task in waiting] == [False, False]
    # The state takes less memory than its reservation, so one of the two waiting reservations now fits.
    first.set(10)
    done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    assert not memory.fits("hog", 40)
    other.release()
    for task in done:
        (await task).release()
    for task in waiting:
        (await task).release()
    first.release()
    assert memory.fits("hog", 80)


async def test_wait_for_room_ends() -> None:
    memory = StateMemory(100, max_wait_seconds=0.01)
    charge = memory.charge("owner")
    assert charge.add(60)
    assert not charge.add(60)
    with pytest.raises(Busy, match="max_state_bytes"):
        await memory.reserve("owner", 40)
    # If a charge is deleted without being released, its memory is also freed.
    del charge
    (await memory.reserve("owner", 80)).release()
