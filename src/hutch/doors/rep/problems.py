"""What is wrong with a flow, its inputs or its manifest: everything at once, each with its path."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import TypeAlias

import msgspec

from hutch.doors.rep.codes import INVALID_IR, UNSUPPORTED_VERSION
from hutch.errors import HutchError

VERSION = "1.0.0"
"""The version of Flow IR that is understood here."""

Place: TypeAlias = tuple[str | int, ...]

MOST_PROBLEMS = 200
"""Of a flow; who has more is told of these."""
_MOST_SHOWN = 50
# Looking for a name that is close takes long where there are many, and longer where they are long.
_MOST_GUESSES = 10
_MOST_NAMES = 1_000
_LONGEST_NAME = 60
_PLAIN_KEY = re.compile(r"[\w$-]+")


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong, and where: `graph.nodes[2].retry.max`. An empty path is the whole document."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class InvalidFlow(HutchError):
    """A flow that cannot be run as it is. Nothing of it has been."""

    code = "invalid_flow"

    def __init__(self, problems: Iterable[Problem], *, received_version: str | None = None) -> None:
        self.problems = list(problems)
        self.received_version = received_version
        """What the flow says, where that is a version other than ours. Then it is the only problem."""
        super().__init__(present(self.problems))

    @property
    def rep_code(self) -> int:
        """The code that REP has for this (section 6)."""
        return INVALID_IR if self.received_version is None else UNSUPPORTED_VERSION

    @property
    def details(self) -> dict[str, object]:
        """What REP's `data.details` says of this."""
        if self.received_version is not None:
            return {"expected": VERSION, "received": self.received_version}
        return {"problems": [{"path": each.path, "message": each.message} for each in self.problems]}


def present(problems: Sequence[Problem]) -> str:
    """One a line, or the first of very many."""
    lines = [str(each) for each in problems[:_MOST_SHOWN]]
    if len(problems) > _MOST_SHOWN:
        lines.append(f"… and {len(problems) - _MOST_SHOWN} more")
    return "\n".join(lines)


class Guesses:
    """What was meant by names that nobody has; of the first few, where that is soon known."""

    def __init__(self) -> None:
        self._left = _MOST_GUESSES

    def near(self, name: str, known: Collection[str]) -> str | None:
        if not self._left or len(name) > _LONGEST_NAME or len(known) > _MOST_NAMES:
            return None
        self._left -= 1
        close = get_close_matches(name, [each for each in known if len(each) <= _LONGEST_NAME], 1)
        return close[0] if close else None


def at(place: Iterable[str | int]) -> str:
    """A place as people write it: `graph.nodes[2].with["odd key"]`."""
    return "".join(_step(each) for each in place).removeprefix(".")


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _PLAIN_KEY.fullmatch(step) else f"[{msgspec.json.encode(step).decode()}]"


def kind_of(value: object) -> str:
    """What a value is, in JSON's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"the number {value}" if abs(value) < 1e15 else "a large number"
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= 40 and value.isprintable() else "a string"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else f"a {type(value).__name__}"
