"""Runs wrappers and transforms in the sandbox, and decodes and truncates response bodies."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from hutch.egress.client.headers import MAX_HEADERS
from hutch.egress.client.models import FetchError, Headers, RequestLogEntry
from hutch.errors import ExecutionError, HutchError
from hutch.kernel.execution import Source
from hutch.protocols.abilities.definition import AbilityDefinition
from hutch.protocols.abilities.fetch_tools import FetchTools
from hutch.protocols.abilities.sandbox_run import AbilityRun
from hutch.session.json_value import NotJsonSafe, encode_decoded_value
from hutch.session.large_json import decode_large_value
from hutch.session.messages import Job
from hutch.session.run import RunHandle, TextRedactor, new_run_id

WRAPPER_NOT_FOUND = "Wrapper function not found in wrapper code"
# Options of every wrapper. The specification defines `dynamicHeaders`, and published wrappers read it. It is
# always empty, because the host adds the headers to requests.
_OPTIONS: dict[str, Any] = {"dynamicHeaders": {}}
# Error messages of the parser, of QuickJS and of Hutch that quote a text. The text may be a literal in the
# wrapper's code, so `hide_literals` removes it. Each entry has the pattern before the text, the opening
# quote, and the pattern after the text. Messages that are not listed here quote at most the names of
# variables.
_QUOTING_MESSAGES = (
    ("Invalid regular expression: ", "/", "/[a-z]*: "),
    ("Duplicate export ", "'", "'"),
    ("cannot (?:read|set) property ", "'", "' of (?:null|undefined)"),
    ("", "'", "' is read-only"),
    ("could not load module ", "'", "'"),
    ("[Uu]nexpected (?:token|identifier)(?: in expression)?:? ", "'", "'"),
    ("Invalid URL: ", "'", "'"),
    ("Headers: ", '"', '" is not a valid name'),
    ("(?:Headers: the value of|The value of the header) ", "", " has "),
    ("the encoding ", '"', '" is not supported'),
    ("Unknown encoding: ", "", "\\Z"),
    ("the method ", '"', '" is not allowed'),
    ("", "'", "' is not a (?:valid header name|method that can be used)"),
    ("the scheme ", "", " is not supported"),
)
# Match the end with a lookahead, so that `finditer` also finds ends that overlap.
_QUOTED = [
    (re.compile(before + quote), re.compile(f"(?={after})", re.S))
    for before, quote, after in _QUOTING_MESSAGES
]
_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
MAX_ERROR_CHARS = 8_000
_ERROR_CODES = {"timeout": "TIMEOUT", "memory_limit": "MEMORY_LIMIT", "internal_error": "INTERNAL_ERROR"}
_FETCH_CODES = {"egress_refused": "EGRESS_REFUSED", "timeout": "TIMEOUT"}

_NO_BODY = (204, 205, 304)


# --- wrapper ---


class WrapperResponse(msgspec.Struct, frozen=True, kw_only=True):
    """Response returned by a wrapper."""

    status: int
    reason: str
    headers: Headers
    body: Any = None

    @property
    def ok(self) -> bool:
        return 200 <= self.status <= 299


class WrapperFailure(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    line: int | None = None


class WrapperOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a wrapper: a response or a failure."""

    response: WrapperResponse | None = None
    failure: WrapperFailure | None = None
    run_id: str = ""
    logs: list[str] = []


class _GuestResult(msgspec.Struct, rename="camel"):
    """Result of the guest's job. See `guest/quickjs/prelude/web/jobs.ts`."""

    missing: bool = False
    returned: str | None = None
    status: int = 0
    status_text: str = ""
    headers: list[tuple[str, str]] = []
    held: int | None = None
    text: str | None = None
    data: Any = UNSET
    """Plain data that the wrapper returned instead of a response."""


