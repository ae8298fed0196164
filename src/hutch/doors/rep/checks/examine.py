"""Asks a runtime everything, one thing after the other, and writes down how each ends."""

from __future__ import annotations

from collections.abc import Callable

from hutch.doors.rep.checks import handshake, running, starting
from hutch.doors.rep.checks.outcome import Check, Failed, NotTested, Outcome
from hutch.doors.rep.checks.report import Finding, Report
from hutch.doors.rep.checks.subject import Subject
from hutch.doors.rep.codes import RpcError

PARTS: dict[str, tuple[Check, ...]] = {
    "Capabilities and envelope": handshake.CHECKS,
    "StartRun": starting.CHECKS,
    "Poll, Cancel, Health, the end": running.CHECKS,
}
_MOST_CHARACTERS = 400


async def examine(on: Subject, *, now: Callable[[str], None] = lambda name: None) -> Report:
    """Everything; who does not even tell its capabilities is asked nothing more."""
    findings: list[Finding] = []
    try:
        for part, checks in PARTS.items():
            for check in checks:
                now(check.name)
                findings.append(await look(on, check, part))
                if len(findings) == 1 and findings[0].outcome == "failed":
                    return Report(target=on.choice.command, findings=findings)
        return Report(target=on.choice.command, findings=findings, capabilities=on.capabilities)
    finally:
        await on.drop()


async def look(on: Subject, check: Check, part: str = "") -> Finding:
    """One check."""
    outcome: Outcome
    try:
        await check.ask(on)
    except (Failed, RpcError) as failed:
        # What it says next may be the answer to this.
        await on.drop()
        outcome, detail = "failed", str(failed)
    except NotTested as reason:
        outcome, detail = "not_tested", str(reason)
    else:
        outcome, detail = "passed", ""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in detail)
    return Finding(
        part=part,
        name=check.name,
        section=check.section,
        required=check.required,
        outcome=outcome,
        detail=shown[:_MOST_CHARACTERS],
    )
