"""Runs tools of packages that tests make up, without a door, so that a test can be any caller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.tpmjs.served import elsewhere, eventually, tool
from tests.npm import registry
from tests.npm.registry import Registry

from hutch.app import App
from hutch.doors.tpmjs.calls import ToolCall
from hutch.npm.names import parse
from hutch.settings import load


class Tools:
    """What the doors have, and the registry behind it."""

    def __init__(self, app: App, npm: Registry) -> None:
        self.app = app
        self.npm = npm

    async def execute(self, package: str, *, env: dict[str, str] | None = None, caller: str = "ann") -> Any:
        call = ToolCall(spec=parse(package), name="tool", env=env or {}, caller=caller)
        outcome = await self.app.tools.execute(call)
        assert outcome.failure is None, outcome.failure
        assert outcome.output_json is not None
        return msgspec.json.decode(outcome.output_json)

    @property
    def warm(self) -> int:
        return self.app.pool.stats().warm.get("npm", 0)

    async def settled(self, warm: int = 1) -> int:
        """Waits for so many spares, and until nothing starts or ends. Gives how many were ever started."""
        pool = self.app.pool
        await eventually(lambda: self.warm == warm and not pool.stats().starting and not pool._leaving)
        return pool.stats().tally.started


@contextlib.asynccontextmanager
async def tools(home: Path, **settings: Any) -> AsyncIterator[Tools]:
    quiet = {"quickjs_warm": 0, "deno_warm": 0}
    with registry.serving() as npm, pytest.MonkeyPatch.context() as patch:
        for name, value in {**elsewhere(), "NPM_CONFIG_REGISTRY": npm.url}.items():
            patch.setenv(name, value)
        npm.publish(
            "count", files={"index.js": tool("return [++count, process.env.WHO ?? null]", "let count = 0;")}
        )
        npm.publish("other", files={"index.js": tool("return 'other'")})
        app = await App.create(load({"home": str(home), **quiet, **settings}))
        try:
            yield Tools(app, npm)
        finally:
            await app.close()
