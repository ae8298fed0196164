"""Problems of a request or a file. Lists of problems have a maximum number of problems, and each problem a
maximum length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TypeAlias

import msgspec

from hutch.text import cut, cut_middle, did_you_mean

MAX_PROBLEMS = 50
"""Maximum number of problems that one error lists."""
MORE_PROBLEMS = "there are more problems; fix these first"
MAX_PATH_CHARS = 200
MAX_MESSAGE_CHARS = 1_000
# Few suggestions, because finding a similar name takes up to 20 ms if there are many long names.
_MAX_SUGGESTIONS = 10

JsonPath: TypeAlias = tuple[str | int, ...]

_PLAIN_KEY = re.compile(r"[\w$-]+")
_MAX_KEY_CHARS = 80


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem and its path, such as `graph.nodes[2].retry.max`. An empty path means the whole document.

    Long paths, messages and ids are cut.
    """

    path: str
    message: str
    line: int | None = None
    """Line in the file, from 1."""
    step: str | None = None
    """Id of the flow's step."""

    def __post_init__(self) -> None:
        if len(self.path) > MAX_PATH_CHARS:
            msgspec.structs.force_setattr(self, "path", cut_middle(self.path, MAX_PATH_CHARS))
        if len(self.message) > MAX_MESSAGE_CHARS:
            msgspec.structs.force_setattr(self, "message", cut(self.message, MAX_MESSAGE_CHARS))
        if self.step is not None and len(self.step) > MAX_PATH_CHARS:
            msgspec.structs.force_setattr(self, "step", cut(self.step, MAX_PATH_CHARS))

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        line = None if self.line is None else f"line {self.line}"
        step = None if self.step is None else f"step {self.step}"
        place = ", ".join(filter(None, (line, step)))
        return f"{text} ({place})" if place else text


def first_problems(problems: Iterable[Problem], max_problems: int = MAX_PROBLEMS) -> list[Problem]:
    """Returns the first `max_problems` problems. If there are more, adds a last problem with the message
    MORE_PROBLEMS. Takes at most `max_problems` + 1 problems from the iterator.
    """
    found = list(islice(problems, max_problems + 1))
    return found if len(found) <= max_problems else [*found[:-1], Problem("", MORE_PROBLEMS)]


def without_consequences(problems: Iterable[Problem], causes: Iterable[Problem]) -> list[Problem]:
    """Leaves out each problem whose path equals, contains, or lies inside the path of one of the causes."""
    paths = {cause.path for cause in causes}

    def is_consequence(problem: Problem) -> bool:
        return any(_is_within(problem.path, path) or _is_within(path, problem.path) for path in paths)

    return [problem for problem in problems if not is_consequence(problem)]


def _is_within(path: str, other: str) -> bool:
    return path == other or path.startswith((f"{other}.", f"{other}["))


class ProblemList:
    """Collects the problems of one document and raises them as one error.

    `error` creates the error. After `max_problems` problems, the next one ends the validation: a document
    with a million problems costs no more than one with fifty.
    """

    def __init__(
        self, error: Callable[[list[Problem]], Exception], *, max_problems: int = MAX_PROBLEMS
    ) -> None:
        self._error = error
        self._max_problems = max_problems
        self._problems: list[Problem] = []

    def __len__(self) -> int:
        return len(self._problems)

    def add(self, path: str, message: str) -> None:
        """Adds a problem. Raises the error if the list is full."""
        self.extend((Problem(path, message),))

    def extend(self, problems: Iterable[Problem]) -> None:
        """Adds problems. Raises the error if the list is full."""
        for problem in problems:
            self._problems.append(problem)
            if len(self._problems) > self._max_problems:
                self.raise_if_any()

    def as_list(self) -> list[Problem]:
        return [*self._problems]

    def raise_if_any(self) -> None:
        if self._problems:
            raise self._error(first_problems(self._problems, self._max_problems))


class NameSuggester:
    """Suggests known names for unknown names. Stops after a few suggestions, because a document may have
    thousands of unknown names.
    """

    def __init__(self) -> None:
        self._left = _MAX_SUGGESTIONS

    def closest(self, name: str, known: Collection[str]) -> str | None:
        if not self._left:
            return None
        self._left -= 1
        return did_you_mean(name, known)


def similar_field(name: str, known: Collection[str]) -> str | None:
    """Returns the known field for which `name` may be meant, such as `timeout_ms` or `limits.timeout_ms` for
    `timeout`. The known fields of an inner object are given with its name, as in `limits.timeout_ms`.
    """
    last_parts = {field.rpartition(".")[2]: field for field in reversed([*known])}
    longer = (part for part in last_parts if part == name or part.startswith(f"{name}_"))
    similar = next(longer, None) or did_you_mean(name, last_parts)
    return None if similar is None else last_parts[similar]


def format_path(path: Iterable[str | int]) -> str:
    """Formats a path: `graph.nodes[2].with["odd key"]`."""
    return "".join(_format_segment(segment) for segment in path).removeprefix(".")


def _format_segment(segment: str | int) -> str:
    if isinstance(segment, int):
        return f"[{segment}]"
    segment = cut(segment, _MAX_KEY_CHARS)
    return f".{segment}" if _PLAIN_KEY.fullmatch(segment) else f"[{msgspec.json.encode(segment).decode()}]"


def describe_value(value: object) -> str:
    """Describes a JSON value for an error message."""
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
