"""Decoding and validation of Execbox messages."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET
from tests.support.messages import TRANSCRIPT

from hutch.errors import ProtocolError
from hutch.session.json_value import decode_value
from hutch.session.message_decoding import decode_from_host, decode_from_runner, decode_long_from_host
from hutch.session.messages import (
    Done,
    Started,
    ToolCall,
    ToolResult,
    WireError,
    encode,
)


def test_extra_fields_are_ignored() -> None:
    assert decode_from_runner(b'{"type":"started","id":"a","more":[1]}') == Started("a")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"type":"nothing","id":"a"}',
        b'{"type":"started"}',
        b'{"type":"started","id":1}',
        b'{"type":"done","id":"a","ok":true,"durationMs":1}',
        b'{"type":"done","id":"a","ok":true,"durationMs":"1","logs":[]}',
        b'{"type":"done","id":"a","ok":false,"durationMs":1,"logs":[]}',
        b'{"type":"done","id":"a","ok":false,"durationMs":1,"logs":[],"error":{"code":"x"}}',
        b'{"type":"execute","id":"a","code":"","options":{},"providers":[]}',
        b'{"type":"started","id":"\xff"}',
    ],
)
def test_invalid_message_of_a_runner_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_from_runner(line)


@pytest.mark.parametrize("missing", ["timeoutMs", "memoryLimitBytes", "maxLogLines", "maxLogChars"])
def test_every_option_is_required(missing: str) -> None:
    message = json.loads(TRANSCRIPT[0])
    del message["options"][missing]
    with pytest.raises(ProtocolError, match=missing):
        decode_from_host(json.dumps(message).encode())


@pytest.mark.parametrize(("field", "value"), [("types", None), ("name", 1), ("tools", [])])
def test_invalid_manifest_makes_the_message_invalid(field: str, value: object) -> None:
    message = json.loads(TRANSCRIPT[0])
    message["providers"][0][field] = value
    with pytest.raises(ProtocolError):
        decode_from_host(json.dumps(message).encode())


def test_tool_result_needs_result_or_error() -> None:
    for line in (
        b'{"type":"tool_result","callId":"c","ok":true}',
        b'{"type":"tool_result","callId":"c","ok":false}',
    ):
        with pytest.raises(ProtocolError, match="missing"):
            decode_from_host(line)


def test_deep_nesting_is_refused() -> None:
    deep = b'{"type":"tool_call","callId":"c","providerName":"p","safeToolName":"t","input":'
    deep += b"[" * 200_000 + b"]" * 200_000 + b"}"
    with pytest.raises(ProtocolError, match="nested"):
        decode_from_runner(deep)


def test_tool_call_without_input_has_the_input_null() -> None:
    call = decode_from_runner(b'{"type":"tool_call","callId":"c","providerName":"p","safeToolName":"t"}')
    assert isinstance(call, ToolCall)
    assert bytes(call.input) == b"null"


DONE = b'{"type":"done","id":"1","ok":true,"durationMs":0,"logs":[%s],"ignored":[%s],"result":[%s]}'


@pytest.mark.parametrize("value", [b'"x"', b'"\\ud800"'], ids=["plain", "lone surrogate"])
def test_number_of_values_outside_the_payload_is_bounded(value: bytes) -> None:
    many = b",".join([value] * 100_002)
    with pytest.raises(ProtocolError, match="logs: has more than 100000 values"):
        decode_from_runner(DONE % (many, b"", b""))
    done = decode_from_runner(DONE % (value, many, many))
    assert isinstance(done, Done)
    assert bytes(done.result) == b"[%s]" % many


@pytest.mark.parametrize("line", TRANSCRIPT)
@pytest.mark.parametrize("extra", ["", r"\ud800"], ids=["plain", "lone surrogate"])
def test_long_message_is_decoded_like_a_short_one(line: str, extra: str) -> None:
    decode = decode_from_host if '"execute"' in line or '"tool_result"' in line else decode_from_runner
    long = line[:-1] + ',"ignored":"' + "x" * 300_000 + extra + '"}'
    assert encode(decode(long.encode())) == encode(decode(line.encode()))


def test_long_message_that_is_too_deep_or_malformed_is_refused() -> None:
    many = b"[" * 200 + b"]" * 200 + b" " * 300_000
    with pytest.raises(ProtocolError, match="nests too deeply"):
        decode_from_runner(DONE % (many, b"", b""))
    for wrong in (b'"\xff"', b'"\\ud80z"', b"1e999", b"NaN"):
        with pytest.raises(ProtocolError):
            decode_from_runner(DONE % (wrong, b" " * 300_000, b""))


@pytest.mark.parametrize(
    "order",
    [
        "type callId ok result",
        "result type callId ok",
        "type callId result ok",
        "type callId ok result more",
    ],
)
async def test_long_tool_result_may_have_its_fields_in_any_order(order: str) -> None:
    result = ["\ud800", {"result": 1, "x": "y" * 1_200_000}]
    fields = {"type": "tool_result", "callId": "c", "ok": True, "result": result, "more": 1}
    message = await decode_long_from_host(json.dumps({name: fields[name] for name in order.split()}).encode())
    assert isinstance(message, ToolResult)
    assert (message.call_id, message.ok) == ("c", True)
    assert decode_value(bytes(message.result)) == result


async def test_long_invalid_item_of_a_tool_is_the_error_of_its_call() -> None:
    line = b'{"type":"tool_item","callId":"c","item":[' + b"[]," * 500_000 + b"1]}"
    message = await decode_long_from_host(line)
    assert isinstance(message, ToolResult)
    assert message.error == WireError(
        code="serialization_error", message="The item is not JSON: $ has more than 250000 values"
    )


def test_long_field_that_a_message_does_not_have_is_ignored() -> None:
    head = b'{"type":"tool_call","callId":"c","providerName":"p","safeToolName":"t","result":"'
    call = decode_from_runner(head + b"x" * 1_200_000 + b'"}')
    assert isinstance(call, ToolCall)


def test_error_does_not_repeat_a_long_or_unprintable_message() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_from_host(json.dumps({"type": "\n\x1b[2J" + "x" * 1_000_000}).encode())
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


def test_lone_surrogates_are_kept_in_payloads_and_replaced_elsewhere() -> None:
    line = rb'{"type":"done","id":"a","ok":true,"durationMs":1,"logs":["x\ud800"],'
    line += rb'"result":["\udc00\u2028\u0000"]}'
    done = decode_from_runner(line)
    assert isinstance(done, Done)
    assert done.logs == ["x\ufffd"]
    assert done.result is not UNSET
    assert decode_value(bytes(done.result)) == ["\udc00\u2028\0"]


@pytest.mark.parametrize(
    "end", ['{"a":1,"id":7}', '["x",{"logs":["a"]}]', '{"id":7,"ok":true}', '"x"', '[{"line":1}]']
)
def test_long_payload_may_end_with_any_value(end: str) -> None:
    payload = f'["{"x" * 5_000_000}",{end}]'
    head = '{"type":"done","id":"1","ok":true,"durationMs":0,"logs":["a"],"result":'
    done = decode_from_runner(f"{head}{payload}}}".encode())
    assert isinstance(done, Done)
    assert bytes(done.result) == payload.encode()


@pytest.mark.parametrize("last", ['"logs":["a"]', '"logsTruncated":true', '"id":"1"', '"durationMs": 1.5 '])
def test_long_payload_must_be_the_last_field(last: str) -> None:
    head = '{"type":"done","id":"1","ok":true,"durationMs":0,"logs":[],"result":'
    line = '%s"%s",%s}'
    done = decode_from_runner((line % (head, "x" * 3_000_000, last)).encode())
    assert isinstance(done, Done)
    assert len(bytes(done.result)) == 3_000_002
    with pytest.raises(ProtocolError, match="the payload must be the last field"):
        decode_from_runner((line % (head, "x" * 5_000_000, last)).encode())
