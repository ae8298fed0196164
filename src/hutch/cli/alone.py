"""A Hutch for one command: nothing comes after it, so nothing is kept ready."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.app import App

ALONE = {"quickjs_warm": 0, "deno_warm": 0, "max_spares": 0}
"""The settings for that."""


@asynccontextmanager
async def started(settings: Settings) -> AsyncIterator[App]:
    from hutch.app import App

    app = await App.create(settings)
    try:
        yield app
    finally:
        await app.close()
