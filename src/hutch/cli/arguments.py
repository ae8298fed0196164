"""What was typed: checked, and read from where it points to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hutch.errors import InvalidExecution
from hutch.session.jsonvalue import NotJsonSafe, decode_value


def within(option: str, unit: str, value: float | None, most: float) -> float | None:
    if value is not None and not 0 < value <= most:
        raise InvalidExecution(option, f"expected {unit} above 0 and up to {most:g}, got {value:g}")
    return value


def text_of(file: Path | None) -> str:
    """What a file, or without one stdin, has as text."""
    where = "stdin" if file is None else str(file)
    try:
        raw = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        raise InvalidExecution(where, f"cannot be read: {error.strerror}") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte {error.start} is 0x{raw[error.start]:02x}"
        raise InvalidExecution(where, f"expected UTF-8, but {found}") from None


def params_of(text: str | None) -> dict[str, Any]:
    """The object that `--params` stands for: JSON, @FILE, or - for stdin."""
    if text is None:
        return {}
    if text == "-":
        text = text_of(None)
    elif text.startswith("@"):
        text = text_of(Path(text[1:]))
    try:
        value = decode_value(text.encode())
    except (NotJsonSafe, UnicodeEncodeError) as error:
        raise InvalidExecution("--params", f"expected a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise InvalidExecution("--params", f"expected a JSON object, got {text.strip()[:40]}")
    return value


def env_of(given: Iterable[str]) -> dict[str, str]:
    """The variables that `--env` names. Their values are never told."""
    env = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name:
            raise InvalidExecution("--env", "expected NAME=VALUE, or NAME for a variable of this shell")
        if not equals:
            if name not in os.environ:
                raise InvalidExecution("--env", f"{name} is not set in this shell; expected NAME=VALUE")
            value = os.environ[name]
        if not _is_text(name) or not _is_text(value):
            raise InvalidExecution("--env", f"{name!a}: expected UTF-8")
        env[name] = value
    return env


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
