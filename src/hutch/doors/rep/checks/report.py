"""What was found out about a runtime, as text and as JSON."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from hutch.doors.rep.checks.outcome import Outcome

TITLE = "REP 0.1 runtime check"
_SIGNS: dict[Outcome, str] = {"passed": "✓", "failed": "✗", "not_tested": "-"}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One check and how it ended."""

    part: str
    name: str
    section: str
    required: bool
    outcome: Outcome
    detail: str = ""

    def lines(self) -> list[str]:
        wanted = "" if self.required else ", recommended"
        first = f"  {_SIGNS[self.outcome]} {self.name} ({self.section}{wanted})"
        return [first, f"      {self.detail}"] if self.detail else [first]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All findings about one runtime."""

    target: tuple[str, ...]
    findings: list[Finding]
    capabilities: dict[str, Any] = {}

    @property
    def passed(self) -> bool:
        """Whether it does all that it has to, as far as could be tried."""
        return not any(each.required and each.outcome == "failed" for each in self.findings)

    def lines(self) -> list[str]:
        shown = [TITLE, f"Runtime: {shlex.join(self.target)}"]
        part = None
        for finding in self.findings:
            if finding.part != part:
                part = finding.part
                shown += ["", part]
            shown += finding.lines()
        verdict = "PASS" if self.passed else "FAIL"
        return [
            *shown,
            "",
            f"{verdict}: required {self._score(required=True)}, recommended {self._score(required=False)}",
        ]

    def json(self) -> bytes:
        """On one line."""
        told = {
            "title": TITLE,
            "command": self.target,
            "passed": self.passed,
            "capabilities": self.capabilities,
            "checks": self.findings,
        }
        return msgspec.json.encode(told)

    def _score(self, *, required: bool) -> str:
        outcomes = [each.outcome for each in self.findings if each.required is required]
        tried = [each for each in outcomes if each != "not_tested"]
        left = len(outcomes) - len(tried)
        return f"{tried.count('passed')}/{len(tried)}" + (f" ({left} not tested)" if left else "")
