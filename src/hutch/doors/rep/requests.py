"""What the door hears: bodies within their limits, and what is asked in them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep.problems import Problem, present
from hutch.doors.rep.replies import Failed
from hutch.session.jsonvalue import NotJsonSafe, decode_value, kind_of

if TYPE_CHECKING:
    from starlette.requests import Request

    from hutch.settings import Settings

MOST_ID = 200
MOST_LISTED = 1_000
MOST_TEXT = 1_000


class Begin(msgspec.Struct, frozen=True, kw_only=True):
    """A run that somebody wants."""

    inputs: dict[str, Any] = {}
    run_id: str | None = None
    version: int | None = None
    """Of the flow; the newest if none is named."""
    concurrency: int | None = None
    timeout: float | None = None
    """Seconds for all of it; without any, it takes as long as it takes."""


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody says to a step that asks."""

    approved: bool
    by: str | None = None
    reason: str | None = None


async def read_object(request: Request, settings: Settings, *, optional: bool = False) -> dict[str, Any]:
    """The body; an empty one is `{}` where it is optional. Raises Failed, and ClientDisconnect."""
    try:
        async with asyncio.timeout(settings.request_seconds):
            body = await _read(request, settings.max_body_bytes)
    except TimeoutError:
        raise Failed("INVALID_REQUEST", f"body: did not come within {settings.request_seconds:g} s") from None
    if not body.strip() and optional:
        return {}
    try:
        value = decode_value(body)
    except NotJsonSafe as error:
        raise Failed("INVALID_REQUEST", f"body: {error}") from None
    if not isinstance(value, dict):
        raise Failed("INVALID_REQUEST", f"body: expected an object, got {kind_of(value)}")
    return value


async def _read(request: Request, most: int) -> bytes:
    given = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    # A page of another site can send anything else without asking first.
    if given != "application/json" and not given.endswith("+json"):
        message = f"Content-Type: expected application/json, got {given[:60]!r}"
        raise Failed("UNSUPPORTED_MEDIA_TYPE", message)
    parts, size = [], 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            size += len(part)
            if size > most:
                raise Failed("PAYLOAD_TOO_LARGE", f"body: the most is {most} bytes")
            parts.append(part)
    return b"".join(parts)


def begin(body: dict[str, Any]) -> Begin:
    """Raises Failed with all that is wrong."""
    problems = _unknown(body, Begin)
    expect = _Expecting(body, problems)
    expect("inputs", "an object", lambda value: isinstance(value, dict))
    expect("run_id", f"1 to {MOST_ID} printable characters, without /", is_id)
    expect("version", "an integer of at least 1", _is_count)
    expect("concurrency", "an integer of at least 1", _is_count)
    expect("timeout", "a number of seconds above 0, up to 2147483647", _is_seconds)
    _check(problems)
    given = {name: value for name, value in body.items() if value is not None}
    return Begin(**given)


def word(body: dict[str, Any]) -> Word:
    """Raises Failed with all that is wrong."""
    problems = _unknown(body, Word)
    expect = _Expecting(body, problems)
    if not isinstance(body.get("approved"), bool):
        problems.append(Problem("approved", "expected true or false"))
    expect("by", f"a text of 1 to {MOST_ID} characters", _is_text(MOST_ID))
    expect("reason", f"a text of 1 to {MOST_ID} characters", _is_text(MOST_ID))
    _check(problems)
    return Word(**body)


class _Expecting:
    """Notes what a field is not. None is as if it were not there."""

    def __init__(self, body: dict[str, Any], problems: list[Problem]) -> None:
        self._body = body
        self._problems = problems

    def __call__(self, name: str, what: str, is_so: Any) -> None:
        value = self._body.get(name)
        if value is not None and not is_so(value):
            self._problems.append(Problem(name, f"expected {what}"))


def _unknown(body: dict[str, Any], known: type[msgspec.Struct]) -> list[Problem]:
    names = ", ".join(known.__struct_fields__)
    return [
        Problem(name[:80], f"there is no such field; there is {names}")
        for name in body
        if name not in known.__struct_fields__
    ]


def _check(problems: list[Problem]) -> None:
    if problems:
        raise invalid(problems)


def invalid(problems: Iterable[Problem]) -> Failed:
    listed = list(problems)
    told = [{"path": each.path, "message": each.message} for each in listed]
    return Failed("INVALID_REQUEST", present(listed), problems=told)


def is_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MOST_ID and value.isprintable() and "/" not in value


def _is_text(most: int) -> Any:
    return lambda value: isinstance(value, str) and 0 < len(value) <= most


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 2**31


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 2**31


# --- queries ---


def number(request: Request, name: str, default: int, most: int, least: int = 1) -> int:
    given = request.query_params.get(name, "").strip()
    if not given:
        return default
    if given.isascii() and given.isdecimal() and least <= int(given[:18]) <= most:
        return int(given)
    raise Failed("INVALID_REQUEST", f"{name}: expected a number from {least} to {most}, got {given[:40]!r}")


def text(request: Request, name: str) -> str:
    given = request.query_params.get(name, "")
    if "\0" in given or len(given) > MOST_TEXT:
        raise Failed("INVALID_REQUEST", f"{name}: expected at most {MOST_TEXT} characters, without NUL")
    return given