async def run_wrapper(
    definition: AbilityDefinition,
    params: dict[str, Any],
    fetch_tools: FetchTools,
    ability_run: AbilityRun,
    *,
    request_log: list[RequestLogEntry],
    redactor: TextRedactor,
    is_own: bool,
    run_id: str | None = None,
) -> WrapperOutcome:
    """Calls `wrapper(payload, options)` in the sandbox. `redactor` replaces secrets in the record.

    `is_own` is true if the user is the ability's author. Otherwise the record of the run contains neither the
    wrapper's code nor values from this code, because the user can read the record. Raises HutchError if the
    execution cannot start.
    """
    settings = ability_run.kernel.settings
    arguments = encode_decoded_value({"payload": params, "options": _OPTIONS}).decode()
    run = _WrapperRun(
        run_id or new_run_id(),
        requests=request_log,
        redactor=redactor,
        record_level=None if is_own else "metadata",
    )
    if ability_run.preparation is not None:
        await ability_run.preparation.begin(run)
    result = await ability_run.run(
        definition.wrapper_code,
        Job("wrapper", arguments),
        timeout_ms=settings.ability_timeout_ms,
        memory_bytes=settings.ability_memory_bytes,
        providers=(fetch_tools.provider(),),
        run=run,
        source=Source(definition.wrapper_code, encode_decoded_value(params)),
    )
    if result.error is not None:
        seconds = settings.ability_timeout_ms / 1000
        decoded: WrapperResponse | WrapperFailure = _failure_of(
            result.error, fetch_tools.error, seconds, definition.wrapper_code
        )
    else:
        decoded = await _decode_result(result.result, fetch_tools)
    return WrapperOutcome(
        response=decoded if isinstance(decoded, WrapperResponse) else None,
        failure=decoded if isinstance(decoded, WrapperFailure) else None,
        run_id=result.run_id,
        logs=result.logs,
    )


class _WrapperRun(RunHandle):
    def failure_code(self, value: Any) -> str | None:
        """Returns a failure code if the wrapper ended without an error but returned no response."""
        return "runtime_error" if isinstance(value, dict) and "status" not in value else None


def _failure_of(
    error: ExecutionError, fetch_error: FetchError | None, seconds: float, wrapper_code: str
) -> WrapperFailure:
    if error.code in _ERROR_CODES:
        message = error.message
        if error.code == "timeout":
            message = f"The wrapper did not finish within {seconds:g} s (setting ability_timeout_ms)"
        return WrapperFailure(code=_ERROR_CODES[error.code], message=message)
    code = "WRAPPER_ERROR"
    if fetch_error is not None and fetch_error.message in error.message:
        code = _FETCH_CODES.get(fetch_error.kind, "UPSTREAM_ERROR")
    message = hide_literals(error.message[:MAX_ERROR_CHARS], wrapper_code)
    return WrapperFailure(code=code, message=message or "The wrapper failed", line=error.line)


def hide_literals(message: str, wrapper_code: str) -> str:
    """Removes quotations of the wrapper's code from an error message. Does not change messages that the
    wrapper's author wrote.

    Finds a quoting message also inside of a longer message, because a wrapper may add text to an error that
    it catches.
    """
    for opening, closing in _QUOTED:
        if (opened := opening.search(message)) is None:
            continue
        # Search from the first opening quote to the last closing quote. One pattern for both would take
        # quadratic time: 1.4 s for a message of 8,000 quotes.
        ends = [match.start() for match in closing.finditer(message, opened.end())]
        if ends and not _is_known_name(message[opened.end() : ends[-1]], wrapper_code):
            message = f"{message[: opened.end()]}…{message[ends[-1] :]}"
    return message


def _is_known_name(text: str, wrapper_code: str) -> bool:
    """Returns True if the text may be shown: a single character, or the name of a property that the code
    accesses with a dot.
    """
    if len(text) <= 1:
        return True
    return bool(_NAME.fullmatch(text) and re.search(rf"\.\s*{re.escape(text)}(?![\w$])", wrapper_code))


