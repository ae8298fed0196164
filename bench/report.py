"""Rows of the benchmark table, and their Markdown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

_NUMBER = re.compile(r"\d+(?: \d{3})*(?:\.\d+)?")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the table: one measured figure with its baseline and its target as text. `data` has the raw
    numbers.
    """

    what: str
    measured: str
    baseline: str = "-"
    ratio: float | None = None
    """Measured value divided by the baseline's: 0.5 is half of the time or half of the rate."""
    target: str = "-"
    met: bool | None = None
    """None if there is no target."""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """Number of repetitions in a full and in a quick benchmark."""

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


def loop_name() -> str:
    """Returns the name of the library of the running event loop."""
    return "uvloop" if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else "asyncio"


def merge(runs: Sequence[Sequence[Row]]) -> list[Row]:
    """Merges the rows of several runs: each number that differs becomes its median and range."""
    if len(runs) == 1:
        return list(runs[0])
    return [_merge_row(rows) for rows in zip(*runs, strict=True)]


def _merge_row(rows: Sequence[Row]) -> Row:
    met = [row.met for row in rows if row.met is not None]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return Row(
        what=rows[0].what,
        measured=_merge_texts([row.measured for row in rows]),
        baseline=_merge_texts([row.baseline for row in rows]),
        ratio=median(ratios) if ratios else None,
        target=rows[0].target + (f", met in {sum(met)} of {len(rows)} runs" if met else ""),
        met=2 * sum(met) > len(met) if met else None,
        data={"runs": [row.data for row in rows], "ratios": ratios},
    )


def _merge_texts(texts: Sequence[str]) -> str:
    """Merges texts that differ only in their numbers."""
    numbers = zip(*(_NUMBER.findall(text) for text in texts), strict=True)
    spreads = iter([_spread(each) for each in numbers])
    return _NUMBER.sub(lambda _: next(spreads), texts[0])


def _spread(numbers: Sequence[str]) -> str:
    """Formats the median and the range, or the number itself if all are equal."""
    ordered = sorted(numbers, key=lambda text: float(text.replace(" ", "")))
    lowest, highest = ordered[0], ordered[-1]
    return lowest if lowest == highest else f"{ordered[len(ordered) // 2]} [{lowest} to {highest}]"


def markdown(rows: Sequence[Row]) -> str:
    """Formats the table for docs/benchmarks.md."""
    lines = ["| what | measured | baseline in the same run | ratio | target |", "|---|---|---|---|---|"]
    for row in rows:
        mark = "" if row.met is None else " ✓" if row.met else " ✗"
        ratio = "-" if row.ratio is None else f"{row.ratio:.3g}"
        lines.append(f"| {row.what} | {row.measured} | {row.baseline} | {ratio} | {row.target}{mark} |")
    return "\n".join(lines)
