"""Checks and parses arguments, and reads the files that arguments name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hutch.errors import InvalidExecution
from hutch.session.json_value import NotJsonSafe, decode_value


def check_range(option: str, unit: str, value: float | None, maximum: float) -> float | None:
    if value is not None and not 0 < value <= maximum:
        raise InvalidExecution(option, f"expected {unit} above 0 and up to {maximum:g}, got {value:g}")
    return value


def read_text(file: Path | None, *, max_bytes: int | None = None) -> str:
    """Reads UTF-8 text from a file, or from stdin if `file` is None."""
    name = "stdin" if file is None else str(file)
    count = -1 if max_bytes is None else max_bytes + 1
    try:
        if file is None:
            raw = sys.stdin.buffer.read(count)
        else:
            with file.open("rb") as opened:
                raw = opened.read(count)
    except OSError as error:
        raise InvalidExecution(name, f"cannot be read: {error.strerror}") from None
    if max_bytes is not None and len(raw) > max_bytes:
        raise InvalidExecution(name, f"expected at most {max_bytes // 1024**2} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start} is 0x{raw[error.start]:02x}"
        raise InvalidExecution(name, f"expected UTF-8, but {byte}") from None


def parse_params(text: str | None) -> dict[str, Any]:
    """Parses `--params`, which is JSON, @FILE, or - for stdin."""
    if text is None:
        return {}
    if text == "-":
        text = read_text(None)
    elif text.startswith("@"):
        text = read_text(Path(text[1:]))
    try:
        value = decode_value(text.encode())
    except (NotJsonSafe, UnicodeEncodeError) as error:
        raise InvalidExecution(
            "--params", f"expected a JSON object such as '{{\"name\": 1}}': {error}"
        ) from None
    if not isinstance(value, dict):
        raise InvalidExecution("--params", f"expected a JSON object, got {text.strip()[:40]}")
    return value


def parse_env(options: Iterable[str]) -> dict[str, str]:
    """Parses `--env NAME[=VALUE]` options. Error messages do not contain values."""
    env = {}
    for option in options:
        name, equals, value = option.partition("=")
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
