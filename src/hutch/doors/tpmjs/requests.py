"""What the door hears: bodies within their limits, and the calls in them, or every fault by its field."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

from starlette.requests import Request

from hutch.doors.tpmjs.answers import VERSION_HEADER, Failed, Version
from hutch.doors.tpmjs.calls import ToolCall
from hutch.errors import InvalidPackage
from hutch.npm import names
from hutch.session.jsonvalue import NotJsonSafe, decode_value, kind_of

MAX_BATCH = 32
MAX_NAME = 256
# Faults told of one request.
_MAX_FAULTS = 10


def version_of(request: Request, *, strings: bool) -> Version:
    """The protocol in which to answer. `strings`: who names none gets errors as strings, as 1.1 has them."""
    named = request.headers.get(VERSION_HEADER)
    if named is None:
        return "1.1" if strings else "1.0"
    return "1.1" if named.strip() == "1.1" else "1.0"


def wants_stream(request: Request) -> bool:
    """Whether events are asked for by name, and JSON is not liked as much."""
    liked: dict[str, float] = {}
    for each in ",".join(request.headers.getlist("accept")).split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        liked[name] = next((_quality(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
    return liked.get("text/event-stream", 0.0) > liked.get("application/json", 0.0)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


# --- bodies ---


def check_headers(request: Request, most: int) -> None:
    """Refuses a body for what is said of it, before it is read. Raises Failed."""
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > most:
        raise _too_large(most)
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        raise Failed("media_type", f"Content-Encoding: expected none, got {encoding[:60]!r}")
    content_type = request.headers.get("content-type")
    if content_type is not None and not _is_json(content_type):
        raise Failed("media_type", f"Content-Type: expected application/json, got {content_type[:60]!r}")


def _is_json(content_type: str) -> bool:
    name, *parameters = (part.strip().lower() for part in content_type.split(";"))
    kind, _, subtype = name.partition("/")
    charsets = [part[8:].strip('"') for part in parameters if part.startswith("charset=")]
    named = kind == "application" and (subtype == "json" or subtype.endswith("+json"))
    return named and all(charset in ("utf-8", "utf8", "us-ascii") for charset in charsets)


async def read_body(request: Request, most: int) -> bytes:
    """The body, at most `most` bytes of it. Raises Failed, and ClientDisconnect."""
    parts, size = [], 0
    async with aclosing(request.stream()) as stream:
        async for part in stream:
            size += len(part)
            if size > most:
                raise _too_large(most)
            parts.append(part)
    return b"".join(parts)


def _too_large(most: int) -> Failed:
    return Failed("too_large", f"body: the most is {most} bytes")


def parse_body(body: bytes) -> Any:
    """Raises Failed. Of a name that an object has twice the last counts, as in JavaScript."""
    if not body.strip():
        raise Failed("invalid_request", "body: expected a JSON object, got nothing")
    try:
        return decode_value(body)
    except NotJsonSafe as error:
        raise Failed("invalid_request", f"body: {error}") from None


# --- calls ---


def parse_call(body: object, caller: str) -> ToolCall:
    """The call of a body. Raises Failed with all that is wrong."""
    faults: list[str] = []
    call = _call(body, "", caller, faults)
    if call is None:
        raise _told(faults)
    return call


def parse_batch(body: object, caller: str) -> list[ToolCall]:
    """The calls of a batch. Raises Failed with all that is wrong with any of them."""
    if not isinstance(body, dict):
        raise Failed("invalid_request", f"body: expected an object, got {kind_of(body)}")
    items = body.get("tools")
    if not isinstance(items, list):
        got = kind_of(items) if "tools" in body else "nothing"
        raise Failed("invalid_request", f"tools: expected an array, got {got}")
    if not 1 <= len(items) <= MAX_BATCH:
        raise Failed("invalid_request", f"tools: expected 1 to {MAX_BATCH} items, got {len(items)}")
    faults: list[str] = []
    calls = [_call(item, f"tools[{index}]", caller, faults) for index, item in enumerate(items)]
    if faults:
        raise _told(faults)
    return [call for call in calls if call is not None]


def _told(faults: list[str]) -> Failed:
    more = len(faults) - _MAX_FAULTS
    return Failed(
        "invalid_request", "; ".join(faults[:_MAX_FAULTS]) + (f"; and {more} more" if more > 0 else "")
    )


def _call(body: object, where: str, caller: str, faults: list[str]) -> ToolCall | None:
    if not isinstance(body, dict):
        faults.append(f"{where or 'body'}: expected an object, got {kind_of(body)}")
        return None
    prefix = f"{where}." if where else ""
    found = len(faults)
    spec = _spec(body, prefix, faults)
    name = _name(body, prefix, faults)
    params = _object(body, "params", prefix, faults)
    env = _env(body, prefix, faults)
    if spec is None or len(faults) > found:
        return None
    return ToolCall(spec=spec, name=name, params=params, env=env, caller=caller)


def _spec(body: dict[str, Any], prefix: str, faults: list[str]) -> names.PackageSpec | None:
    if not isinstance(body.get("packageName"), str):
        faults.append(f"{prefix}packageName: expected a string, got {_got(body, 'packageName')}")
        return None
    try:
        return names.parse(body["packageName"], body.get("version"))
    except InvalidPackage as error:
        faults.append(f"{prefix}{error.message}")
        return None


def _name(body: dict[str, Any], prefix: str, faults: list[str]) -> str:
    name = body.get("name")
    if not isinstance(name, str):
        faults.append(f"{prefix}name: expected a string, got {_got(body, 'name')}")
    elif not 1 <= len(name) <= MAX_NAME:
        faults.append(f"{prefix}name: expected 1 to {MAX_NAME} characters, got {len(name)}")
    else:
        return name
    return ""


def _object(body: dict[str, Any], field: str, prefix: str, faults: list[str]) -> dict[str, Any]:
    value = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        faults.append(f"{prefix}{field}: expected an object, got {kind_of(value)}")
        return {}
    return value


def _env(body: dict[str, Any], prefix: str, faults: list[str]) -> dict[str, str]:
    """Names and values that a process can have; the values are never told."""
    env = _object(body, "env", prefix, faults)
    for name, value in env.items():
        where = f"{prefix}env.{name}" if name.isidentifier() else f"{prefix}env[{json.dumps(name)[:60]}]"
        if not name or "=" in name or not _is_text(name):
            faults.append(f'{where[:120]}: expected a name without "=" and NUL')
        elif not isinstance(value, str):
            faults.append(f"{where[:120]}: expected a string, got {kind_of(value)}")
        elif not _is_text(value):
            faults.append(f"{where[:120]}: expected text without NUL and lone surrogates")
    return env


def _is_text(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _got(body: dict[str, Any], field: str) -> str:
    return kind_of(body[field]) if field in body else "nothing"
