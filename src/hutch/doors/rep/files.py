"""Flows and manifests in files: JSON, and YAML where the name says so, as bounded JSON values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from hutch.doors.rep.problems import InvalidFlow, Place, Problem, at, kind_of

MOST_BYTES = 32 * 1024 * 1024
DEEPEST = 100
MOST_VALUES = 1_000_000


def load(path: Path) -> Any:
    """The value in a file. Raises InvalidFlow."""
    try:
        # By what is read: /dev/zero has no size, and no end.
        with path.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    if len(raw) > MOST_BYTES:
        raise _unreadable(path, f"is larger than {MOST_BYTES // 2**20} MiB")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(
            path, f"expected UTF-8, but byte {error.start} is 0x{raw[error.start]:02x}"
        ) from None
    if path.suffix.lower() in (".yaml", ".yml"):
        from hutch.doors.rep.yamltext import InvalidYaml, decode

        try:
            return decode(text)
        except InvalidYaml as error:
            raise _unreadable(path, f"expected YAML: {error}") from None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise _unreadable(path, f"expected JSON: {_fault_in(text, error)}") from None


def _unreadable(path: Path, message: str) -> InvalidFlow:
    return InvalidFlow([Problem(str(path), message)])


def _fault_in(text: str, error: Exception) -> str:
    """With the line, which msgspec does not tell."""
    try:
        json.loads(text)
    except json.JSONDecodeError as found:
        return f"line {found.lineno}, column {found.colno}: {found.msg}"
    except RecursionError:
        return "nested too deeply"
    return str(error)


def fault(document: Any) -> Problem | None:
    """Why a value is none that JSON has within our bounds, if it is none."""
    waiting: list[tuple[Place, Any]] = [((), document)]
    left = MOST_VALUES
    while waiting:
        place, value = waiting.pop()
        left -= 1
        if left < 0:
            return Problem("", f"has more than {MOST_VALUES} values")
        if len(place) > DEEPEST:
            return Problem(at(place[:6]), f"is nested deeper than {DEEPEST} levels")
        if isinstance(value, dict):
            for key, each in value.items():
                if not isinstance(key, str) or not _is_text(key):
                    return Problem(at(place), f"has a key that is no text: {ascii(key)[:60]}")
                waiting.append(((*place, key), each))
        elif isinstance(value, list):
            waiting += (((*place, number), each) for number, each in enumerate(value))
        elif not isinstance(value, (str, int, float, type(None))):
            return Problem(at(place), f"expected a JSON value, got {kind_of(value)}")
        elif isinstance(value, float) and value - value != 0:
            return Problem(at(place), "expected a finite number")
        elif isinstance(value, str) and not _is_text(value):
            return Problem(at(place), "expected text in Unicode, got half of a surrogate pair")
    return None


def _is_text(value: str) -> bool:
    """Whether UTF-8 has it: a string of Python's may hold half of a surrogate pair."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
