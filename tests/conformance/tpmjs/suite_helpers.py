"""Runs one check or the whole suite against the fake executor."""

from __future__ import annotations

from tests.conformance.tpmjs.fake_executor import SLOW_PACKAGE, FakeExecutor

from hutch.conformance.progress import Progress
from hutch.conformance.report import Finding
from hutch.conformance.runner import run_check
from hutch.conformance.tpmjs.client import ExecutorClient
from hutch.conformance.tpmjs.report import ExecutorReport
from hutch.conformance.tpmjs.suite import GROUPS, check_executor
from hutch.conformance.tpmjs.target import DEFAULT_TOOL, ExecutorTarget, SampleTool, Timeouts

KEY = "the-right-key"
SLEEP = SampleTool(SLOW_PACKAGE, "0.1.0", "sleep", {})
WAKE = SampleTool(SLOW_PACKAGE, "0.1.0", "wake", {})
TIMEOUT = "Execution timeout enforced"
UNDER_LOAD = "GET /health answers within a second under load"
ASYNC = "POST /execute-async"
CHECKS = {check.name: check for checks in GROUPS.values() for check in checks}
NAMES = list(CHECKS)


async def finding(
    executor: FakeExecutor,
    name: str,
    *,
    key: str | None = KEY,
    slow: SampleTool | None = None,
    timeouts: Timeouts | None = None,
) -> Finding:
    progress = Progress()
    async with ExecutorClient(executor.url, key, progress.report) as client:
        return await run_check(CHECKS[name], ExecutorTarget(client, progress, DEFAULT_TOOL, slow, timeouts))


async def report(
    url: str, *, slow: SampleTool | None = None, timeouts: Timeouts | None = None
) -> ExecutorReport:
    progress = Progress()
    async with ExecutorClient(url, KEY, progress.report) as client:
        return await check_executor(ExecutorTarget(client, progress, DEFAULT_TOOL, slow, timeouts))
