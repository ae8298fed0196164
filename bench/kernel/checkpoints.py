"""Suspended executions: the time to suspend and to continue one, its size in the store, and the memory of the
host while many are suspended.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import msgspec

import hutch
from bench.machine import memory
from bench.report import Row, Scale, median, number
from hutch.app.app import App
from hutch.kernel.durable import checkpoint
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import RunHandle
from hutch.session.suspension import Answer, SavedSession
from hutch.session.tools.provider import Provider
from hutch.settings import load_settings

# For each case: the code that creates live data, the maximum size in the store, and the maximum milliseconds
# to suspend and to continue the execution.
CASES = {
    "no live data": ("", 16_384, 2.0, 1.0),
    "300 small objects": (
        "const data = Array.from({length: 300}, (_, i) => ({i, name: 'n' + i}));",
        49_152,
        2.0,
        1.0,
    ),
    "10 MB of live data": (
        "const data = Array.from({length: 60_000}, (_, i) => ({i, name: 'n' + i}));",
        None,
        60.0,
        20.0,
    ),
}
SUSPENDED = 10_000
MAX_STORE_MB = 250


async def wait(later: bool) -> int:
    """Suspends the run if `later`, otherwise returns at once."""
    if later:
        raise hutch.Suspend
    return 1


async def checkpoints(scale: Scale) -> list[Row]:
    rows = []
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
        app = await App.create(load_settings({"home": home}))
        try:
            for case in CASES:
                rows += await _case(app, case, scale)
        finally:
            await app.close()
    return [*rows, await _at_rest(scale.of(SUSPENDED, 500))]


async def _case(app: App, case: str, scale: Scale) -> list[Row]:
    data, max_bytes, max_suspend, max_resume = CASES[case]
    code = f"{data} return await tools.wait({{later}}) && 1"
    kept: list[SavedSession] = []

    async def keep(execution: Execution, run: RunHandle) -> None:
        assert run.session is not None
        assert run.session.saved is not None
        kept.append(run.session.saved)

    app.kernel.on_suspend = keep
    providers = [Provider.of(wait)]
    execution = Execution(
        code=code, profile=profile_for("quickjs"), limits=app.kernel.limits({}), providers=providers
    )
    later, now = (
        msgspec.structs.replace(execution, inputs=msgspec.json.encode({"later": value}))
        for value in (True, False)
    )
    suspends, resumes = [], []
    for _ in range(scale.of(200, 40) if max_suspend < 10 else scale.of(20, 6)):
        immediate, suspended = await _milliseconds(app, now), await _milliseconds(app, later)
        saved = kept.pop()
        answers = {saved.pending[0].call_id: Answer(result_json=b"1")}
        # Subtract the time of an execution without tool calls, because a continued execution makes none
        # either.
        resumed = await _milliseconds(app, msgspec.structs.replace(later, saved=saved, answers=answers))
        computed = await _milliseconds(app, msgspec.structs.replace(execution, code="1+1"))
        suspends.append(suspended - immediate)
        resumes.append(resumed - computed)
    stored = checkpoint.Checkpoint(
        run_id="0" * 32,
        owner="default",
        bundle=checkpoint.bundle_digest(),
        generation=1,
        protocol="python",
        label=None,
        parent_run_id=None,
        code=code,
        limits=execution.limits,
        created_at=time.time(),
        expires_at=time.time(),
        session=saved,
    )
    began = time.perf_counter()
    # Encrypted data is stored as Base64 text, which is a third longer.
    size = sum(map(len, checkpoint.encode(stored, 2**30))) * 4 // 3
    encode_ms = (time.perf_counter() - began) * 1000
    suspend, resume = median(suspends), median(resumes)
    is_small = max_bytes is None or size <= max_bytes
    target = f"≤ {number(max_suspend)} ms, ≤ {number(max_resume)} ms"
    return [
        Row(
            what=f"suspend and continue an execution, {case}: p50 over an execution that is not suspended",
            measured=f"{number(max(0.0, suspend))} ms, {number(max(0.0, resume))} ms; {number(size / 1000)}"
            f" kB stored, {number(encode_ms)} ms to compress",
            target=target if max_bytes is None else f"{target}, ≤ {max_bytes // 1024} KiB",
            met=suspend <= max_suspend and resume <= max_resume and is_small,
            data={"suspend_ms": suspend, "resume_ms": resume, "bytes": size, "encode_ms": encode_ms},
        )
    ]


async def _milliseconds(app: App, execution: Execution) -> float:
    began = time.perf_counter()
    await app.kernel.run(execution)
    return (time.perf_counter() - began) * 1000


async def _at_rest(count: int) -> Row:
    """Suspends many runs, and continues all of them in a second Hutch with the same home."""
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
        code = "const mine = Math.random(); return (await tools.wait({later: true})) + mine - mine"
        async with hutch.Hutch(home=home) as h:
            await h.run(code, tools=[wait])
            before = memory([os.getpid()])
            results: list[hutch.Result] = []
            while len(results) < count:
                batch = (h.run(code, tools=[wait]) for _ in range(100))
                results += await asyncio.gather(*batch)
            grown = memory([os.getpid()]) - before
        ids = [(result.run_id, result.pending_calls[0].call_id) for result in results]
        size = _size(home) / 1e6
        right = 0
        async with hutch.Hutch(home=home) as h:
            for start in range(0, count, 100):
                runs = [
                    await h.resume(run_id, {call_id: number}, tools=[wait])
                    for number, (run_id, call_id) in enumerate(ids[start : start + 100], start)
                ]
                ended = await asyncio.gather(*(run.result() for run in runs))
                right += sum(
                    round(result.result or 0) == number for number, result in enumerate(ended, start)
                )
    return Row(
        what=f"{number(count)} suspended executions at rest",
        measured=f"{number(size)} MB in the store, host + {number(grown)} MB; {number(right)} right",
        target=f"all right, ≤ {number(MAX_STORE_MB * count / SUSPENDED)} MB",
        met=right == count and size <= MAX_STORE_MB * count / SUSPENDED,
        data={"mb": size, "host_mb": grown, "right": right, "count": count},
    )


def _size(home: str) -> int:
    return sum(path.stat().st_size for path in Path(home).glob("hutch.db*"))
