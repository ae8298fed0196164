"""Cost of run records: alternates between executions that are recorded at the level `errors` and executions
that are not recorded.

The cost is the same for all protocols. Its share is largest for the fastest runs, so this benchmark runs
executions of the kernel without HTTP.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import AsyncExitStack

from bench.report import Row, Scale, median, number
from hutch.app.app import App
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.tools.provider import Provider
from hutch.settings import load_settings

# The target applies to the successful runs only: the record of a failed run is larger, because it has the
# code and the message.
CASES = {
    "`1+1`": "1+1",
    "10 tool calls": "for (let n = 0; n < 10;) n = await tools.following({ n })",
    "a failed run": "throw new Error('expected')",
}
TURN = 25


async def following(n: int) -> int:
    """Return n + 1."""
    return n + 1


async def recording(scale: Scale) -> list[Row]:
    providers = [Provider.of(following)]
    async with AsyncExitStack() as stack:
        apps: dict[str, App] = {}
        for name in ("errors", "none"):
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="hutch-bench-"))
            apps[name] = app = await App.create(load_settings({"home": home, "record": "errors"}))
            stack.push_async_callback(app.close)
        # Only this App opens a store. The other one records nothing.
        await apps["errors"].storage.start()
        times: dict[tuple[str, str], list[float]] = {}
        for turn in range(scale.of(80, 24)):
            for case, code in CASES.items():
                # Alternate the order, because the execution that comes first may find colder caches.
                for name, app in list(apps.items())[:: -1 if turn % 2 else 1]:
                    measured = await _run(app, code, providers)
                    # The first turns only warm up and do not count.
                    if turn >= 4:
                        times.setdefault((case, name), []).append(measured)
        state = apps["errors"].storage.record_queue
        if state is None or state.failure or state.dropped:
            raise RuntimeError(f"the records were not stored: {state}")
    rows = []
    for case in CASES:
        pairs = list(zip(times[case, "errors"], times[case, "none"], strict=True))
        recorded, bare = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
        ratio = median(pair[0] / pair[1] for pair in pairs)
        rows.append(
            Row(
                what=f"recording `errors` against none, quickjs, {case}: p50",
                measured=f"{number(recorded)} ms",
                baseline=f"{number(bare)} ms: the same without records",
                # Compare executions of the same turn with each other, because the machine's speed varies over
                # time.
                ratio=ratio,
                target="ratio of neighbouring turns ≤ 1.05",
                met=ratio <= 1.05,
                data={"recorded_ms": recorded, "bare_ms": bare, "ratio": ratio},
            )
        )
    return rows


async def _run(app: App, code: str, providers: list[Provider]) -> float:
    """Returns the median of the milliseconds of one execution."""
    times = []
    for _ in range(TURN):
        execution = Execution(
            code=code, profile=profile_for("quickjs"), limits=app.kernel.limits({}), providers=providers
        )
        began = time.perf_counter()
        await app.kernel.run(execution)
        times.append((time.perf_counter() - began) * 1000)
    return median(times)
