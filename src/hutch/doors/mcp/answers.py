"""What the door's own tools say: for a model as text, for a program as an object, both of bounded length."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from mcp.types import CallToolResult, TextContent

from hutch.doors.toolscript.gateway import Called
from hutch.session.jsonvalue import NotJsonSafe, encode_value, well_formed

MOST_CHARS = 30_000
"""Of one answer."""
MOST_CALLS = 100
"""Of those listed one by one."""
MOST_PROBLEMS = 20


class ToolCall(msgspec.Struct, frozen=True, rename="camel"):
    server: str
    tool: str
    ok: bool
    duration_ms: float

    @classmethod
    def of(cls, call: Called) -> ToolCall:
        return cls(call.server, call.tool, call.ok, round(call.seconds * 1000, 1))


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is wrong with a script, and where."""

    message: str
    file: str
    line: int
    column: int
    code: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    message: str
    code: str
    line: int | None = None
    column: int | None = None
    problems: Sequence[Place] = ()


class Ran(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a run ended. Of a result that is too long, it has the beginning of the text, or of its JSON."""

    ok: bool
    result: Any = None
    stdout: str = ""
    stderr: str = ""
    logs: list[str] = []
    error: Failure | None = None
    exit_code: int | None = None
    tool_calls: list[ToolCall] = []
    tool_call_count: int = 0
    duration_ms: float = 0.0
    truncated: bool = False


class Printed:
    """What a program prints: as much of the beginning as can be shown, and the length of all."""

    def __init__(self) -> None:
        self.text = ""
        self.length = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, data: bytes, *, final: bool = False) -> None:
        decoded = self._decoder.decode(data, final)
        self.length += len(decoded)
        self.text += decoded[: MOST_CHARS - len(self.text)]


# --- bounds ---


def clip(text: str, most: int, length: int | None = None) -> str:
    """At most so much of a text, which is the beginning of one of `length`, and a note of what is missing."""
    whole = len(text) if length is None else length
    return text if whole <= most else f"{text[:most]}… truncated, {whole - most} more characters"


def fair(sizes: Sequence[int], total: int) -> list[int]:
    """What each may have: the small ones all that they want, the others equal parts of the rest."""
    given = [0] * len(sizes)
    left = total
    for turn, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        given[index] = min(sizes[index], left // (len(sizes) - turn))
        left -= given[index]
    return given


def bounded(ran: Ran, stdout: Printed | None = None, stderr: Printed | None = None) -> Ran:
    """The same, no longer than an answer may be."""
    error = ran.error.message if ran.error is not None else ""
    result = _shown(ran.result)
    out, err = stdout or Printed(), stderr or Printed()
    logs = "\n".join(ran.logs)
    sizes = [len(error), len(result), out.length, err.length, len(logs)]
    most = fair(sizes, MOST_CHARS)
    calls = ran.tool_calls[:MOST_CALLS]
    return msgspec.structs.replace(
        ran,
        result=ran.result if len(result) <= most[1] else clip(result, most[1]),
        error=ran.error and msgspec.structs.replace(ran.error, message=clip(error, most[0])),
        stdout=clip(out.text, most[2], out.length),
        stderr=clip(err.text, most[3], err.length),
        logs=ran.logs if len(logs) <= most[4] else clip(logs, most[4]).split("\n"),
        tool_calls=calls,
        truncated=ran.truncated or sum(sizes) > MOST_CHARS or len(calls) < ran.tool_call_count,
    )


# --- as a client gets it ---


def answer(text: str, structured: Any = None, *, failed: bool = False) -> CallToolResult:
    """A result with one text; what is not well-formed would keep all of it from being sent."""
    block = TextContent(type="text", text=well_formed(text))
    if structured is None:
        return CallToolResult(content=[block], is_error=failed)
    return CallToolResult(content=[block], structured_content=sound(structured), is_error=failed)


def ran_answer(ran: Ran) -> CallToolResult:
    """`ran` is bounded."""
    return answer("\n\n".join(_parts(ran)), msgspec.to_builtins(ran), failed=not ran.ok)


def _parts(ran: Ran) -> Iterable[str]:
    if ran.error is not None:
        yield ran.error.message
    if ran.result is not None:
        yield _shown(ran.result)
    for name, text in (("stdout", ran.stdout), ("stderr", ran.stderr), ("logs", "\n".join(ran.logs))):
        # What is in the error's message need not be said again.
        if text.strip() and not (ran.error is not None and text.strip() in ran.error.message):
            yield f"{name}:\n{text.rstrip()}"
    failed = sum(not each.ok for each in ran.tool_calls)
    calls = f"{ran.tool_call_count} tool call{'' if ran.tool_call_count == 1 else 's'}"
    notes = [f"{calls}, {failed} failed" if failed else calls] if ran.tool_call_count else []
    if ran.exit_code and ran.error is None:
        notes.append(f"exit code {ran.exit_code}")
    if not (ran.error or ran.result is not None or ran.stdout or ran.stderr or ran.logs):
        notes.insert(0, "It finished and gave nothing: `return` what you want to see")
    if notes:
        yield f"({'; '.join(notes)})"


def _shown(result: Any) -> str:
    """A text is itself."""
    if result is None or isinstance(result, str):
        return result or ""
    return json_text(result)


def json_text(value: Any) -> str:
    """JSON for people and models: letters of all alphabets as they are."""
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError):
        return encode_value(value).decode()


def sound(value: Any) -> Any:
    """The same value, with U+FFFD for lone surrogates."""
    try:
        if b"\\ud" not in encode_value(value).lower():
            return value
    except NotJsonSafe:
        return None
    return _sound(value)


def _sound(value: Any) -> Any:
    match value:
        case str():
            return well_formed(value)
        case dict():
            return {well_formed(str(key)): _sound(each) for key, each in value.items()}
        case list() | tuple():
            return [_sound(each) for each in value]
        case _:
            return value
