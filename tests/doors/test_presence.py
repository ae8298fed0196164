"""Work for a client as long as it is there: how it is ended, and that nothing of that stays."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from hutch.doors.gate import Gate
from hutch.doors.presence import while_there
from hutch.errors import Busy
from hutch.settings import Settings

Receive = Callable[[], Awaitable[dict[str, Any]]]


def client(gone: asyncio.Event) -> Receive:
    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def is_unharmed() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


async def test_work_that_ends_gives_its_result() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    assert await while_there(client(asyncio.Event()), work()) == 3
    assert is_unharmed()


async def test_client_that_goes_ends_the_work_and_not_who_asked_for_it() -> None:
    gone, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        gone.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await while_there(client(gone), work())
    assert ended.is_set()
    assert is_unharmed()
    await asyncio.sleep(0)


async def test_client_that_goes_as_the_work_ends_harms_nothing_that_comes_after() -> None:
    gone = asyncio.Event()

    async def work() -> int:
        gone.set()
        # As long as it takes for it to be heard that the client went, and no longer.
        await asyncio.sleep(0)
        return 3

    for _ in range(2):
        with_result = asyncio.ensure_future(while_there(client(gone), work()))
        await asyncio.wait({with_result})
    with contextlib.suppress(ClientDisconnect):
        assert await while_there(client(gone), work()) == 3
    for _ in range(5):
        await asyncio.sleep(0)
    assert is_unharmed()


async def test_work_that_makes_something_else_of_its_end_leaves_nothing_behind() -> None:
    gone = asyncio.Event()

    async def work() -> int:
        gone.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("something else") from None
        return 0

    with pytest.raises(RuntimeError):
        await while_there(client(gone), work())
    assert is_unharmed()
    await asyncio.sleep(0)


async def test_server_whose_time_is_up_ends_work_and_begins_none() -> None:
    gate = Gate(Settings())

    async def work() -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(while_there(client(asyncio.Event()), work(), gate))
    await asyncio.sleep(0)
    with gate.visit():
        assert await gate.drain(0) is False
    with pytest.raises(Busy):
        await running
    with pytest.raises(Busy):
        await while_there(client(asyncio.Event()), work(), gate)
    assert not gate.at_the_end


async def test_cancelling_from_elsewhere_goes_through() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(while_there(client(asyncio.Event()), work()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