async def _decode_result(value: Any, fetch_tools: FetchTools) -> WrapperResponse | WrapperFailure:
    try:
        result = msgspec.convert(value, _GuestResult)
    except msgspec.ValidationError:
        result = _GuestResult(returned="something else")
    if result.missing:
        return WrapperFailure(code="WRAPPER_ERROR", message=WRAPPER_NOT_FOUND)
    if result.returned is not None:
        message = f"The wrapper must return a Response or plain data; it returned {result.returned[:100]}"
        return WrapperFailure(code="WRAPPER_ERROR", message=message)
    if result.data is not UNSET:
        return WrapperResponse(status=result.status, reason="", headers=[], body=result.data)
    if len(result.headers) > MAX_HEADERS:
        message = f"The wrapper returned a Response with more than {MAX_HEADERS} headers"
        return WrapperFailure(code="WRAPPER_ERROR", message=message)
    try:
        data = await fetch_tools.body(result.held) if result.held is not None else (result.text or "")
    except FetchError as error:
        code = _FETCH_CODES.get(error.kind, "UPSTREAM_ERROR")
        return WrapperFailure(code=code, message=error.message)
    body = await _decode_body(result.status, result.headers, data)
    return WrapperResponse(status=result.status, reason=result.status_text, headers=result.headers, body=body)


# --- transform ---


async def run_transform(code: str, body: Any, ability_run: AbilityRun) -> Any:
    """Runs the transform code. Returns the transformed body, or the error together with the original body."""
    settings = ability_run.kernel.settings
    try:
        result = await ability_run.run(
            code,
            Job("transform", encode_decoded_value(body).decode()),
            "transform",
            timeout_ms=settings.transform_timeout_ms,
            memory_bytes=settings.ability_memory_bytes,
        )
    except (HutchError, NotJsonSafe) as error:
        return _transform_error(str(error), body)
    if result.error is not None:
        return _transform_error(_transform_message(result.error, settings.transform_timeout_ms), body)
    return result.result


def _transform_error(message: str, body: Any) -> dict[str, Any]:
    return {"_transform_error": message, "_original_data": body}


def _transform_message(error: ExecutionError, timeout_ms: float) -> str:
    if error.code == "timeout":
        return f"The transform did not finish within {timeout_ms / 1000:g} s"
    return error.message or "The transform failed"


# --- response body ---


async def _decode_body(status: int, headers: Sequence[tuple[str, str]], data: bytes | str) -> Any:
    """Decodes the body as JSON if its content type is JSON and it is valid JSON, otherwise as text. Returns
    None if there is no body.
    """
    if status in _NO_BODY:
        return None
    content_type = next((value for name, value in headers if name.lower() == "content-type"), "")
    if _is_json_type(content_type):
        text = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        text = text.removeprefix(codecs.BOM_UTF8).strip()
        try:
            return await decode_large_value(text) if text else None
        except NotJsonSafe:
            pass
    return data if isinstance(data, str) else data.decode("utf-8-sig", "replace")


def _is_json_type(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return "application/json" in media_type or media_type.endswith("+json")


class TruncatedBody(msgspec.Struct, frozen=True):
    """A body for the caller, possibly truncated."""

    body: Any
    original_length: int | None = None
    """Length of the whole JSON text if the body was truncated, otherwise None."""


def truncate_body(body: Any, max_chars: int) -> TruncatedBody:
    """Truncates a body whose JSON text is longer than `max_chars`. The format is defined by the
    specification.
    """
    encoded = encode_decoded_value(body)
    # Comparing bytes is enough here, because a text never has more UTF-16 units than UTF-8 bytes.
    if len(encoded) <= max_chars:
        return TruncatedBody(body)
    text = encoded.decode()
    length = _utf16_length(text)
    if length <= max_chars:
        return TruncatedBody(body)
    return TruncatedBody(
        f"{_utf16_prefix(text, max_chars)}\n\n[... Response truncated. Original length: {length} characters]",
        length,
    )


def _utf16_length(text: str) -> int:
    """Returns the length in UTF-16 units, as in JavaScript."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def _utf16_prefix(text: str, max_chars: int) -> str:
    if text.isascii():
        return text[:max_chars]
    return text.encode("utf-16-le")[: 2 * max_chars].decode("utf-16-le", "ignore")
