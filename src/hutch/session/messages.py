"""The six Execbox messages, the extensions of Hutch, and their encoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hutch.errors import ExecutionError, wire_code
from hutch.session.extensions.messages import HostExtensionMessage, ServerExtensionMessage
from hutch.session.json_value import encode_text

MEMORY_PART_BYTES = 128 * 1024


class SessionRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Makes an `execute` a turn of a stateful session, or another action on a session. An extension of Hutch,
    only for connections that have negotiated it.
    """

    id: str = ""
    """Empty for the action `list`."""
    action: Literal["run", "fork", "rollback", "variables", "info", "store", "delete", "list"] = "run"
    """Only `run` runs the code."""
    copy: str = ""
    """Id of the fork."""
    turn: int = 0
    """Turn to go back to."""


class Options(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits that the runner enforces. All fields but the first four are extensions of Hutch. Other runners
    ignore them.
    """

    timeout_ms: float
    memory_limit_bytes: float
    max_log_lines: float
    max_log_chars: float
    max_result_bytes: float | UnsetType = UNSET
    engine: str | UnsetType = UNSET
    stream_logs: bool | UnsetType = UNSET
    """True to receive each log line in a `log` message while the execution runs."""
    send_run_id: bool | UnsetType = UNSET
    """True to receive the id of the run in `started`."""
    send_call_lines: bool | UnsetType = UNSET
    """True to receive the source line of each call in `tool_call`."""
    check: bool | UnsetType = UNSET
    """True to type-check the code before it runs."""
    traceparent: str | UnsetType = UNSET
    """W3C trace context of the caller."""
    session: Any | UnsetType = UNSET
    """A `SessionRequest` if the peer has negotiated sessions. Otherwise the field may have any type and is
    ignored.
    """
    files: Any | UnsetType = UNSET
    """A list of `FileHeader` if the peer has negotiated files. Otherwise ignored."""
    resume: Any | UnsetType = UNSET
    """A `ResumeRequest` if the peer has negotiated durable runs. Otherwise ignored."""


class WireError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Error in a message. Fields other than code and message are extensions of Hutch, and are set only if
    known.
    """

    code: str
    message: str
    name: str | None = None
    line: int | None = None
    column: int | None = None
    stack: str | None = None
    """Call stack in the guest's source, one frame per line."""
    retry_after: float | None = msgspec.field(name="retryAfter", default=None)
    """Seconds after which to retry. Set if all runners are busy."""

    @classmethod
    def of(cls, error: ExecutionError) -> WireError:
        """Converts an error for sending: replaces codes that only Hutch has by Execbox codes."""
        # Append the position to the message of a syntax error, because other hosts do not know the fields
        # with the position.
        position = _position(error) if error.name == "SyntaxError" and "\n" not in error.message else ""
        return cls(
            code=wire_code(error.code),
            message=f"{error.message}{position}",
            name=error.name,
            line=error.line,
            column=error.column,
            stack=error.stack,
            retry_after=error.retry_after,
        )

    def to_exception(self) -> ExecutionError:
        message = self.message.removesuffix(_position(self))
        return ExecutionError(
            self.code, message, self.name, self.line, self.column, self.stack, self.retry_after
        )


def _position(error: WireError | ExecutionError) -> str:
    """Returns the position to append to the message of a syntax error."""
    return "" if error.line is None else f" ({error.line}:{error.column})"


class ManifestTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    safe_name: str
    original_name: str
    description: str | UnsetType = UNSET
    streams: bool | UnsetType = UNSET
    """True if the tool can send the items of its result, a list, one by one. An extension of Hutch."""
    idempotent: Any | UnsetType = UNSET
    """True if a call may be made again after a crash. An extension of Hutch."""
    output_schema: Any | UnsetType = UNSET
    """JSON Schema of the result. An extension of Hutch, sent only to continue a suspended run."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a provider for the runner. It contains only names and texts."""

    name: str
    tools: dict[str, ManifestTool]
    types: str


class Execute(msgspec.Struct, frozen=True, kw_only=True, tag="execute", tag_field="type"):
    id: str
    code: str
    options: Options
    providers: list[Manifest]
    inputs: Raw | UnsetType = UNSET
    """Object whose properties become global variables of the guest. An extension of Hutch."""


class Job(msgspec.Struct, frozen=True):
    """Tells the runner how to use the code of an execution; see `guest/quickjs/prelude/web`.

    With `prepare`, a quickjs runner returns the program compiled from the code. With `program`, a deno runner
    runs such a program instead of the code.

    This is an extension that only the host itself sends. Clients cannot send it, because `Execute` has no
    such field.
    """

    form: Literal["wrapper", "transform", "headers", "prepare", "program"]
    input: str
    """Input of the job as JSON text. Empty for `prepare`."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel", tag_field="type"):
    id: str


class ToolResult(
    msgspec.Struct, frozen=True, kw_only=True, tag="tool_result", tag_field="type", rename="camel"
):
    call_id: str
    ok: bool
    result: Raw | UnsetType = UNSET
    error: WireError | UnsetType = UNSET
    suspend: Any | UnsetType = UNSET
    """A `SuspendedCall` if the result comes later and the peer has negotiated durable runs. Otherwise
    ignored.
    """


class ToolItem(msgspec.Struct, frozen=True, tag="tool_item", tag_field="type", rename="camel"):
    """One item of the result of a call. An extension of Hutch, sent only for a `tool_call` with `stream`. The
    call still ends with a `tool_result`, whose result is null if it succeeded.
    """

    call_id: str
    item: Raw


class Started(msgspec.Struct, frozen=True, tag="started", tag_field="type", rename="camel"):
    id: str
    run_id: str | UnsetType = UNSET
    """Id of the run on the server. An extension of Hutch, sent only if `options.sendRunId` is true."""


class Log(msgspec.Struct, frozen=True, tag="log", tag_field="type"):
    """Log lines of a running execution. An extension of Hutch, sent only if `options.streamLogs` is true."""

    id: str
    lines: list[str]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call", tag_field="type", rename="camel"):
    call_id: str
    provider_name: str
    safe_tool_name: str
    input: Raw = Raw(b"null")
    """Some runners omit this field if the call has no argument."""
    id: str | UnsetType = UNSET
    """Id of the execution that makes the call. An extension of Hutch, for channels with several executions.
    """
    line: int | UnsetType = UNSET
    """Line of the source. An extension of Hutch, sent only if `options.sendCallLines` is true."""
    stream: bool | UnsetType = UNSET
    """True to receive the items of the result one by one. An extension of Hutch, sent only for tools whose
    manifest has `streams`.
    """
    run_call_id: str | UnsetType = UNSET
    """Id of the call in its run, which does not change when the run is suspended. An extension of Hutch, only
    for connections that have negotiated durable runs.
    """


class VmState(msgspec.Struct, frozen=True):
    """State of a VM besides its memory. Only the runner needs to understand it."""

    pages: int
    faults: int


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done", tag_field="type", rename="camel"):
    id: str
    ok: bool
    duration_ms: float
    logs: list[str]
    result: Raw | UnsetType = UNSET
    error: WireError | UnsetType = UNSET
    logs_truncated: bool | UnsetType = UNSET
    vm: VmState | UnsetType = UNSET
    """State of the VM after a turn of a stateful session. An extension of Hutch."""
    calls: Any | UnsetType = UNSET
    """Records of the calls of a resumed run. An extension of Hutch, only for connections that have negotiated
    durable runs.
    """
    open_calls: int | UnsetType = UNSET
    """Number of tool calls whose results the guest has not received. An extension of Hutch."""
    warnings: list[str] | UnsetType = UNSET
    """Problems that did not stop the run. An extension of Hutch; only those of a server are used."""


class Memory(msgspec.Struct, frozen=True, tag="memory", tag_field="type"):
    """Part of the memory of an execution that is being suspended, or of a turn of a stateful session. An
    extension of Hutch.
    """

    id: str
    data: bytes
    """Base64 in JSON. msgspec decodes it ten times as fast as `binascii`."""


class SuspendedState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a suspended execution besides its memory. Only the runner needs to understand it. The host
    stores it and sends it back with the remaining time of the timers.
    """

    memory: dict[str, int]
    calls: list[tuple[str, int, int, int]]
    """Id, number, input size and number of received items of each open call."""
    timers: list[tuple[int, float, float]]
    """Id, remaining milliseconds, and interval or 0, of each timer."""
    logs: list[str]
    logs_truncated: bool
    error_codes: list[str]
    elapsed_ms: float


class Suspended(msgspec.Struct, frozen=True, kw_only=True, tag="suspended", tag_field="type", rename="camel"):
    """Reply to a `suspend` when the execution waits. An extension of Hutch."""

    id: str
    state: SuspendedState | UnsetType = UNSET
    too_large: int | UnsetType = UNSET
    """Size of the memory. Sent only if the size exceeds the limit, so that the execution was not suspended.
    """


HostMessage = Execute | Cancel | ToolResult | ToolItem | HostExtensionMessage
RunnerMessage = Started | ToolCall | Log | Done | Memory | Suspended
ServerMessage = RunnerMessage | ServerExtensionMessage
"""Messages that a client accepts from a server. Guests' runners cannot send those of extensions."""

_encoder = msgspec.json.Encoder()


def encode(message: HostMessage | ServerMessage) -> bytes:
    """Encodes a message as one line, including the line break."""
    return _encoder.encode(message) + b"\n"


def execute_line(
    id: str,
    code: str,
    options: bytes,
    manifests: list[bytes],
    job: Job | None = None,
    inputs: bytes | None = None,
    state: SuspendedState | None = None,
    turn: bytes | None = None,
) -> bytes:
    """Encodes `execute`. `options`, `manifests`, `inputs` and `turn` are already JSON text; most executions
    have the same options and manifests. With `state`, the execution continues where it was suspended, and its
    memory must have been sent before; see `memory_lines`.
    """
    return (
        b'{"type":"execute","id":'
        + _encoder.encode(id)
        + b',"code":'
        + encode_text(code)
        + b',"options":'
        + options
        + b',"providers":['
        + b",".join(manifests)
        + (b"]" if inputs is None else b'],"inputs":' + inputs)
        + (b"" if state is None else b',"state":' + _encoder.encode(state))
        + (b"" if turn is None else b',"turn":' + turn)
        + (b"}\n" if job is None else b',"job":' + _job_json(job) + b"}\n")
    )


def _job_json(job: Job) -> bytes:
    return b'{"form":"' + job.form.encode() + b'","input":' + encode_text(job.input) + b"}"


def suspend_line(id: str, max_bytes: int) -> bytes:
    """Encodes the request to suspend an execution when it next waits."""
    return b'{"type":"suspend","id":' + _encoder.encode(id) + b',"maxBytes":%d}\n' % max_bytes


def extend_line(id: str, ms: int) -> bytes:
    """Encodes an extension of the time limit, because the runner enforces the limit as well."""
    return b'{"type":"extend","id":' + _encoder.encode(id) + b',"ms":%d}\n' % ms


def memory_lines(id: str, memory: Sequence[bytes]) -> Iterator[bytes]:
    """Encodes the memory of a suspended execution, in parts."""
    return (encode(Memory(id, part)) for part in memory)


def tool_result_line(call_id: str, result: bytes) -> bytes:
    """Encodes a successful `tool_result` with a result that is already JSON text."""
    head = b'{"type":"tool_result","callId":' + _encoder.encode(call_id) + b',"ok":true,"result":'
    # `join` copies a long result once; two concatenations would copy it twice.
    return b"".join((head, result, b"}\n"))


def tool_item_line(call_id: str, item: bytes) -> bytes:
    """Encodes a `tool_item` with an item that is already JSON text."""
    return b'{"type":"tool_item","callId":' + _encoder.encode(call_id) + b',"item":' + item + b"}\n"
