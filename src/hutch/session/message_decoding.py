"""Decodes Execbox messages. Required fields are checked, and unknown fields are ignored."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hutch.errors import ProtocolError
from hutch.session.extensions.messages import (
    FilePart,
    PendingCallMessage,
    Resumed,
    Stored,
    SuspendRefused,
    SuspendRequest,
)
from hutch.session.json_value import (
    MAX_DEPTH,
    NotJsonSafe,
    check_bounds,
    decode_value,
    encode_value,
    has_line_breaks,
    mask_surrogates,
    well_formed,
)
from hutch.session.large_json import decode_large_value, encode_large_value, has_more_values
from hutch.session.messages import (
    Cancel,
    Done,
    Execute,
    HostMessage,
    Log,
    Memory,
    RunnerMessage,
    ServerMessage,
    Started,
    Suspended,
    ToolCall,
    ToolItem,
    ToolResult,
    WireError,
)
from hutch.strict_json import find_excess
from hutch.text import printable

# Longer messages are decoded field by field, so that the number of values in each field can be limited.
# Decoding a message of this length takes at most a few milliseconds, however many values it has.
MAX_SIMPLE_BYTES = 256 * 1024
# Maximum number of values in a field other than the payload. Valid messages have fewer.
MAX_FIELD_VALUES = 100_000
MAX_PROVIDER_VALUES = 40_000
# Lone surrogates are replaced only in fields with at most this many escapes. Each escape takes half a
# microsecond.
MAX_REPLACED_SURROGATES = 20_000
# Maximum size of a field other than the payload. The largest such field is usually the logs in a message of a
# runner, and the code in a message of a client. Decoding a MiB of escapes takes 11 ms.
MAX_FIELD_BYTES = 4 * 1024 * 1024
MAX_ERROR_BYTES = 256 * 1024
MAX_ERROR_CHARS = 200
# A longer payload is not read when its message is decoded, because even skipping 8 MiB of escapes takes 20 to
# 40 ms. A runner must send such a payload as the last field.
MAX_READ_PAYLOAD_BYTES = 1024 * 1024
TOO_DEEP = "a message is nested too deeply"

_from_runner = msgspec.json.Decoder(RunnerMessage)


# Most processes decode only messages of runners, and making a decoder takes half a millisecond.
@cache
def _from_host() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(HostMessage)


@cache
def _from_server() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(ServerMessage)


class RefusedExecute(ProtocolError):
    """An `execute` is too large to be decoded. Its sender gets an answer, unlike the sender of an invalid
    message.
    """

    def __init__(self, id: str, message: str) -> None:
        super().__init__(message)
        self.id = id


def decode_from_runner(line: bytes) -> RunnerMessage:
    """Decodes a message of a runner. Raises ProtocolError if the line is not a valid message.

    A payload of more than MAX_READ_PAYLOAD_BYTES may be malformed JSON, so the caller must decode it before
    anything else uses it.
    """
    message: RunnerMessage = _decode_from_peer(_from_runner, line)
    return message


def decode_from_server(line: bytes) -> ServerMessage:
    """Like `decode_from_runner`, for a peer that is itself a host and may use the negotiated extensions."""
    message: ServerMessage = _decode_from_peer(_from_server(), line)
    return message


def _decode_from_peer(decoder: msgspec.json.Decoder[Any], line: bytes) -> Any:
    message: Any = None
    if len(line) > MAX_READ_PAYLOAD_BYTES:
        message = _decode_envelope(decoder, line)
        if message is None and len(line) > MAX_FIELD_BYTES:
            reason = f"beyond {MAX_FIELD_BYTES} bytes, the payload must be the last field"
            raise ProtocolError(f"a message has {len(line)} bytes; {reason}")
    if message is None:
        message = _decode(decoder, line)
    if isinstance(message, Done) and not message.ok and not message.error:
        raise ProtocolError("done: an unsuccessful execution must carry `error`")
    return message


def decode_from_host(line: bytes) -> HostMessage:
    """Decodes a message of a host. Raises ProtocolError if the line is not a valid message.

    The result or item of a tool must be bounded JSON without line breaks. Otherwise its call fails.
    """
    message = _complete(_decode(_from_host(), line))
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
    message: HostMessage | None = _decode_envelope(_from_host(), line)
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
    """Returns the message. Raises ProtocolError for a `tool_result` that lacks its result or error."""
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
    """Returns a `tool_result` or `tool_item` with this payload. If the payload is invalid, returns a failed
    `tool_result`.
    """
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
    """Decodes a message whose last field is a long payload, but leaves out the payload. Runners send such
    messages. Returns None if the message does not have this form.
    """
    # The match is a key and not part of a string, because inside a string the quotes would be escaped. If the
    # match is the key of an inner object, decoding fails below, because the brackets do not match.
    key = _LAST_KEY.search(line, 0, MAX_FIELD_BYTES)
    end = len(line.rstrip())
    if key is None or line[end - 1 : end] != b"}" or _LAST_FIELD.search(line, end - _MAX_TAIL_BYTES, end):
        return None
    payload = memoryview(line)[key.end() : end - 1]
    if payload.nbytes <= MAX_READ_PAYLOAD_BYTES:
        return None
    name, replacement = key[1].decode(), b"null"
    if name == "error":
        replacement = msgspec.json.encode(_long_error(payload.nbytes))
    try:
        message = _decode(decoder, line[: key.end()] + replacement + b"}")
    except ProtocolError:
        return None
    if name not in message.__struct_fields__:
        return None
    return message if name == "error" else msgspec.structs.replace(message, **{name: Raw(payload)})


def _long_error(size: int) -> WireError:
    return WireError(code="runtime_error", message=f"The error has {size} bytes of JSON")


# Matches the start of an `execute` as all known clients send it.
_EXECUTE_ID = re.compile(rb'\s*\{\s*"type"\s*:\s*"execute"\s*,\s*"id"\s*:\s*"([^"\\]{1,200})"')
_LAST_KEY = re.compile(rb',\s*"(result|inputs?|item|error)"\s*:\s*')
# Matches a field after the payload. A field inside the payload does not match, because at least two closing
# brackets follow it.
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
    for kind in (
        *(Execute, Cancel, ToolResult, ToolItem, Started, ToolCall, Log, Done, Memory, Suspended),
        *(FilePart, SuspendRequest, SuspendRefused, Resumed, Stored, PendingCallMessage),
    )
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
        # Search for surrogates only now that msgspec has failed, because the search takes 20 ms in a message
        # of 14 MB.
        if not _may_have_surrogates(line):
            raise
        buffer = bytearray(mask_surrogates(line))
        fields = _masked_fields.decode(buffer)
        # The fields are views of the buffer, so writing the original text into the buffer also restores the
        # text of the fields.
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
