"""Rows of the benchmark table, and their Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure with its baseline and target, formatted; `data` has the raw numbers."""

    what: str
    measured: str
    baseline: str = "-"
    target: str = "-"
    met: bool | None = None
    """None if there is no target."""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """Chooses between full and quick runs."""

    quick: bool

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def percentile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def median(values: Iterable[float]) -> float:
    return percentile(values, 0.5)


def number(value: float) -> str:
    """Formats three significant digits, with a space between thousands."""
    if isinstance(value, int) or value >= 100:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def markdown(rows: Sequence[Row]) -> str:
    """Formats the table for docs/benchmarks.md."""
    lines = ["| what | measured | baseline in the same run | target |", "|---|---|---|---|"]
    for row in rows:
        mark = "" if row.met is None else " ✓" if row.met else " ✗"
        lines.append(f"| {row.what} | {row.measured} | {row.baseline} | {row.target}{mark} |")
    return "\n".join(lines)
