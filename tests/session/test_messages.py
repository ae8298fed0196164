"""The six messages of Execbox, and how they are encoded."""

from __future__ import annotations

import json

import pytest
from msgspec import UNSET
from tests.support.messages import TRANSCRIPT

from hutch.session.message_decoding import decode_from_host, decode_from_runner
from hutch.session.messages import (
    Done,
    Execute,
    Started,
    ToolCall,
    ToolResult,
    encode,
    tool_result_line,
)


def test_messages_of_the_specifications_transcript_are_decoded() -> None:
    execute, started, call, result, done = (line.encode() for line in TRANSCRIPT)
    request = decode_from_host(execute)
    assert isinstance(request, Execute)
    assert request.options.timeout_ms == 1000
    assert request.providers[0].tools["echo"].description == "Echo input"
    assert decode_from_runner(started) == Started("exec-1")
    tool_call = decode_from_runner(call)
    assert isinstance(tool_call, ToolCall)
    assert bytes(tool_call.input) == b'{"ok":true}'
    assert tool_call.id is UNSET
    reply = decode_from_host(result)
    assert isinstance(reply, ToolResult)
    ended = decode_from_runner(done)
    assert isinstance(ended, Done)
    assert ended.duration_ms == 3


@pytest.mark.parametrize("line", TRANSCRIPT)
def test_decoded_message_is_encoded_as_the_same_json(line: str) -> None:
    decode = decode_from_host if '"execute"' in line or '"tool_result"' in line else decode_from_runner
    again = encode(decode(line.encode()))
    assert again.endswith(b"\n")
    assert json.loads(again) == json.loads(line)


def test_tool_result_line_contains_the_json_text_unchanged() -> None:
    line = tool_result_line('c"1', b'{"__proto__":1}')
    assert json.loads(line) == {
        "type": "tool_result",
        "callId": 'c"1',
        "ok": True,
        "result": {"__proto__": 1},
    }
