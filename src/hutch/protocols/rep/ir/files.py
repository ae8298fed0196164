"""Loads flows and manifests from JSON or YAML files as JSON values of bounded size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from hutch.problems import JsonPath, Problem, describe_value, format_path
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.strict_json import find_duplicate_key
from hutch.text import cut

MAX_BYTES = 32 * 1024 * 1024
MAX_DEPTH = 100
MAX_VALUES = 100_000
_VALUES_PER_CHECK = 1_000
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"
# The place of a value: the place of its container, and its key or index there.
_Place: TypeAlias = "tuple[_Place, str | int] | None"


YAML_SUFFIXES = (".yaml", ".yml")


def load_document(path: Path) -> Any:
    """Loads a JSON or YAML file. Raises InvalidFlow."""
    return decode_document(path, load_text(path))


def load_text(path: Path) -> str:
    """Reads a file. Raises InvalidFlow."""
    try:
        # Limit the bytes that are read instead of the file size, because /dev/zero has neither a size nor an
        # end.
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}") from None
    if len(raw) > MAX_BYTES:
        raise _unreadable(path, f"is larger than {MAX_BYTES // 2**20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unreadable(
            path, f"expected UTF-8, but byte {error.start} is 0x{raw[error.start]:02x}"
        ) from None


def decode_document(path: Path, text: str) -> Any:
    """Decodes the text of a file. Raises InvalidFlow."""
    if path.suffix.lower() in YAML_SUFFIXES:
        from hutch.protocols.rep.ir.yaml import InvalidYaml, decode_yaml

        try:
            return decode_yaml(text)
        except InvalidYaml as error:
            raise _unreadable(path, f"expected YAML: {error}") from None
    try:
        document = msgspec.json.decode(text)
        duplicate = find_duplicate_key(text.encode())
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"expected JSON: {_locate_error(text, error)}") from None
    if duplicate is not None:
        raise _unreadable(path, f"expected JSON: {cut(duplicate, 60)!r} is a duplicate key")
    return document


def _unreadable(path: Path, message: str) -> InvalidFlow:
    return InvalidFlow([Problem(str(path), message)])


def _locate_error(text: str, error: Exception) -> str:
    """Returns an error message with the line and column, which msgspec does not report."""
    try:
        json.loads(text)
    except json.JSONDecodeError as located:
        return f"line {located.lineno}, column {located.colno}: {located.msg}"
    except RecursionError:
        return "nested too deeply"
    except ValueError:  # an integer with thousands of digits
        return "a number is out of range"
    return cut(str(error), 300)


def json_problem(document: Any, check: Callable[[], None] = lambda: None) -> Problem | None:
    """Returns a problem if a value is not JSON or exceeds a limit, otherwise None.

    Calls `check` for every _VALUES_PER_CHECK values. It may raise an exception to stop.
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
