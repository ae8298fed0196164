"""Lists for people: columns, and how long ago something was."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    lines = [heads, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        text = "  ".join(each.ljust(width) for each, width in zip(line, widths, strict=True)).rstrip()
        print(text)


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """One a line, with its name in front."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        print(f"{name.ljust(width)}  {value}")


def print_note(text: str) -> None:
    """Beside what is asked for, and not in its way."""
    print(f"hutch: {text}", file=sys.stderr)


def ago(when: float) -> str:
    """A moment in seconds since the epoch."""
    minutes = max(0, int(time.time() - when)) // 60
    if minutes < 1:
        return "just now"
    if minutes < 60:
        return f"{minutes} min ago"
    return f"{minutes // 60} h ago" if minutes < 48 * 60 else f"{minutes // 1440} days ago"


def since(moment: str | None) -> str:
    """A time of the store's."""
    return "never" if moment is None else ago(datetime.fromisoformat(moment).timestamp())
