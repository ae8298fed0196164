"""Results of Hutch's own tools: text for a model and an object for a program, both of limited length."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from mcp.types import CallToolResult, ContentBlock, TextContent

from hutch.kernel.error_hints import PROMISE_TEXT, PROMISE_WARNING
from hutch.protocols.toolscript.gateway.gateway import CompletedCall
from hutch.session.calls.description import FORGOTTEN_AWAIT
from hutch.session.json_value import NotJsonSafe, encode_value, well_formed

MAX_CHARS = 30_000
"""Maximum length of one result."""
MAX_PREVIEW_CHARS = 4_000
"""Number of characters of a result that the report shows if the whole result is kept as a value."""
MAX_LISTED_CALLS = 100
"""Maximum number of calls that are listed individually."""
MAX_LISTED_PROBLEMS = 20


class ReportedCall(msgspec.Struct, frozen=True, rename="camel"):
    server: str
    tool: str
    ok: bool
    duration_ms: float

    @classmethod
    def of(cls, call: CompletedCall) -> ReportedCall:
        return cls(call.server, call.tool, call.ok, round(call.seconds * 1000, 1))


class ReportedFile(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    mime_type: str
    size: int
    included: bool
    """False if the file is not part of the result, because it is too large."""


class ReportedProblem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A problem of a script and its position."""

    message: str
    file: str
    line: int
    column: int
    code: int = 0


class RunFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    message: str
    code: str
    line: int | None = None
    column: int | None = None
    problems: Sequence[ReportedProblem] = ()


class KeptValue(msgspec.Struct, frozen=True):
    """Name of a large result, for the argument `values` of run_code."""

    name: str
    bytes: int


class RunReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Report about a run. A result that is too long is replaced by the beginning of its text or JSON."""

    ok: bool
    result: Any = None
    stdout: str = ""
    stderr: str = ""
    logs: list[str] = []
    error: RunFailure | None = None
    exit_code: int | None = None
    tool_calls: list[ReportedCall] = []
    tool_call_count: int = 0
    duration_ms: float = 0.0
    truncated: bool = False
    files: list[ReportedFile] = []
    warnings: list[str] = []
    """Problems of the code that did not stop it."""
    value: KeptValue | None = None
    """Name under which the whole result is kept, if it was too large for the report."""


class CapturedOutput:
    """The beginning of a program's output, and the length of the whole output."""

    def __init__(self) -> None:
        self.text = ""
        self.length = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes, *, final: bool = False) -> None:
        decoded = self._decoder.decode(data, final)
        self.length += len(decoded)
        self.text += decoded[: MAX_CHARS - len(self.text)]


# --- limits ---


def clip(text: str, max_chars: int, length: int | None = None) -> str:
    """Cuts a text and appends the number of missing characters. `length` is the full length if `text` is
    already cut.
    """
    full_length = len(text) if length is None else length
    if full_length <= max_chars:
        return text
    return f"{text[:max_chars]}… truncated, {full_length - max_chars} more characters"


