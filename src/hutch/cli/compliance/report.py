"""What was found, in the form of the specification's sample report and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

Section = Literal["core", "standard", "extended"]
Outcome = Literal["passed", "failed", "not_tested", "not_supported"]

TITLE = "TPMJS Executor Compliance Test v1.0.0"
HEADINGS: dict[Section, str] = {
    "core": "Core Requirements:",
    "standard": "Standard Requirements:",
    "extended": "Extended:",
}
# The last is a dash as long as the others are wide.
_PASSED, _FAILED, _APART = "✓", "✗", "\u2013"


class Finding(msgspec.Struct, frozen=True):
    """One check and how it ended."""

    section: Section
    name: str
    outcome: Outcome
    detail: str = ""
    """The reason, or what was measured."""
    missing: bool = False
    """Whether it failed because what the name stands for is not there at all."""

    def lines(self) -> list[str]:
        name = f"Missing: {self.name}" if self.missing else self.name
        if self.outcome == "passed":
            return [f"  {_PASSED} {name} ({self.detail})" if self.detail else f"  {_PASSED} {name}"]
        return [f"  {_FAILED if self.outcome == 'failed' else _APART} {name}", f"      {self.detail}"]


class Report(msgspec.Struct, frozen=True):
    """All findings about one executor."""

    target: str
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        """Whether the executor has everything that it must have."""
        return self.verdict("core") == "PASS"

    def verdict(self, section: Section) -> str:
        """INCOMPLETE is a core of which something could not be tried: nobody can say that it passes."""
        counts = self._counts(section)
        if section == "core" and counts["failed"]:
            return "FAIL"
        if section == "core" and counts["not_tested"]:
            return "INCOMPLETE"
        if counts["failed"]:
            return "PARTIAL" if counts["passed"] else "FAIL"
        return "PASS" if counts["passed"] else "NOT TESTED"

    def lines(self) -> list[str]:
        """The report as text."""
        shown = [TITLE, f"Target: {self.target}"]
        for section, heading in HEADINGS.items():
            found = [finding for finding in self.findings if finding.section == section]
            if not found:
                continue
            shown += ["", heading, *(line for finding in found for line in finding.lines())]
        required = self._counts("core", "standard")
        verdicts = f"Core: {self.verdict('core')}, Standard: {self.verdict('standard')}"
        return [
            *shown,
            "",
            f"Result: {_score(required)} tests passed ({verdicts})",
            f"Extended: {_score(self._counts('extended'))} tests passed",
            *self._apart(),
        ]

    def json(self) -> bytes:
        """The report on one line."""
        sections = {section: self._summary(section) for section in HEADINGS}
        checks = [
            {
                "section": finding.section,
                "name": finding.name,
                "outcome": finding.outcome,
                "detail": finding.detail,
            }
            for finding in self.findings
        ]
        told = {"title": TITLE, "target": self.target, "passed": self.passed}
        return msgspec.json.encode({**told, **sections, "checks": checks})

    def _apart(self) -> list[str]:
        """What was neither passed nor failed."""
        counts = self._counts(*HEADINGS)
        words = {"not_tested": "not tested", "not_supported": "not supported"}
        told = [f"{counts[outcome]} {text}" for outcome, text in words.items() if counts[outcome]]
        return [f"Not counted: {', '.join(told)}"] if told else []

    def _summary(self, section: Section) -> dict[str, object]:
        counts = self._counts(section)
        return {
            "verdict": self.verdict(section),
            "passed": counts["passed"],
            "failed": counts["failed"],
            "notTested": counts["not_tested"],
            "notSupported": counts["not_supported"],
        }

    def _counts(self, *sections: str) -> Counter[str]:
        return Counter(finding.outcome for finding in self.findings if finding.section in sections)


def _score(counts: Counter[str]) -> str:
    return f"{counts['passed']}/{counts['passed'] + counts['failed']}"
