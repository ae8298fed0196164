"""Formats the report on a REP runtime as text and as JSON."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from hutch.conformance.outcome import Outcome
from hutch.conformance.report import FAILED, PASSED, Finding, Report, count_outcomes, score

TITLE = "REP 0.1 runtime check"
_SIGNS: dict[Outcome, str] = {"passed": PASSED, "failed": FAILED, "not_tested": "-", "not_supported": "-"}


class RuntimeReport(Report):
    """Report on one runtime."""

    def __init__(
        self, command: tuple[str, ...], findings: list[Finding], capabilities: dict[str, Any] | None = None
    ) -> None:
        super().__init__(findings)
        self.command = command
        self.capabilities = capabilities or {}

    @property
    def passed(self) -> bool:
        return not any(finding.required and finding.outcome == "failed" for finding in self.findings)

    def finding_lines(self, finding: Finding) -> list[str]:
        suffix = "" if finding.required else ", recommended"
        first = f"  {_SIGNS[finding.outcome]} {finding.name} ({finding.section}{suffix})"
        return [first, f"      {finding.detail}"] if finding.detail else [first]

    def json(self) -> bytes:
        checks = [
            {
                "part": finding.group,
                "name": finding.name,
                "section": finding.section,
                "required": finding.required,
                "outcome": finding.outcome,
                "detail": finding.detail,
            }
            for finding in self.findings
        ]
        report = {
            "title": TITLE,
            "command": self.command,
            "passed": self.passed,
            "capabilities": self.capabilities,
            "checks": checks,
        }
        return msgspec.json.encode(report)

    def _header(self) -> list[str]:
        return [TITLE, f"Runtime: {shlex.join(self.command)}"]

    def _summary(self) -> list[str]:
        verdict = "PASS" if self.passed else "FAIL"
        scores = f"required {self._score(required=True)}, recommended {self._score(required=False)}"
        return [f"{verdict}: {scores}"]

    def _score(self, *, required: bool) -> str:
        counts = count_outcomes(finding for finding in self.findings if finding.required is required)
        not_tested = counts["not_tested"]
        return score(counts) + (f" ({not_tested} not tested)" if not_tested else "")
