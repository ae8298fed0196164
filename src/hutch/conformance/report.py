"""Findings, and the parts that all conformance reports share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from itertools import groupby

import msgspec

from hutch.conformance.outcome import Outcome

PASSED, FAILED = "✓", "✗"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of one check."""

    group: str
    name: str
    outcome: Outcome
    detail: str = ""
    """Reason for the outcome, or the measurement."""
    is_missing: bool = False
    """True if the check failed because the feature is missing."""
    section: str = ""
    required: bool = True


class Report(ABC):
    """All findings about one target. Subclasses define the format."""

    def __init__(self, findings: list[Finding]) -> None:
        self.findings = findings

    @property
    @abstractmethod
    def passed(self) -> bool:
        """True if the target meets all mandatory requirements."""

    @abstractmethod
    def json(self) -> bytes:
        """Returns the report as JSON on one line."""

    def lines(self) -> list[str]:
        """Returns the report as lines of text."""
        shown = self._header()
        for group, findings in groupby(self.findings, key=lambda finding: finding.group):
            shown += ["", self._heading(group)]
            shown += [line for finding in findings for line in self.finding_lines(finding)]
        return [*shown, "", *self._summary()]

    @abstractmethod
    def finding_lines(self, finding: Finding) -> list[str]: ...

    @abstractmethod
    def _header(self) -> list[str]: ...

    def _heading(self, group: str) -> str:
        return group

    @abstractmethod
    def _summary(self) -> list[str]: ...


def count_outcomes(findings: Iterable[Finding]) -> Counter[Outcome]:
    return Counter(finding.outcome for finding in findings)


def score(counts: Counter[Outcome]) -> str:
    """Formats how many of the checks that ran have passed."""
    return f"{counts['passed']}/{counts['passed'] + counts['failed']}"
