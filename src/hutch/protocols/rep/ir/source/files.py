"""Loads flows and manifests from JSON or YAML files as JSON values of bounded size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from hutch.problems import Problem
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.strict_json import find_duplicate_key
from hutch.text import cut

MAX_BYTES = 32 * 1024 * 1024
YAML_SUFFIXES = (".yaml", ".yml")


def load_document(path: Path) -> Any:
    """Loads a JSON or YAML file. Raises InvalidFlow."""
    return decode_document(path, load_text(path))


def load_text(path: Path) -> str:
    """Reads a file. Raises InvalidFlow."""
    try:
        # Limit the number of bytes read. Checking the size of the file is not enough, because /dev/zero has
        # neither a size nor an end.
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
        from hutch.protocols.rep.ir.source.yaml import InvalidYaml, decode_yaml

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
    except ValueError:  # raised for an integer with thousands of digits
        return "a number is out of range"
    return cut(str(error), 300)
