"""Conformance suite for REP runtimes."""

from __future__ import annotations

from hutch.conformance.outcome import Check
from hutch.conformance.progress import Progress
from hutch.conformance.rep import handshake, runs, start_run
from hutch.conformance.rep.report import RuntimeReport
from hutch.conformance.rep.target import RuntimeTarget
from hutch.conformance.runner import run_checks

GROUPS: dict[str, tuple[Check[RuntimeTarget], ...]] = {
    "Capabilities and envelope": handshake.CHECKS,
    "StartRun": start_run.CHECKS,
    "Poll, Cancel, Health, the end": runs.CHECKS,
}


async def check_runtime(target: RuntimeTarget, progress: Progress | None = None) -> RuntimeReport:
    """Runs all checks. If the runtime does not report its capabilities, stops after the first check."""
    try:
        findings = await run_checks(GROUPS, target, progress or Progress(), stop_on_first=True)
        return RuntimeReport(target.choice.command, findings, target.capabilities)
    finally:
        await target.disconnect()
