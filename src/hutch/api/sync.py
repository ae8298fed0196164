"""Runs guest code from synchronous programs, with an event loop in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from typing import TYPE_CHECKING, Unpack

from hutch.api.hutch import Hutch
from hutch.errors import HutchError

if TYPE_CHECKING:
    from hutch.api.options import RunOptions
    from hutch.session.run import Result


class BackgroundHutch:
    """Runs an event loop in a thread, with a Hutch that stays warm between synchronous calls."""

    def __init__(self, hutch: Hutch) -> None:
        self._hutch = hutch
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="hutch", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    @property
    def usable(self) -> bool:
        """False in a forked child process, because threads do not survive a fork."""
        return self._pid == os.getpid()

    def run(self, code: str, options: RunOptions) -> Result:
        if threading.current_thread() is self._thread:
            raise HutchError("run_sync() would wait for itself.", remedy="In an async tool use Hutch.run().")
        future = asyncio.run_coroutine_threadsafe(self._hutch.run(code, **options), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _stop(self) -> None:
        if self.usable:
            asyncio.run_coroutine_threadsafe(self._hutch.close(), self._loop).result(10)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


_background: BackgroundHutch | None = None
_background_lock = threading.Lock()


def run_sync(code: str, **options: Unpack[RunOptions]) -> Result:
    """Calls `Hutch.run` from synchronous code. The first call starts a sandbox that later calls reuse."""
    global _background
    with _background_lock:
        if _background is None or not _background.usable:
            _background = BackgroundHutch(Hutch())
        background = _background
    return background.run(code, options)
