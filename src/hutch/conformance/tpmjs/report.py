"""Formats a report as JSON, and as text like the sample report in the specification."""

from __future__ import annotations

from collections import Counter

import msgspec

from hutch.conformance.outcome import Outcome
from hutch.conformance.report import FAILED, PASSED, Finding, Report, count_outcomes, score

TITLE = "TPMJS Executor Compliance Test v1.0.0"
HEADINGS = {
    "core": "Core Requirements:",
    "standard": "Standard Requirements:",
    "extended": "Extended:",
}
# Dash that is as wide as the other signs.
_NOT_COUNTED = "\u2013"


class ExecutorReport(Report):
    """Report on one executor. Its groups are the keys of HEADINGS."""

    def __init__(self, base_url: str, findings: list[Finding]) -> None:
        super().__init__(findings)
        self.base_url = base_url

    @property
    def passed(self) -> bool:
        return self.verdict("core") == "PASS"

    def verdict(self, group: str) -> str:
        """Returns the verdict on a group. INCOMPLETE means that a core check could not run, so the core
        cannot pass.
        """
        counts = self._counts(group)
        if group == "core" and counts["failed"]:
            return "FAIL"
        if group == "core" and counts["not_tested"]:
            return "INCOMPLETE"
        if counts["failed"]:
            return "PARTIAL" if counts["passed"] else "FAIL"
        return "PASS" if counts["passed"] else "NOT TESTED"

    def finding_lines(self, finding: Finding) -> list[str]:
        name = f"Missing: {finding.name}" if finding.is_missing else finding.name
        if finding.outcome == "passed":
            return [f"  {PASSED} {name} ({finding.detail})" if finding.detail else f"  {PASSED} {name}"]
        sign = FAILED if finding.outcome == "failed" else _NOT_COUNTED
        return [f"  {sign} {name}", f"      {finding.detail}"]

    def json(self) -> bytes:
        groups = {group: self._group_summary(group) for group in HEADINGS}
        checks = [
            {
                "section": finding.group,
                "name": finding.name,
                "outcome": finding.outcome,
                "detail": finding.detail,
            }
            for finding in self.findings
        ]
        head = {"title": TITLE, "target": self.base_url, "passed": self.passed}
        return msgspec.json.encode({**head, **groups, "checks": checks})

    def _header(self) -> list[str]:
        return [TITLE, f"Target: {self.base_url}"]

    def _heading(self, group: str) -> str:
        return HEADINGS[group]

    def _summary(self) -> list[str]:
        verdicts = f"Core: {self.verdict('core')}, Standard: {self.verdict('standard')}"
        counts = self._counts(*HEADINGS)
        texts: dict[Outcome, str] = {"not_tested": "not tested", "not_supported": "not supported"}
        not_counted = [f"{counts[outcome]} {text}" for outcome, text in texts.items() if counts[outcome]]
        return [
            f"Result: {score(self._counts('core', 'standard'))} tests passed ({verdicts})",
            f"Extended: {score(self._counts('extended'))} tests passed",
            *([f"Not counted: {', '.join(not_counted)}"] if not_counted else []),
        ]

    def _group_summary(self, group: str) -> dict[str, object]:
        counts = self._counts(group)
        return {
            "verdict": self.verdict(group),
            "passed": counts["passed"],
            "failed": counts["failed"],
            "notTested": counts["not_tested"],
            "notSupported": counts["not_supported"],
        }

    def _counts(self, *groups: str) -> Counter[Outcome]:
        return count_outcomes(finding for finding in self.findings if finding.group in groups)
