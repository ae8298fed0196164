"""Runs a command's coroutine so that nothing is left behind when a signal ends it early."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from hutch.errors import HutchError

T = TypeVar("T")


class Terminated(HutchError):
    """Terminated by a signal."""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Raises Terminated when SIGTERM or SIGHUP ended it, and KeyboardInterrupt for Ctrl-C."""

    async def guarded() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(each, task.cancel)
        return await main

    try:
        return uvloop.run(guarded())
    except asyncio.CancelledError:
        raise Terminated from None
