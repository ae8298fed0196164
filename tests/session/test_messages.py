"""The six messages on the wire: what is taken, what is refused, what travels as data."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET
from tests.messages import TRANSCRIPT

from hutch.errors import ProtocolError
from hutch.session.jsonvalue import decode_value
from hutch.session.messages import (
    Done,
    Execute,
    Started,
    ToolCall,
    ToolResult,
    decode_from_host,
    decode_from_runner,
    encode,
    tool_result_line,
)


def test_every_message_of_the_specifications_transcript_is_understood() -> None:
    execute, started, call, result, done = (line.encode() for line in TRANSCRIPT)
    asked = decode_from_host(execute)
    assert isinstance(asked, Execute)
    assert asked.options.timeout_ms == 1000
    assert asked.providers[0].tools["echo"].description == "Echo input"
    assert decode_from_runner(started) == Started("exec-1")
    called = decode_from_runner(call)
    assert isinstance(called, ToolCall)
    assert bytes(called.input) == b'{"ok":true}'
    assert called.id is UNSET
    answered = decode_from_host(result)
    assert isinstance(answered, ToolResult)
    ended = decode_from_runner(done)
    assert isinstance(ended, Done)
    assert ended.duration_ms == 3


@pytest.mark.parametrize("line", TRANSCRIPT)
def test_what_is_decoded_is_encoded_as_the_same_json(line: str) -> None:
    decode = decode_from_host if '"execute"' in line or '"tool_result"' in line else decode_from_runner
    again = encode(decode(line.encode()))
    assert again.endswith(b"\n")
    assert json.loads(again) == json.loads(line)


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
        b'{"type":"tool_call","callId":"c","providerName":"p","safeToolName":"t"}',
        b'{"type":"done","id":"a","ok":true,"durationMs":1}',
        b'{"type":"done","id":"a","ok":true,"durationMs":"1","logs":[]}',
        b'{"type":"done","id":"a","ok":false,"durationMs":1,"logs":[]}',
        b'{"type":"done","id":"a","ok":false,"durationMs":1,"logs":[],"error":{"code":"x"}}',
        b'{"type":"execute","id":"a","code":"","options":{},"providers":[]}',
        b'{"type":"started","id":"\xff"}',
    ],
)
def test_what_is_no_message_of_a_runner_is_refused(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_from_runner(line)


@pytest.mark.parametrize("missing", ["timeoutMs", "memoryLimitBytes", "maxLogLines", "maxLogChars"])
def test_every_option_is_required(missing: str) -> None:
    message = json.loads(TRANSCRIPT[0])
    del message["options"][missing]
    with pytest.raises(ProtocolError, match=missing):
        decode_from_host(json.dumps(message).encode())


@pytest.mark.parametrize(("field", "value"), [("types", None), ("name", 1), ("tools", [])])
def test_a_manifest_of_the_wrong_shape_makes_the_message_malformed(field: str, value: object) -> None:
    message = json.loads(TRANSCRIPT[0])
    message["providers"][0][field] = value
    with pytest.raises(ProtocolError):
        decode_from_host(json.dumps(message).encode())


def test_a_tool_result_needs_what_its_kind_carries() -> None:
    for line in (
        b'{"type":"tool_result","callId":"c","ok":true}',
        b'{"type":"tool_result","callId":"c","ok":false}',
    ):
        with pytest.raises(ProtocolError, match="missing"):
            decode_from_host(line)


def test_nesting_that_could_exhaust_a_reader_is_refused() -> None:
    deep = b'{"type":"tool_call","callId":"c","providerName":"p","safeToolName":"t","input":'
    deep += b"[" * 200_000 + b"]" * 200_000 + b"}"
    with pytest.raises(ProtocolError, match="nested"):
        decode_from_runner(deep)


def test_lone_surrogates_are_not_replaced_in_more_values_than_any_message_has() -> None:
    many = b",".join([b'"\\ud800"'] * 100_001)
    line = b'{"type":"done","id":"1","ok":true,"durationMs":0,"logs":[%s],"result":[%s]}'
    with pytest.raises(ProtocolError, match="lone surrogates has more than 100000 values"):
        decode_from_runner(line % (many, b""))
    done = decode_from_runner(line % (b"", many))
    assert isinstance(done, Done)
    assert bytes(done.result).count(b"ud800") == 100_001


def test_lone_surrogates_survive_in_payloads_and_are_replaced_elsewhere() -> None:
    line = rb'{"type":"done","id":"a","ok":true,"durationMs":1,"logs":["x\ud800"],'
    line += rb'"result":["\udc00\u2028\u0000"]}'
    done = decode_from_runner(line)
    assert isinstance(done, Done)
    assert done.logs == ["x\ufffd"]
    assert done.result is not UNSET
    assert decode_value(bytes(done.result)) == ["\udc00\u2028\0"]


def test_a_tool_result_line_carries_json_text_as_it_is() -> None:
    line = tool_result_line('c"1', b'{"__proto__":1}')
    assert json.loads(line) == {
        "type": "tool_result",
        "callId": 'c"1',
        "ok": True,
        "result": {"__proto__": 1},
    }
