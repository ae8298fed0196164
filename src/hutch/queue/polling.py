"""Loop of the tasks that look for work in the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from hutch.errors import HutchError

logger = logging.getLogger("hutch.queue")

POLL_SECONDS = 1.0
"""Maximum time between two checks. Needed because another server may add work without waking this server."""


async def poll(check: Callable[[], Awaitable[float]], wake: asyncio.Event, problem: str) -> None:
    """Calls `check` repeatedly until cancelled: when `wake` is set, and after the number of seconds that the
    last call returned. Logs `problem` if a call fails.
    """
    while True:
        wake.clear()
        seconds = POLL_SECONDS
        try:
            seconds = await check()
        except HutchError as error:
            logger.warning("%s: %s", problem, error)
        except Exception:
            logger.exception(problem)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
