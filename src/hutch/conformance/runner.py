"""Runs checks against a target, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hutch.conformance.outcome import (
    Check,
    CheckFailed,
    FeatureMissing,
    NotSupported,
    NotTested,
    Outcome,
    Target,
    TargetT,
)
from hutch.conformance.progress import Progress
from hutch.conformance.report import Finding
from hutch.text import printable

MAX_DETAIL_CHARS = 400


async def run_checks(
    groups: Mapping[str, Sequence[Check[TargetT]]],
    target: TargetT,
    progress: Progress,
    *,
    stop_on_first: bool = False,
) -> list[Finding]:
    """Runs all checks. With `stop_on_first`, stops if the first check fails."""
    findings: list[Finding] = []
    for group, checks in groups.items():
        for check in checks:
            progress.show(check.name)
            findings.append(await run_check(check, target, group))
            if stop_on_first and len(findings) == 1 and findings[0].outcome == "failed":
                progress.clear()
                return findings
    progress.clear()
    return findings


async def run_check(check: Check[TargetT], target: TargetT, group: str = "") -> Finding:
    try:
        measured = await check.run(target)
    except CheckFailed as failed:
        await target.recover()
        return finding(check, target, group, "failed", str(failed), isinstance(failed, FeatureMissing))
    except NotTested as reason:
        return finding(check, target, group, "not_tested", str(reason))
    except NotSupported as reason:
        return finding(check, target, group, "not_supported", str(reason))
    return finding(check, target, group, "passed", measured or "")


def finding(
    check: Check[TargetT],
    target: Target,
    group: str,
    outcome: Outcome,
    detail: str,
    is_missing: bool = False,
) -> Finding:
    """Builds a finding. `detail` may quote the target, so the secret and control characters in it are
    replaced.
    """
    if target.secret:
        detail = detail.replace(target.secret, "***")
    return Finding(
        group=group,
        name=check.name,
        outcome=outcome,
        detail=printable(detail[:MAX_DETAIL_CHARS], replacement="\N{REPLACEMENT CHARACTER}"),
        is_missing=is_missing,
        section=check.section,
        required=check.required,
    )
