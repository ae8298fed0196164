"""Parses request headers and tool calls. Error messages name the field of each problem."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from hutch.errors import InvalidPackage
from hutch.http.errors import ApiError
from hutch.npm.package_spec import PackageSpec, parse_spec
from hutch.problems import Problem, ProblemList
from hutch.protocols.tpmjs.models import PackageToolCall
from hutch.protocols.tpmjs.responses import VERSION_HEADER, ProtocolVersion
from hutch.session.json_value import kind_of
from hutch.text import cut, is_storable_text

MAX_BATCH = 32
MAX_NAME_CHARS = 256
MAX_ENV_NAMES = 1_000
# Limit for all values of `env` together. Run records are searched for these values, which takes memory and
# time for each character.
MAX_ENV_CHARS = 64 * 1024


def requested_version(request: Request, *, string_errors: bool) -> ProtocolVersion:
    """Returns the protocol version of the response: 1.1 if the request asks for it, otherwise 1.0.

    With `string_errors`, a request without a version gets 1.1, because errors of that version are strings.
    """
    version = request.headers.get(VERSION_HEADER)
    if version is None:
        return "1.1" if string_errors else "1.0"
    return "1.1" if version.strip() == "1.1" else "1.0"


def wants_stream(request: Request) -> bool:
    """Returns True if the Accept header prefers event streams to JSON."""
    qualities: dict[str, float] = {}
    for media_range in ",".join(request.headers.getlist("accept")).split(","):
        name, *parameters = (part.strip().lower() for part in media_range.split(";"))
        qualities[name] = next((_quality(part[2:]) for part in parameters if part.startswith("q=")), 1.0)
    return qualities.get("text/event-stream", 0.0) > qualities.get("application/json", 0.0)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


# --- calls ---


def parse_call(body: dict[str, Any], caller: str) -> PackageToolCall:
    """Parses a call. Raises ApiError with the problems of the call."""
    problems = ProblemList(_invalid_request)
    call = _call(body, "", caller, problems)
    problems.raise_if_any()
    assert call is not None
    return call


def parse_batch(body: dict[str, Any], caller: str) -> list[PackageToolCall]:
    """Parses a batch. Raises ApiError with the problems of all calls."""
    items = body.get("tools")
    if not isinstance(items, list):
        got = kind_of(items) if "tools" in body else "nothing"
        raise ApiError("invalid_request", f"tools: expected an array, got {got}")
    if not 1 <= len(items) <= MAX_BATCH:
        raise ApiError("invalid_request", f"tools: expected 1 to {MAX_BATCH} items, got {len(items)}")
    problems = ProblemList(_invalid_request)
    calls = [_call(item, f"tools[{index}]", caller, problems) for index, item in enumerate(items)]
    problems.raise_if_any()
    return [call for call in calls if call is not None]


def _invalid_request(problems: list[Problem]) -> ApiError:
    return ApiError("invalid_request", "; ".join(map(str, problems)))


def _call(body: object, where: str, caller: str, problems: ProblemList) -> PackageToolCall | None:
    if not isinstance(body, dict):
        problems.add(where, f"expected an object, got {kind_of(body)}")
        return None
    prefix = f"{where}." if where else ""
    problem_count = len(problems)
    spec = _spec(body, prefix, problems)
    name = _name(body, prefix, problems)
    params = _object(body, "params", prefix, problems)
    env = _env(body, prefix, problems)
    validate = body.get("validate")
    if not isinstance(validate, bool | None):
        problems.add(f"{prefix}validate", f"expected true or false, got {kind_of(validate)}")
    if spec is None or len(problems) > problem_count:
        return None
    return PackageToolCall(
        spec=spec, name=name, params=params, env=env, caller=caller, validate=bool(validate)
    )


def _spec(body: dict[str, Any], prefix: str, problems: ProblemList) -> PackageSpec | None:
    if not isinstance(body.get("packageName"), str):
        problems.add(f"{prefix}packageName", f"expected a string, got {_got(body, 'packageName')}")
        return None
    try:
        return parse_spec(body["packageName"], body.get("version"))
    except InvalidPackage as error:
        field, _, message = error.message.partition(": ")
        problems.add(f"{prefix}{field}", message)
        return None


def _name(body: dict[str, Any], prefix: str, problems: ProblemList) -> str:
    name = body.get("name")
    if not isinstance(name, str):
        problems.add(f"{prefix}name", f"expected a string, got {_got(body, 'name')}")
    elif not 1 <= len(name) <= MAX_NAME_CHARS:
        problems.add(f"{prefix}name", f"expected 1 to {MAX_NAME_CHARS} characters, got {len(name)}")
    else:
        return name
    return ""


def _object(body: dict[str, Any], field: str, prefix: str, problems: ProblemList) -> dict[str, Any]:
    value = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        problems.add(f"{prefix}{field}", f"expected an object, got {kind_of(value)}")
        return {}
    return value


def _env(body: dict[str, Any], prefix: str, problems: ProblemList) -> dict[str, str]:
    """Returns `env` and adds its problems. Names and values must be valid for a process. Messages never
    contain values.
    """
    env = _object(body, "env", prefix, problems)
    if len(env) > MAX_ENV_NAMES:
        problems.add(f"{prefix}env", f"expected at most {MAX_ENV_NAMES} names, got {len(env)}")
        return {}
    if (size := sum(len(value) for value in env.values() if isinstance(value, str))) > MAX_ENV_CHARS:
        problems.add(f"{prefix}env", f"expected values of at most {MAX_ENV_CHARS} characters, got {size}")
        return {}
    for name, value in env.items():
        if not name or "=" in name or not is_storable_text(name):
            problems.add(f"{prefix}{_env_path(name)}", 'expected a name without "=" and NUL')
        elif not isinstance(value, str):
            problems.add(f"{prefix}{_env_path(name)}", f"expected a string, got {kind_of(value)}")
        elif not is_storable_text(value):
            problems.add(f"{prefix}{_env_path(name)}", "expected text without NUL and lone surrogates")
    return env


def _env_path(name: str) -> str:
    return f"env.{name}" if name.isidentifier() else f"env[{json.dumps(cut(name, 60))}]"


def _got(body: dict[str, Any], field: str) -> str:
    return kind_of(body[field]) if field in body else "nothing"
