"""JSON-RPC over lines: parsing, dispatch, responses and line splitting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hutch.protocols.rep import jsonrpc
from hutch.protocols.rep.jsonrpc import RpcError


def refusal(line: str | bytes) -> dict[str, Any]:
    with pytest.raises(jsonrpc.InvalidRpcRequest) as caught:
        jsonrpc.parse_request(line.encode() if isinstance(line, str) else line)
    assert caught.value.response.endswith(b"\n")
    answer: dict[str, Any] = json.loads(caught.value.response)
    assert set(answer) == {"jsonrpc", "id", "error"}
    return answer


@pytest.mark.parametrize("id", [1, 0, -5, 1.5, "one", "", None, 2**70])
def test_request_is_read_and_its_id_echoed(id: Any) -> None:
    request = jsonrpc.parse_request(
        json.dumps({"jsonrpc": "2.0", "id": id, "method": "M", "params": {"a": 1}}).encode()
    )
    assert request == jsonrpc.RpcRequest(id, "M", {"a": 1})
    assert json.loads(jsonrpc.success_response(id, {}))["id"] == id


def test_params_may_be_left_out() -> None:
    assert jsonrpc.parse_request(b'{"jsonrpc":"2.0","id":1,"method":"M"}').params == {}


def test_request_without_an_id_is_a_notification() -> None:
    assert jsonrpc.parse_request(b'{"jsonrpc":"2.0","method":"M"}').is_notification
    assert not jsonrpc.parse_request(b'{"jsonrpc":"2.0","id":null,"method":"M"}').is_notification


@pytest.mark.parametrize(
    "line",
    [
        "garbage",
        '{"jsonrpc":"2.0","id":1,"method":"M"',
        '{"jsonrpc":"2.0","id":1,"method":"M"} {"jsonrpc":"2.0","id":2,"method":"M"}',
        'log: {"jsonrpc":"2.0","id":1,"method":"M"}',
        '\ufeff{"jsonrpc":"2.0","id":1,"method":"M"}',
        '{"jsonrpc":"2.0","id":NaN,"method":"M"}',
        '{"jsonrpc":"2.0","id":1e999,"method":"M"}',
        '{"jsonrpc":"2.0","id":' + "9" * 5_000 + ',"method":"M"}',
        b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
        "[" * 100_000,
        '{"jsonrpc":"2.0","id":1,"method":"M","params":{"x":' + "[" * 300 + "]" * 300 + "}}",
    ],
    ids=[
        "garbage",
        "truncated",
        "two objects",
        "leading text",
        "BOM",
        "NaN",
        "infinite",
        "long number",
        "not UTF-8",
        "unclosed",
        "deep",
    ],
)
def test_invalid_json_is_a_parse_error(line: str | bytes) -> None:
    answer = refusal(line)
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    assert len(answer["error"]["message"]) < 300


@pytest.mark.parametrize(
    ("line", "id", "message"),
    [
        ("[]", None, "batches are not supported"),
        ('[{"jsonrpc":"2.0","id":1,"method":"M"}]', None, "batches are not supported"),
        ("1", None, "expected a JSON object"),
        ("null", None, "expected a JSON object"),
        ("{}", None, 'jsonrpc: expected "2.0"'),
        ('{"id":7,"method":"M"}', 7, 'jsonrpc: expected "2.0"'),
        ('{"jsonrpc":"1.0","id":7,"method":"M"}', 7, 'jsonrpc: expected "2.0"'),
        ('{"jsonrpc":2.0,"id":7,"method":"M"}', 7, 'jsonrpc: expected "2.0"'),
        ('{"jsonrpc":"2.0","id":7}', 7, "method: expected a string"),
        ('{"jsonrpc":"2.0","id":7,"result":{}}', 7, "method: expected a string"),
        ('{"jsonrpc":"2.0","id":7,"method":1}', 7, "method: expected a string"),
        ('{"jsonrpc":"2.0","id":true,"method":"M"}', None, "id: expected a number or a string"),
        ('{"jsonrpc":"2.0","id":[1],"method":"M"}', None, "id: expected a number or a string"),
        ('{"jsonrpc":"2.0","id":{},"method":"M"}', None, "id: expected a number or a string"),
        ('{"jsonrpc":"2.0","id":7,"method":"M","params":"x"}', 7, "params: expected an object"),
        ('{"jsonrpc":"2.0","id":7,"method":"M","params":null}', 7, "params: expected an object"),
    ],
)
def test_invalid_request_is_refused_with_a_reason(line: str, id: Any, message: str) -> None:
    answer = refusal(line)
    assert (answer["id"], answer["error"]["code"]) == (id, -32600)
    assert message in answer["error"]["message"]


def test_parameters_by_position_are_invalid_params() -> None:
    answer = refusal('{"jsonrpc":"2.0","id":7,"method":"M","params":[1]}')
    assert (answer["id"], answer["error"]["code"]) == (7, -32602)


def test_overlong_line_is_refused_without_parsing() -> None:
    with pytest.raises(jsonrpc.InvalidRpcRequest) as caught:
        jsonrpc.parse_request(b"x" * 11, limit=10)
    assert json.loads(caught.value.response)["error"]["message"].startswith(
        "the line is longer than 10 bytes"
    )


def answered(method: Any) -> dict[str, Any]:
    request = jsonrpc.RpcRequest(1, "M", {})
    answer: dict[str, Any] = json.loads(
        jsonrpc.handle_request(request, {} if method is None else {"M": method})
    )
    return answer


def test_unknown_method_is_reported_with_the_known_ones() -> None:
    error = answered(None)["error"]
    assert (error["code"], error["message"]) == (-32601, "unknown method 'M'; expected one of ")


def test_internal_error_is_3002_without_details() -> None:
    def fails(_: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("secret")

    error = answered(fails)["error"]
    assert error["code"] == 3002
    assert error["data"] == {
        "step_id": None,
        "attempt": 0,
        "retriable": False,
        "details": {},
        "cause": "KeyError",
    }
    assert "secret" not in json.dumps(error)


def test_error_of_a_method_keeps_its_code_and_data() -> None:
    def fails(_: dict[str, Any]) -> dict[str, Any]:
        raise RpcError(1001, "no", {"x": 1})

    assert answered(fails)["error"] == {"code": 1001, "message": "no", "data": {"x": 1}}


def test_response_is_always_one_line_of_ascii() -> None:
    line = jsonrpc.success_response("a", {"text": "\n\r\u2028\ud800é"})
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert json.loads(line)["result"] == {"text": "\n\r\u2028\ud800é"}
