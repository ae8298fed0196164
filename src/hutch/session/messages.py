"""The six Execbox messages, the extensions of Hutch, and their encoding. Required fields are checked, unknown
fields are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hutch.errors import ExecutionError, ProtocolError, wire_code
from hutch.session.json_value import (
    MAX_DEPTH,
    NotJsonSafe,
    check_bounds,
    decode_value,
    encode_text,
    encode_value,
    has_line_breaks,
    mask_surrogates,
    well_formed,
)
from hutch.session.large_json import decode_large_value, encode_large_value, has_more_values
from hutch.strict_json import find_excess
from hutch.text import printable

# Longer messages are decoded field by field, so that the number of values in each field can be limited. A
# message of this length takes at most a few milliseconds, however many values it has.
MAX_SIMPLE_BYTES = 256 * 1024
# Maximum number of values in a field other than the payload. Valid messages have fewer.
MAX_FIELD_VALUES = 100_000
MAX_PROVIDER_VALUES = 40_000
# Maximum number of escapes in a field whose lone surrogates are replaced. Each escape takes half a
# microsecond.
MAX_REPLACED_SURROGATES = 20_000
# Maximum size of a field other than the payload. The largest such field is usually the logs in a message of a
# runner, and the code in a message of a client. Decoding a MiB of escapes takes 11 ms.
MAX_FIELD_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 256 * 1024
MAX_ERROR_CHARS = 200
# A longer payload is not read when its message is decoded: skipping 8 MiB of escapes takes 20 to 40 ms. In a
# runner's message it must be the last field.
MAX_READ_PAYLOAD_BYTES = 1024 * 1024
MEMORY_PART_BYTES = 128 * 1024
TOO_DEEP = "a message is nested too deeply"


class SessionRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Makes an `execute` a turn of a stateful session, or another action on one. An extension of Hutch, for
    connections that have negotiated it.
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
    """Limits that the runner enforces. The last eight fields are extensions of Hutch. Other runners ignore
    them.
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
    """A `SessionRequest` if the peer has negotiated sessions. Otherwise ignored, whatever its type."""


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
        """Returns the error in the form that is sent, with one of the codes of Execbox."""
        return cls(
            code=wire_code(error.code),
            message=error.message,
            name=error.name,
            line=error.line,
            column=error.column,
            stack=error.stack,
            retry_after=error.retry_after,
        )

    def to_exception(self) -> ExecutionError:
        return ExecutionError(
            self.code, self.message, self.name, self.line, self.column, self.stack, self.retry_after
        )


