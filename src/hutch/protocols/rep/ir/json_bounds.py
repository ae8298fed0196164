"""Checks that a flow is JSON and within bounds on depth and number of values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from hutch.problems import JsonPath, Problem, describe_value, format_path

MAX_DEPTH = 100
MAX_VALUES = 100_000
_VALUES_PER_CHECK = 1_000
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
# Path of a value as a linked list: the path of its container, and its key or index in the container.
_Place: TypeAlias = "tuple[_Place, str | int] | None"


def json_problem(document: Any, check: Callable[[], None] = lambda: None) -> Problem | None:
    """Returns a problem if a value is not JSON or exceeds a limit, otherwise None.

    Calls `check` for every _VALUES_PER_CHECK values. `check` may raise an exception to stop.
    """
    pending: list[tuple[_Place, int, Any]] = [(None, 0, [document])]
    count = 0
    while pending:
        container_place, depth, container = pending.pop()
        if depth > MAX_DEPTH + 1:
            return Problem(format_path(_path(container_place)[1:7]), _TOO_DEEP)
        is_object = isinstance(container, dict)
        for key, value in container.items() if is_object else enumerate(container):
            if not count % _VALUES_PER_CHECK:
                check()
            count += 1
            if count > MAX_VALUES:
                return Problem("", f"has more than {MAX_VALUES} values")
            if is_object and (not isinstance(key, str) or not _is_unicode(key)):
                shown = ascii(key)[:60]
                return Problem(
                    format_path(_path(container_place)[1:]), f"has a key that is not text: {shown}"
                )
            if isinstance(value, (dict, list)):
                pending.append(((container_place, key), depth + 1, value))
            elif (message := _scalar_problem(value)) is not None:
                return Problem(format_path(_path((container_place, key))[1:]), message)
    return None


def _scalar_problem(value: Any) -> str | None:
    if isinstance(value, str):
        return None if _is_unicode(value) else "expected Unicode text, got a lone surrogate"
    if isinstance(value, float):
        return None if value - value == 0 else "expected a finite number"
    if value is None or isinstance(value, int):
        return None
    return f"expected a JSON value, got {describe_value(value)}"


def _path(place: _Place) -> JsonPath:
    keys: list[str | int] = []
    while place is not None:
        place, key = place
        keys.append(key)
    return tuple(reversed(keys))


def _is_unicode(value: str) -> bool:
    """Returns True if the string can be encoded as UTF-8. Python strings may contain lone surrogates."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
