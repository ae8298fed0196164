"""The six Execbox messages and their form on a line: strict in what is required, else tolerant."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hutch.errors import ProtocolError
from hutch.session.jsonvalue import encode_value, too_deep, well_formed


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits that the runner enforces. The last two are ours: others ignore them."""

    timeout_ms: float
    memory_limit_bytes: float
    max_log_lines: float
    max_log_chars: float
    max_result_bytes: float | UnsetType = UNSET
    engine: str | UnsetType = UNSET


class WireError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error on the wire; what is not code or message is ours, and only there where it is known."""

    code: str
    message: str
    name: str | None = None
    line: int | None = None
    column: int | None = None
    retry_after: float | None = msgspec.field(name="retryAfter", default=None)
    """Seconds, where every place is taken."""


class ManifestTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    safe_name: str
    original_name: str
    description: str | UnsetType = UNSET


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A provider as the runner sees it: names and texts, nothing that runs."""

    name: str
    tools: dict[str, ManifestTool]
    types: str


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag="execute", tag_field="type"):
    id: str
    code: str
    options: Options
    providers: list[Manifest]


class Job(msgspec.Struct, frozen=True):
    """What else than running it is to be done with the code of an execution; see `guest/quickjs/prelude/web`.

    `prepare` has a quickjs runner answer with the program that the code makes; a deno runner gets that as
    `program`, to run in place of the code.

    Ours, and only from the host's own code: `Execute` has no such field for others to send.
    """

    form: Literal["wrapper", "transform", "headers", "prepare", "program"]
    input: str
    """JSON text; nothing for `prepare`."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="type"):
    id: str


class ToolResult(
    msgspec.Struct, frozen=True, kw_only=True, tag="tool_result", tag_field="type", rename="camel"
):
    call_id: str
    ok: bool
    result: Raw | UnsetType = UNSET
    error: WireError | UnsetType = UNSET


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="type"):
    id: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call", tag_field="type", rename="camel"):
    call_id: str
    provider_name: str
    safe_tool_name: str
    input: Raw
    id: str | UnsetType = UNSET
    """Ours: which execution calls, where a channel carries several."""


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done", tag_field="type", rename="camel"):
    id: str
    ok: bool
    duration_ms: float
    logs: list[str]
    result: Raw | UnsetType = UNSET
    error: WireError | UnsetType = UNSET
    logs_truncated: bool | UnsetType = UNSET


HostMessage = Execute | Cancel | ToolResult
RunnerMessage = Started | ToolCall | Done

_encoder = msgspec.json.Encoder()
_from_host = msgspec.json.Decoder(HostMessage)
_from_runner = msgspec.json.Decoder(RunnerMessage)


def encode(message: HostMessage | RunnerMessage) -> bytes:
    """One line, with its end."""
    return _encoder.encode(message) + b"\n"


def execute_line(
    id: str, code: str, options: Options, manifests: list[bytes], job: Job | None = None
) -> bytes:
    """An execute whose manifests are JSON text already: they are the same for every execution."""
    return (
        b'{"type":"execute","id":'
        + _encoder.encode(id)
        + b',"code":'
        + encode_value(code)
        + b',"options":'
        + _encoder.encode(options)
        + b',"providers":['
        + b",".join(manifests)
        + (b"]}\n" if job is None else b'],"job":' + _job_text(job) + b"}\n")
    )


def _job_text(job: Job) -> bytes:
    return b'{"form":"' + job.form.encode() + b'","input":' + encode_value(job.input) + b"}"


def tool_result_line(call_id: str, result: bytes) -> bytes:
    """A successful tool_result whose result is JSON text already."""
    return (
        b'{"type":"tool_result","callId":'
        + _encoder.encode(call_id)
        + b',"ok":true,"result":'
        + result
        + b"}\n"
    )


def decode_from_runner(line: bytes) -> RunnerMessage:
    """Raises ProtocolError for what is none of a runner's messages."""
    message: RunnerMessage = _decode(_from_runner, line)
    if isinstance(message, Done) and not message.ok and not message.error:
        raise ProtocolError("done: an unsuccessful execution must carry `error`")
    return message


def decode_from_host(line: bytes) -> HostMessage:
    """Raises ProtocolError for what is none of a host's messages."""
    message: HostMessage = _decode(_from_host, line)
    if isinstance(message, ToolResult) and (message.result if message.ok else message.error) is UNSET:
        missing = "result" if message.ok else "error"
        raise ProtocolError(f"tool_result: `{missing}` is missing")
    return message


def _decode(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    if too_deep(line):
        raise ProtocolError("a message is nested too deeply")
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if b"\\ud" not in line and b"\\uD" not in line:
            raise ProtocolError(str(error)) from None
    try:
        return msgspec.convert(_with_lone_surrogates(line), decoder.type)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(str(error)) from None


def _with_lone_surrogates(line: bytes) -> Any:
    """What msgspec does not read: payloads keep their lone surrogates, the rest gets U+FFFD for them."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ProtocolError("a message must be an object")
    rest = {key: value for key, value in message.items() if key not in _PAYLOADS}
    payloads = {key: _raw(value) for key, value in message.items() if key in _PAYLOADS}
    mended = _Mended()
    return {**payloads, **{key: mended.of(value) for key, value in rest.items()}}


_PAYLOADS = ("result", "input")
# Beyond the payload: more than any honest message has, and few enough not to hold others up.
_MOST_MENDED = 100_000


def _raw(value: Any) -> Raw:
    return Raw(json.dumps(value).encode())


class _Mended:
    """Values with U+FFFD for lone surrogates, so many of them and no more."""

    def __init__(self) -> None:
        self._left = _MOST_MENDED

    def of(self, value: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise ProtocolError(f"a message with lone surrogates has more than {_MOST_MENDED} values")
        if isinstance(value, str):
            return well_formed(value)
        if isinstance(value, list):
            return [self.of(item) for item in value]
        if isinstance(value, dict):
            return {key: self.of(item) for key, item in value.items()}
        return value
