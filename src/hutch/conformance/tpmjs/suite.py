"""Conformance suite for TPMJS executors."""

from __future__ import annotations

from hutch.conformance.outcome import Check
from hutch.conformance.runner import finding, run_checks
from hutch.conformance.tpmjs import extended, level1, level2
from hutch.conformance.tpmjs.client import NoResponse
from hutch.conformance.tpmjs.report import ExecutorReport
from hutch.conformance.tpmjs.target import ExecutorTarget

GROUPS: dict[str, tuple[Check[ExecutorTarget], ...]] = {
    "core": level1.CHECKS,
    "standard": level2.CHECKS,
    "extended": extended.CHECKS,
}


async def check_executor(target: ExecutorTarget) -> ExecutorReport:
    """Runs all checks. If the executor does not answer `GET /health`, runs none."""
    base_url = target.client.base_url
    try:
        await target.health()
    except NoResponse as error:
        detail = f"{error}; nothing else was tried"
        return ExecutorReport(base_url, [finding(level1.CHECKS[0], target, "core", "failed", detail)])
    return ExecutorReport(base_url, await run_checks(GROUPS, target, target.progress))
