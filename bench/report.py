"""What a bench found: rows, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure, its baseline and its target, ready to print; `data` has the numbers behind it."""

    what: str
    measured: str
    baseline: str = "-"
    target: str = "-"
    met: bool | None = None
    """None where there is no target."""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """How much to measure."""

    quick: bool

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values: Iterable[float]) -> float:
    return percentile(values, 0.5)


def number(value: float) -> str:
    """Three figures, and a space between thousands."""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def markdown(rows: Sequence[Row]) -> str:
    """The table as the README has it."""
    lines = ["| what | measured | baseline in the same run | target |", "|---|---|---|---|"]
    for row in rows:
        mark = "" if row.met is None else " ✓" if row.met else " ✗"
        lines.append(f"| {row.what} | {row.measured} | {row.baseline} | {row.target}{mark} |")
    return "\n".join(lines)
