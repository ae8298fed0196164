"""Waits for conditions without an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.support.processes import TIMEOUT_SECONDS


async def eventually(condition: Callable[[], object]) -> None:
    """Waits until the condition is true; fails after a timeout."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
