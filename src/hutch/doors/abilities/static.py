"""Static headers: plain values as they are, code by running it where any guest runs."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any

from hutch.doors.abilities import keys
from hutch.doors.abilities.documents import Document
from hutch.doors.abilities.injecting import Header
from hutch.doors.abilities.running import Running
from hutch.egress.fetch import FetchError, Injected
from hutch.egress.headers import merge
from hutch.session.jsonvalue import encode_value
from hutch.session.messages import Job

logger = logging.getLogger("hutch.abilities")

TIMEOUT_MS = 1_000
MEMORY_BYTES = 16 * 1024 * 1024

# Most codes are a constant behind an arrow. What matches this means exactly one thing in JavaScript: escapes
# other than of quotes and backslashes, and line breaks, do not match.
_ARROW = r"[ \t\r\n]*\([ \t\r\n]*\)[ \t]*=>[ \t\r\n]*"
_CONSTANT = re.compile(
    rf"""{_ARROW}(?:"((?:[^"\\\r\n]|\\["'\\])*)"|'((?:[^'\\\r\n]|\\["'\\])*)')[ \t\r\n]*"""
)
_ESCAPED = re.compile(r"""\\(["'\\])""")


async def evaluate(document: Document, running: Running) -> list[Header]:
    """The headers with their values; those that have none are left out, which the log tells."""
    given = document.static_headers
    if isinstance(given, dict):
        found: list[tuple[str, str | None]] = list(given.items())
    else:
        found = [(each.key, constant(each.value_code)) for each in given]
        codes = [each.value_code for each, (_, known) in zip(given, found, strict=True) if known is None]
        if codes:
            made = iter(await _run(codes, running))
            found = [(key, next(made) if known is None else known) for key, known in found]
    headers = [_header(document, key, value) for key, value in found]
    return [each for each in headers if each is not None]


def constant(code: str) -> str | None:
    """What code as plain as `() => "v"` returns; None for all other."""
    found = _CONSTANT.fullmatch(code)
    if found is None:
        return None
    return _ESCAPED.sub(r"\1", found[1] if found[1] is not None else found[2])


async def _run(codes: Sequence[str], running: Running) -> list[str | None]:
    """All in one execution, which has neither a network nor what the ability is called with."""
    job = Job("headers", encode_value(codes).decode())
    result = await running.run("", job, "headers", timeout_ms=TIMEOUT_MS, memory_bytes=MEMORY_BYTES)
    said = result.result if isinstance(result.result, list) else []
    if result.error is not None:
        logger.warning("the static headers of %s have no values: %s", running.label, result.error.code)
    return [_value(said[at] if at < len(said) else None) for at in range(len(codes))]


def _value(said: Any) -> str | None:
    value = said.get("value") if isinstance(said, dict) else None
    return value if isinstance(value, str) else None


def _header(document: Document, text: str, value: str | None) -> Header | None:
    key = keys.read(text, document.service_name)
    reason = "its code gave none" if value is None else _fault(key.name, value)
    if value is None or reason is not None or (key.host is None and "::" in text):
        where = reason or "its key names no host"
        logger.warning("%s: the static header %s was left out: %s", document.ability_id, text, where)
        return None
    return Header(key, key.name, value)


def _fault(name: str, value: str) -> str | None:
    try:
        merge([Injected(name, value)], ())
    except FetchError as error:
        return error.message
    return None
