"""Runs the coroutine of a command, and opens an `App` for one command."""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import uvloop

from hutch.errors import HutchError
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.app.app import App
    from hutch.settings.config_text import ConfigText

T = TypeVar("T")

ONE_SHOT_SETTINGS = {"quickjs_warm": 0, "deno_warm": 0, "max_spares": 0}
"""Settings for a process that makes only one execution, so no runners are kept ready for others."""


def end_startup() -> None:
    """Prepares garbage collection for a command that keeps running: frequent again, without the objects that
    exist now, because nearly all of them live until the end.
    """
    gc.freeze()
    gc.set_threshold(10_000)


@asynccontextmanager
async def open_app(
    settings: Settings, project_servers: Callable[[], ConfigText | None] = lambda: None
) -> AsyncIterator[App]:
    from hutch.app.app import App

    app = await App.create(settings, project_servers=project_servers)
    try:
        yield app
    finally:
        await app.close()


class Terminated(HutchError):
    """Terminated by a signal."""


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine. Raises Terminated after SIGTERM or SIGHUP, and KeyboardInterrupt after Ctrl-C."""

    async def cancel_on_signal() -> T:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signal_number, task.cancel)
        return await main

    try:
        return uvloop.run(cancel_on_signal())
    except asyncio.CancelledError:
        raise Terminated from None
