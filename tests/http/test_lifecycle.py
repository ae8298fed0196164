"""Cancellation of work when the client disconnects or the server shuts down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from hutch.errors import Busy
from hutch.http.auth import AccessControl
from hutch.http.lifecycle import cancel_on_disconnect
from hutch.settings import Settings

Receive = Callable[[], Awaitable[dict[str, Any]]]


def client(disconnected: asyncio.Event) -> Receive:
    async def receive() -> dict[str, Any]:
        await disconnected.wait()
        return {"type": "http.disconnect"}

    return receive


def is_not_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


async def test_result_of_finished_work_is_returned() -> None:
    async def work() -> int:
        await asyncio.sleep(0)
        return 3

    assert await cancel_on_disconnect(client(asyncio.Event()), work()) == 3
    assert is_not_cancelled()


async def test_disconnect_cancels_the_work_and_not_the_caller() -> None:
    disconnected, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        disconnected.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(ClientDisconnect):
        await cancel_on_disconnect(client(disconnected), work())
    assert ended.is_set()
    assert is_not_cancelled()
    await asyncio.sleep(0)


async def test_disconnect_at_the_end_of_the_work_does_not_cancel_later_work() -> None:
    disconnected = asyncio.Event()

    async def work() -> int:
        disconnected.set()
        # Yield once, so that the disconnect is noticed while this function is returning.
        await asyncio.sleep(0)
        return 3

    for _ in range(2):
        with_result = asyncio.ensure_future(cancel_on_disconnect(client(disconnected), work()))
        await asyncio.wait({with_result})
    with contextlib.suppress(ClientDisconnect):
        assert await cancel_on_disconnect(client(disconnected), work()) == 3
    for _ in range(5):
        await asyncio.sleep(0)
    assert is_not_cancelled()


async def test_work_that_raises_on_cancellation_leaves_the_task_uncancelled() -> None:
    disconnected = asyncio.Event()

    async def work() -> int:
        disconnected.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("something else") from None
        return 0

    with pytest.raises(RuntimeError):
        await cancel_on_disconnect(client(disconnected), work())
    assert is_not_cancelled()
    await asyncio.sleep(0)


async def test_expired_drain_cancels_work_and_refuses_new_work() -> None:
    access = AccessControl(Settings())

    async def work() -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(cancel_on_disconnect(client(asyncio.Event()), work(), access))
    await asyncio.sleep(0)
    with access.track_request():
        assert await access.drain(0) is False
    with pytest.raises(Busy):
        await running
    with pytest.raises(Busy):
        await cancel_on_disconnect(client(asyncio.Event()), work(), access)
    assert not access.on_drain_expired


async def test_external_cancellation_is_passed_through() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    running = asyncio.create_task(cancel_on_disconnect(client(asyncio.Event()), work()))
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
