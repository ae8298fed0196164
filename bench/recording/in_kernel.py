"""Cost of run records in the kernel, without HTTP.

This is the strictest case: the cost of a record is the same for all protocols, and its share is largest where
everything else is fastest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from bench.recording.turns import alternate, batch, comparison
from bench.report import Row, Scale
from hutch.app.app import App
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.tools.provider import Provider
from hutch.settings import load_settings

# The record of a failed run is larger, because it has the code and the message.
CASES = {
    "`1+1`": "1+1",
    "10 tool calls": "for (let n = 0; n < 10;) n = await tools.following({ n })",
    "a failed run": "throw new Error('expected')",
}
BATCH = 25


async def following(n: int) -> int:
    """Return n + 1."""
    return n + 1


async def in_kernel(scale: Scale) -> list[Row]:
    providers = [Provider.of(following)]
    async with AsyncExitStack() as stack:
        apps: list[App] = []
        for _ in range(2):
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="hutch-bench-"))
            app = await App.create(load_settings({"home": home, "record": "errors"}))
            stack.push_async_callback(app.close)
            apps.append(app)
        recorded, bare = apps
        # Only this App opens a store. The other one records nothing.
        await recorded.storage.start()
        rows = []
        for case, code in CASES.items():
            turns = await alternate(
                _batch(recorded, code, providers), _batch(bare, code, providers), scale.of(80, 20)
            )
            rows.append(comparison(f"the kernel alone (strictest case), quickjs, {case}", turns))
        state = recorded.storage.record_queue
        if state is None or state.failure or state.dropped:
            raise RuntimeError(f"the records were not stored: {state}")
    return rows


def _batch(app: App, code: str, providers: list[Provider]) -> Callable[[], Awaitable[float]]:
    def run() -> Awaitable[object]:
        execution = Execution(
            code=code, profile=profile_for("quickjs"), limits=app.kernel.limits({}), providers=providers
        )
        return app.kernel.run(execution)

    return lambda: batch(run, BATCH)
