"""What the door hears: bodies within their limits, and what is asked in them."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any, NamedTuple

from starlette.requests import Request

from hutch.doors.abilities.answers import Failed
from hutch.session.jsonvalue import NotJsonSafe, decode_value, kind_of

MOST_FOUND = 100
MOST_LISTED = 1_000
MOST_QUERY = 1_000
KEY_HEADER = "x-credential-key"


class Asked(NamedTuple):
    """An execution that somebody asks for."""

    params: dict[str, Any]
    transform_code: str | None = None


class Kept(NamedTuple):
    """A credential that somebody wants kept. It has a secret: it shows itself to nobody."""

    domain: str
    kind: str
    key: str
    value: str
    encrypted: bool

    def __repr__(self) -> str:
        return f"Kept({self.domain!r})"


# --- bodies ---


async def read_object(request: Request, most: int) -> dict[str, Any]:
    """The body. Raises Failed when it is no object, or too large; and ClientDisconnect."""
    _check_headers(request, most)
    parts, size = [], 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            size += len(part)
            if size > most:
                raise _too_large(most)
            parts.append(part)
    body = b"".join(parts)
    if not body.strip():
        raise Failed("INVALID_REQUEST", "body: expected a JSON object, got nothing")
    try:
        value = decode_value(body)
    except NotJsonSafe as error:
        raise Failed("INVALID_REQUEST", f"body: {error}") from None
    if not isinstance(value, dict):
        raise Failed("INVALID_REQUEST", f"body: expected an object, got {kind_of(value)}")
    return value


def _check_headers(request: Request, most: int) -> None:
    """Refuses a body for what is said of it, before it is read."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(most)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        message = f"Content-Encoding: expected none, got {encoding[:60]!r}"
        raise Failed("UNSUPPORTED_MEDIA_TYPE", message)
    given = request.headers.get("content-type")
    if given is not None and not _is_json(given):
        message = f"Content-Type: expected application/json, got {given[:60]!r}"
        raise Failed("UNSUPPORTED_MEDIA_TYPE", message)


def _is_json(content_type: str) -> bool:
    name, *parameters = (part.strip().lower() for part in content_type.split(";"))
    kind, _, subtype = name.partition("/")
    charsets = [part[8:].strip('"') for part in parameters if part.startswith("charset=")]
    named = kind == "application" and (subtype == "json" or subtype.endswith("+json"))
    return named and all(charset in ("utf-8", "utf8", "us-ascii") for charset in charsets)


def _too_large(most: int) -> Failed:
    return Failed("PAYLOAD_TOO_LARGE", f"body: the most is {most} bytes")


# --- what is in them ---


_ASKED = ("params", "transformCode")


def asked(body: dict[str, Any]) -> Asked:
    """Raises Failed with all that is wrong."""
    problems = []
    params, code = body.get("params"), body.get("transformCode")
    if params is not None and not isinstance(params, dict):
        problems.append(f"params: expected an object, got {kind_of(params)}")
    # Or an ability would be run without what was meant for it.
    if params is None and (others := [name for name in body if name not in _ASKED]):
        problems.append(f"params: expected an object, got nothing; {others[0][:80]!r} belongs inside of it")
    if code is not None and not isinstance(code, str):
        problems.append(f"transformCode: expected a string, got {kind_of(code)}")
    if problems:
        raise invalid(problems)
    return Asked(params or {}, code or None)


_KEPT = ("domain", "credentialType", "credentialKey", "value", "encryptedValue")


def kept(body: dict[str, Any]) -> Kept:
    """Raises Failed with all that is wrong, and nothing of a value."""
    problems = [
        f"{field}: expected a string, got {kind_of(body[field])}"
        for field in _KEPT
        if body.get(field) is not None and not isinstance(body[field], str)
    ]
    problems += [
        f"{field}: expected a string, got nothing"
        for field in ("domain", "credentialKey")
        if body.get(field) is None
    ]
    given = [field for field in ("value", "encryptedValue") if body.get(field) is not None]
    if len(given) != 1:
        problems.append(f"value: expected it, or encryptedValue, got {'both' if given else 'neither'}")
    if problems:
        raise invalid(problems)
    return Kept(
        domain=body["domain"],
        kind=body.get("credentialType") or "header",
        key=body["credentialKey"],
        value=body[given[0]],
        encrypted=given[0] == "encryptedValue",
    )


def invalid(problems: list[str]) -> Failed:
    return Failed("INVALID_REQUEST", "; ".join(problems), problems=problems)


# --- queries ---


def query(request: Request) -> str:
    text = request.query_params.get("q", "").strip()
    if not text:
        raise Failed("INVALID_REQUEST", "q: expected what to search for")
    return text[:MOST_QUERY]


def number(request: Request, name: str, default: int, most: int) -> int:
    given = request.query_params.get(name, "").strip()
    if not given:
        return default
    if given.isascii() and given.isdecimal() and 1 <= int(given[:10]) <= most:
        return int(given)
    raise Failed("INVALID_REQUEST", f"{name}: expected a number from 1 to {most}, got {given[:40]!r}")


def text(request: Request, name: str) -> str:
    given = request.query_params.get(name, "")
    if "\0" in given or len(given) > MOST_QUERY:
        raise Failed("INVALID_REQUEST", f"{name}: expected at most {MOST_QUERY} characters, without NUL")
    return given


def flag(request: Request, name: str) -> bool:
    return request.query_params.get(name, "").lower() in ("true", "1", "yes")