def fair_shares(sizes: Sequence[int], total: int) -> list[int]:
    """Divides `total` among the sizes. Small sizes get all that they need. The larger ones get equal shares
    of the rest.
    """
    shares = [0] * len(sizes)
    remaining = total
    for position, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[index] = min(sizes[index], remaining // (len(sizes) - position))
        remaining -= shares[index]
    return shares


def cut_report(
    report: RunReport, stdout: CapturedOutput | None = None, stderr: CapturedOutput | None = None
) -> RunReport:
    """Cuts a report to the maximum length. If the whole result is kept as a value, the report has only the
    first MAX_PREVIEW_CHARS of it.
    """
    error = report.error.message if report.error is not None else ""
    result = _result_text(report.result)
    out, err = stdout or CapturedOutput(), stderr or CapturedOutput()
    logs = "\n".join(report.logs)
    sizes = [len(error), len(result), out.length, err.length, len(logs)]
    shares = fair_shares(sizes, MAX_CHARS)
    if report.value is not None:
        shares[1] = min(shares[1], MAX_PREVIEW_CHARS)
    calls = report.tool_calls[:MAX_LISTED_CALLS]
    return msgspec.structs.replace(
        report,
        result=report.result if len(result) <= shares[1] else clip(result, shares[1]),
        error=report.error and msgspec.structs.replace(report.error, message=clip(error, shares[0])),
        stdout=clip(out.text, shares[2], out.length),
        stderr=clip(err.text, shares[3], err.length),
        logs=report.logs if len(logs) <= shares[4] else clip(logs, shares[4]).split("\n"),
        tool_calls=calls,
        truncated=report.truncated or sum(sizes) > MAX_CHARS or len(calls) < report.tool_call_count,
    )


# --- results ---


def text_result(text: str, structured: Any = None, *, failed: bool = False) -> CallToolResult:
    """Builds a result with one text block. Lone surrogates are replaced, because they could not be sent."""
    block = TextContent(type="text", text=well_formed(text))
    if structured is None:
        return CallToolResult(content=[block], is_error=failed)
    return CallToolResult(content=[block], structured_content=replace_surrogates(structured), is_error=failed)


def structured_result(value: msgspec.Struct, *, failed: bool = False) -> CallToolResult:
    """Builds a result for a program: structured content without text."""
    return CallToolResult(
        content=[], structured_content=replace_surrogates(msgspec.to_builtins(value)), is_error=failed
    )


def report_result(
    report: RunReport, media: Sequence[ContentBlock] = (), *, structured: bool = False
) -> CallToolResult:
    """Builds the result for a report that has already been cut. The `media` blocks follow the text."""
    if structured:
        result = structured_result(report, failed=not report.ok)
    else:
        result = text_result("\n\n".join(_report_parts(report)), failed=not report.ok)
    result.content = [*result.content, *media]
    return result


def _report_parts(report: RunReport) -> Iterable[str]:
    if report.error is not None:
        yield report.error.message
    if report.result is not None:
        yield _result_text(report.result)
    for name, text in (
        ("stdout", report.stdout),
        ("stderr", report.stderr),
        ("logs", "\n".join(report.logs)),
    ):
        text = text.rstrip()
        if name == "stderr" and report.error is not None:
            # Remove the error message from stderr, because it is part of the report already.
            text = text.removesuffix(report.error.message).rstrip()
        if text:
            yield f"{name}:\n{text}"
    if report.value is not None:
        name = report.value.name
        yield (
            f"The whole result ({report.value.bytes} bytes of JSON) is kept as {name}. To use it, call"
            f' run_code with language "javascript" and values ["{name}"]: its code has it as `values.{name}`.'
        )
    if report.files:
        yield "files:\n" + "\n".join(map(_file_line, report.files))
    failed = sum(not call.ok for call in report.tool_calls)
    calls = f"{report.tool_call_count} tool call{'' if report.tool_call_count == 1 else 's'}"
    notes = [f"{calls}, {failed} failed" if failed else calls] if report.tool_call_count else []
    if report.exit_code and report.error is None:
        notes.append(f"exit code {report.exit_code}")
    has_output = report.stdout or report.stderr or report.logs or report.files
    if not (report.error or report.result is not None or has_output):
        is_await_forgotten = any(warning.endswith(FORGOTTEN_AWAIT) for warning in report.warnings)
        advice = "" if is_await_forgotten else ": `return` the values that you need"
        notes.insert(0, f"The result is undefined{advice}")
    if report.result is not None and PROMISE_TEXT in _result_text(report.result):
        notes.append(PROMISE_WARNING)
    if notes:
        yield f"({'; '.join(notes)})"
    for warning in report.warnings:
        # The error message may contain the warning.
        if warning != PROMISE_WARNING and (report.error is None or warning not in report.error.message):
            yield f"Warning: {warning}"


def _file_line(file: ReportedFile) -> str:
    note = "" if file.included else "; too large to be included"
    return f"{file.name} ({file.mime_type}, {file.size} bytes{note})"


def _result_text(result: Any) -> str:
    """Formats a result. Strings stay unchanged, other values become JSON."""
    if result is None or isinstance(result, str):
        return result or ""
    return json_text(result)


def json_text(value: Any) -> str:
    """Encodes JSON without escaping non-ASCII letters."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return encode_value(value).decode()


def replace_surrogates(value: Any) -> Any:
    """Replaces lone surrogates by U+FFFD. Returns None if the value is not JSON."""
    try:
        if b"\\ud" not in encode_value(value).lower():
            return value
    except NotJsonSafe:
        return None
    return _replace_surrogates(value)


def _replace_surrogates(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed(str(key)): _replace_surrogates(item) for key, item in value.items()}
        case list() | tuple():
            return [_replace_surrogates(item) for item in value]
        case _:
            return value