class ManifestTool(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    safe_name: str
    original_name: str
    description: str | UnsetType = UNSET
    streams: bool | UnsetType = UNSET
    """True if the result is a list whose items can be sent one by one. An extension of Hutch."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a provider for the runner. It has only names and texts."""

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
    """Instruction for the runner how to use the code of an execution; see `guest/quickjs/prelude/web`.

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
    """Missing in the messages of some runners for a call without an argument."""
    id: str | UnsetType = UNSET
    """Id of the execution that makes the call. An extension of Hutch, for channels with several executions.
    """
    line: int | UnsetType = UNSET
    """Line of the source. An extension of Hutch, sent only if `options.sendCallLines` is true."""
    stream: bool | UnsetType = UNSET
    """True to receive the items of the result one by one. An extension of Hutch, sent only for tools whose
    manifest has `streams`.
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
    """Size of the memory if it exceeds the limit, because of which the execution was not suspended."""


class RefusedExecute(ProtocolError):
    """An `execute` is too large to be decoded. Unlike for an invalid message, the sender gets an answer."""

    def __init__(self, id: str, message: str) -> None:
        super().__init__(message)
        self.id = id


HostMessage = Execute | Cancel | ToolResult | ToolItem
RunnerMessage = Started | ToolCall | Log | Done | Memory | Suspended

_encoder = msgspec.json.Encoder()
_from_host = msgspec.json.Decoder(HostMessage)
_from_runner = msgspec.json.Decoder(RunnerMessage)


def encode(message: HostMessage | RunnerMessage) -> bytes:
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
    """Encodes an extension of the time limit, which the runner enforces as well."""
    return b'{"type":"extend","id":' + _encoder.encode(id) + b',"ms":%d}\n' % ms


def memory_lines(id: str, memory: Sequence[bytes]) -> Iterator[bytes]:
    """Encodes the memory of a suspended execution, in parts."""
    return (encode(Memory(id, part)) for part in memory)


def tool_result_line(call_id: str, result: bytes) -> bytes:
    """Encodes a successful `tool_result` with a result that is already JSON text."""
    head = b'{"type":"tool_result","callId":' + _encoder.encode(call_id) + b',"ok":true,"result":'
    # One copy of a long result instead of two.
    return b"".join((head, result, b"}\n"))


def tool_item_line(call_id: str, item: bytes) -> bytes:
    """Encodes a `tool_item` with an item that is already JSON text."""
    return b'{"type":"tool_item","callId":' + _encoder.encode(call_id) + b',"item":' + item + b"}\n"


def decode_from_runner(line: bytes) -> RunnerMessage:
    """Decodes a message of a runner. Raises ProtocolError if the line is not a valid message.

    A payload of more than MAX_READ_PAYLOAD_BYTES may be malformed JSON, so the caller must decode it before
    anything else uses it.
    """
    message: RunnerMessage | None = None
    if len(line) > MAX_READ_PAYLOAD_BYTES:
        message = _decode_envelope(_from_runner, line)
        if message is None and len(line) > MAX_FIELD_BYTES:
            reason = f"beyond {MAX_FIELD_BYTES} bytes, the payload must be the last field"
            raise ProtocolError(f"a message has {len(line)} bytes; {reason}")
    if message is None:
        message = _decode(_from_runner, line)
    if isinstance(message, Done) and not message.ok and not message.error:
        raise ProtocolError("done: an unsuccessful execution must carry `error`")
    return message


def decode_from_host(line: bytes) -> HostMessage:
    """Decodes a message of a host. Raises ProtocolError if the line is not a valid message.

    The result or item of a tool must be bounded JSON without line breaks. Otherwise its call fails.
    """
    message = _complete(_decode(_from_host, line))
    payload = _tool_payload(message)
    if payload is None:
        return message
    try:
        check_bounds(payload)
        text = encode_value(decode_value(payload)) if has_line_breaks(payload) else payload
    except NotJsonSafe as problem:
        return _with_payload(message, problem)
    return message if text is payload else _with_payload(message, text)


async def decode_long_from_host(line: bytes) -> HostMessage:
    """Like `decode_from_host`, but other tasks run while it decodes a long message."""
    if len(line) <= MAX_READ_PAYLOAD_BYTES:
        return decode_from_host(line)
    message: HostMessage | None = _decode_envelope(_from_host, line)
    if message is None:
        return _complete(await _decode_in_pieces(line))
    payload = _tool_payload(_complete(message))
    if payload is None:
        return message
    try:
        value = await decode_large_value(payload)
        text = await encode_large_value(value) if has_line_breaks(payload) else payload
    except NotJsonSafe as problem:
        return _with_payload(message, problem)
    return _with_payload(message, text)


def _complete(message: HostMessage) -> HostMessage:
    """Returns the message. Raises ProtocolError if it is a `tool_result` without its result or error."""
    if isinstance(message, ToolResult) and (message.result if message.ok else message.error) is UNSET:
        missing = "result" if message.ok else "error"
        raise ProtocolError(f"tool_result: `{missing}` is missing")
    return message


def _tool_payload(message: HostMessage) -> bytes | None:
    if isinstance(message, ToolItem):
        return bytes(message.item)
    if isinstance(message, ToolResult) and message.ok and message.result is not UNSET:
        return bytes(message.result)
    return None


def _with_payload(message: HostMessage, payload: bytes | NotJsonSafe) -> HostMessage:
    """Returns a `tool_result` or `tool_item` with this payload, or the error of its call."""
    assert isinstance(message, ToolResult | ToolItem)
    name = "item" if isinstance(message, ToolItem) else "result"
    if isinstance(payload, bytes):
        return msgspec.structs.replace(message, **{name: Raw(payload)})
    error = WireError(code="serialization_error", message=f"The {name} is not JSON: {payload}")
    return ToolResult(call_id=message.call_id, ok=False, error=error)


async def _decode_in_pieces(line: bytes) -> HostMessage:
    """Decodes a long message whose last field is not a long payload, with the limits of `_decode_fields`."""
    try:
        message = await decode_large_value(line)
    except NotJsonSafe as problem:
        id = _EXECUTE_ID.match(line)
        head = {"type": "execute", "id": id[1].decode(errors="replace")} if id is not None else {}
        raise _refusal(str(problem)[:MAX_ERROR_CHARS], head) from None
    if not isinstance(message, dict):
        raise ProtocolError("expected an object")
    for name, value in message.items():
        text = await encode_large_value(value)
        if name in _PAYLOADS:
            message[name] = Raw(text)
        elif name == "error" and len(text) > MAX_ERROR_BYTES:
            message[name] = msgspec.to_builtins(_long_error(len(text)))
        else:
            max_values = MAX_PROVIDER_VALUES if name == "providers" else MAX_FIELD_VALUES
            _check_field(name, len(text), message, has_excess=has_more_values(value, max_values))
            message[name] = _replace_surrogates(value)
    try:
        decoded: HostMessage = msgspec.convert(message, HostMessage)
    except ValueError as error:
        raise _protocol_error(error) from None
    return decoded


def _decode_envelope(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    """Decodes a message that ends with a long payload, as runners send it, without reading the payload.
    Returns None if the message does not have this form.
    """
    # In a string, the quotes of such a key would be escaped. The key of an inner object makes the rest of the
    # message invalid.
    key = _LAST_KEY.search(line, 0, MAX_FIELD_BYTES)
    end = len(line.rstrip())
    if key is None or line[end - 1 : end] != b"}" or _LAST_FIELD.search(line, end - _MAX_TAIL_BYTES, end):
        return None
    payload = memoryview(line)[key.end() : end - 1]
    if payload.nbytes <= MAX_READ_PAYLOAD_BYTES:
        return None
    name, replacement = key[1].decode(), b"null"
    if name == "error":
        replacement = _encoder.encode(_long_error(payload.nbytes))
    try:
        message = _decode(decoder, line[: key.end()] + replacement + b"}")
    except ProtocolError:
        return None
    if name not in message.__struct_fields__:
        return None
    return message if name == "error" else msgspec.structs.replace(message, **{name: Raw(payload)})


def _long_error(size: int) -> WireError:
    return WireError(code="runtime_error", message=f"The error has {size} bytes of JSON")


# Start of an `execute` as all known clients send it.
_EXECUTE_ID = re.compile(rb'\s*\{\s*"type"\s*:\s*"execute"\s*,\s*"id"\s*:\s*"([^"\\]{1,200})"')
_LAST_KEY = re.compile(rb',\s*"(result|inputs?|item|error)"\s*:\s*')
# A field after the payload. In an object of the payload, the value would be followed by two brackets.
_LAST_FIELD = re.compile(rb',\s*"[^"\\]{1,40}"\s*:\s*(?:"[^"\\]*"|[^"\[\]{},]+|\[[^\[\]{}]*\])\s*\}\Z')
_MAX_TAIL_BYTES = 100


def _decode(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    if len(line) <= MAX_SIMPLE_BYTES:
        if len(line) > MAX_DEPTH and find_excess(line, MAX_DEPTH, len(line)) is not None:
            raise ProtocolError(TOO_DEEP)
        try:
            return decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not _may_have_surrogates(line):
                raise _protocol_error(error) from None
    try:
        return _decode_fields(decoder, line)
    except (ValueError, RecursionError) as error:
        raise _protocol_error(error) from None


def _protocol_error(error: Exception) -> ProtocolError:
    if isinstance(error, RecursionError):
        return ProtocolError(TOO_DEEP)
    # The text of the error may quote the invalid message, so it is cut and made printable.
    return ProtocolError(printable(str(error)[:MAX_ERROR_CHARS]))


def _may_have_surrogates(text: bytes) -> bool:
    return b"\\ud" in text or b"\\uD" in text


_FIELDS: dict[Any, dict[str, str]] = {
    kind.__struct_config__.tag: dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    for kind in (Execute, Cancel, ToolResult, ToolItem, Started, ToolCall, Log, Done, Memory, Suspended)
}
_NAMES = {"type": "type"} | {field: name for names in _FIELDS.values() for field, name in names.items()}
_PAYLOADS = ("result", "input", "inputs", "item")


def _raw_decoder(names: dict[str, str]) -> msgspec.json.Decoder[Any]:
    """Returns a decoder that leaves the fields of all messages encoded."""
    fields = [(field, Raw | UnsetType, UNSET) for field in names]
    return msgspec.json.Decoder(msgspec.defstruct("RawFields", fields, rename=names))


_raw_fields = _raw_decoder(_NAMES)
_masked_fields = _raw_decoder(
    {field: mask_surrogates(name.encode()).decode() for field, name in _NAMES.items()}
)


def _decode_fields(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    """Decodes a long message, or a message with lone surrogates, which msgspec refuses.

    Skips the payload and unknown fields, however many values they have, and limits the number of values in
    every other field. Payloads keep lone surrogates. In other fields, U+FFFD replaces them.
    """
    try:
        fields = _raw_fields.decode(line)
    except msgspec.DecodeError:
        # Searching for surrogates takes 20 ms in a message of 14 MB, so it is done only now.
        if not _may_have_surrogates(line):
            raise
        buffer = bytearray(mask_surrogates(line))
        fields = _masked_fields.decode(buffer)
        # The fields are views of the buffer. Restoring the original text in the buffer restores it in the
        # fields.
        buffer[:] = line
    kind = b"" if fields.type is UNSET else bytes(fields.type)
    message: dict[str, Any] = {"type": kind.strip(b'"').decode()}
    for field, name in _FIELDS.get(message["type"], {}).items():
        raw = getattr(fields, field)
        if raw is UNSET:
            continue
        if name in _PAYLOADS:
            # A view keeps the whole line in memory, so a small payload is copied.
            is_most = 2 * memoryview(raw).nbytes > len(line)
            message[name] = raw if is_most else Raw(bytes(raw))
            continue
        text = bytes(raw)
        if name == "error" and len(text) > MAX_ERROR_BYTES:
            message[name] = msgspec.to_builtins(_long_error(len(text)))
            continue
        max_values = MAX_PROVIDER_VALUES if name == "providers" else MAX_FIELD_VALUES
        has_excess = len(text) <= MAX_FIELD_BYTES and find_excess(text, MAX_DEPTH - 1, max_values) is not None
        _check_field(name, len(text), message, has_excess=has_excess)
        message[name] = _decode_field(text)
    return msgspec.convert(message, decoder.type)


def _check_field(name: str, size: int, message: dict[str, Any], *, has_excess: bool) -> None:
    if size > MAX_FIELD_BYTES:
        raise _refusal(f"{name}: has {size} bytes of JSON; the limit is {MAX_FIELD_BYTES}", message)
    if has_excess:
        max_values = MAX_PROVIDER_VALUES if name == "providers" else MAX_FIELD_VALUES
        raise _refusal(f"{name}: has more than {max_values} values or nests too deeply", message)


def _refusal(reason: str, message: dict[str, Any]) -> ProtocolError:
    id = message.get("id")
    if message.get("type") == "execute" and isinstance(id, str):
        return RefusedExecute(id, reason)
    return ProtocolError(reason)


def _decode_field(text: bytes) -> Any:
    """Decodes a field that is known to have few values."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if text.count(b"\\u") > MAX_REPLACED_SURROGATES:
            raise
    return _replace_surrogates(decode_value(text))


def _replace_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {key: _replace_surrogates(item) for key, item in value.items()}
    return value
