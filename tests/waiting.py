"""Waiting for what no event tells of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.processes import PATIENCE


async def eventually(condition: Callable[[], object]) -> None:
    """Until it holds; fails if that takes too long."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)
