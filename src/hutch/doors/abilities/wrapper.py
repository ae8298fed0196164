"""A wrapper run, and the response that it gave."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from hutch.doors.abilities import bodies
from hutch.doors.abilities.documents import Document
from hutch.doors.abilities.running import Running
from hutch.doors.abilities.upstream import Upstream
from hutch.egress.fetch import FetchError, Headers, Hop
from hutch.egress.headers import MAX_HEADERS
from hutch.session.messages import Job, WireError

NOT_FOUND = "Wrapper function not found in wrapper code"
# What the specification gives every wrapper, and what those in the wild ask for: never a real value.
_OPTIONS: dict[str, Any] = {"dynamicHeaders": {}}
# The one fault of which the parser quotes the source; of others it says the names at most.
_QUOTED = re.compile(r"(Invalid regular expression): /.*/[a-z]*: ", re.S)
_CODES = {"timeout": "TIMEOUT", "memory_limit": "MEMORY_LIMIT", "internal_error": "INTERNAL_ERROR"}
_FETCH_CODES = {"egress_refused": "EGRESS_REFUSED", "timeout": "TIMEOUT"}


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """What a wrapper returned."""

    status: int
    reason: str
    headers: Headers
    body: Any = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status <= 299


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no response."""

    code: str
    message: str
    line: int | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a wrapper ended: with a response, or with a failure."""

    response: Response | None = None
    failure: Failure | None = None
    run_id: str = ""
    logs: list[str] = []


class _Said(msgspec.Struct, rename="camel"):
    """What the guest tells of it; see `guest/quickjs/prelude/web/jobs.ts`."""

    missing: bool = False
    returned: str | None = None
    status: int = 0
    status_text: str = ""
    headers: list[tuple[str, str]] = []
    held: int | None = None
    text: str | None = None


async def call(
    document: Document,
    params: dict[str, Any],
    upstream: Upstream,
    running: Running,
    *,
    hops: list[Hop],
    run_id: str | None = None,
) -> Outcome:
    """Calls `wrapper(payload, options)`. Raises HutchError when it could not be begun."""
    settings = running.kernel.settings
    given = bodies.json_text({"payload": params, "options": _OPTIONS}).decode()
    result = await running.run(
        document.wrapper_code,
        Job("wrapper", given),
        timeout_ms=settings.ability_timeout_ms,
        memory_bytes=settings.ability_memory_bytes,
        providers=(upstream.provider(),),
        run_id=run_id,
        requests=hops,
        failure_in=_failure_in,
    )
    if result.error is not None:
        came: Response | Failure = _thrown(result.error, upstream.fault, settings.ability_timeout_ms / 1000)
    else:
        came = await _read(result.result, upstream)
    return Outcome(
        response=came if isinstance(came, Response) else None,
        failure=came if isinstance(came, Failure) else None,
        run_id=result.run_id,
        logs=result.logs,
    )


def _failure_in(said: Any) -> str | None:
    """For the run's record: a guest that ended well may not have done what it was for."""
    return "runtime_error" if isinstance(said, dict) and "status" not in said else None


def _thrown(error: WireError, fault: FetchError | None, seconds: float) -> Failure:
    if error.code in _CODES:
        message = error.message
        if error.code == "timeout":
            message = f"The wrapper did not finish within {seconds:g} s (setting ability_timeout_ms)"
        return Failure(code=_CODES[error.code], message=message)
    code = "WRAPPER_ERROR"
    if fault is not None and fault.message in error.message:
        code = _FETCH_CODES.get(fault.kind, "UPSTREAM_ERROR")
    message = _QUOTED.sub(r"\1: ", error.message)
    return Failure(code=code, message=message or "The wrapper failed", line=error.line)


async def _read(value: Any, upstream: Upstream) -> Response | Failure:
    try:
        said = msgspec.convert(value, _Said)
    except msgspec.ValidationError:
        said = _Said(returned="something else")
    if said.missing:
        return Failure(code="WRAPPER_ERROR", message=NOT_FOUND)
    if said.returned is not None:
        what = f"The wrapper must return a Response; it returned {said.returned[:100]}"
        return Failure(code="WRAPPER_ERROR", message=what)
    if len(said.headers) > MAX_HEADERS:
        what = f"The wrapper returned a Response with more than {MAX_HEADERS} headers"
        return Failure(code="WRAPPER_ERROR", message=what)
    try:
        data = await upstream.body(said.held) if said.held is not None else (said.text or "")
    except FetchError as error:
        code = _FETCH_CODES.get(error.kind, "UPSTREAM_ERROR")
        return Failure(code=code, message=error.message)
    body = bodies.read(said.status, said.headers, data)
    return Response(status=said.status, reason=said.status_text, headers=said.headers, body=body)
