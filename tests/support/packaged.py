"""Runs tools of test packages without HTTP, so that a test can choose the caller."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.tpmjs.harness import eventually, no_registry_env, tool
from tests.npm import registry
from tests.npm.registry import Registry
from tests.support.processes import copy_selftest

from hutch.app.app import App
from hutch.npm.package_spec import parse_spec
from hutch.protocols.tpmjs.models import PackageToolCall
from hutch.settings import load_settings


class ToolsHarness:
    """An `App` and its npm registry."""

    def __init__(self, app: App, npm: Registry) -> None:
        self.app = app
        self.npm = npm

    async def execute(
        self,
        package: str,
        params: dict[str, Any] | None = None,
        *,
        env: dict[str, str] | None = None,
        caller: str = "ann",
    ) -> Any:
        call = PackageToolCall(
            spec=parse_spec(package), name="tool", params=params or {}, env=env or {}, caller=caller
        )
        outcome = await self.app.tools.execute(call)
        assert outcome.failure is None, outcome.failure
        assert outcome.output_json is not None
        return msgspec.json.decode(outcome.output_json)

    @property
    def warm(self) -> int:
        return self.app.pool.stats().warm.get("npm", 0)

    async def wait_settled(self, warm: int = 1) -> int:
        """Waits until `warm` spares are ready and no process is starting or ending. Returns the number of
        processes that the pool has started so far.
        """
        pool = self.app.pool
        await eventually(lambda: self.warm == warm and not pool.stats().starting and not pool.runners.ending)
        return pool.stats().counters.started


@contextlib.asynccontextmanager
async def open_tools(home: Path, **settings: Any) -> AsyncIterator[ToolsHarness]:
    quiet = {"quickjs_warm": 0, "deno_warm": 0}
    with registry.run_registry() as npm, pytest.MonkeyPatch.context() as patch:
        for name, value in {**no_registry_env(), "NPM_CONFIG_REGISTRY": npm.url}.items():
            patch.setenv(name, value)
        npm.publish(
            "count", files={"index.js": tool("return [++count, process.env.WHO ?? null]", "let count = 0;")}
        )
        npm.publish("other", files={"index.js": tool("return 'other'")})
        copy_selftest(home)
        app = await App.create(load_settings({"home": str(home), **quiet, **settings}))
        try:
            yield ToolsHarness(app, npm)
        finally:
            await app.close()
