"""JSON-RPC on lines: what is a request, what is none, and what each gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hutch.doors.rep import rpc
from hutch.doors.rep.codes import RpcError


def refusal(line: str | bytes) -> dict[str, Any]:
    with pytest.raises(rpc.Refused) as caught:
        rpc.read(line.encode() if isinstance(line, str) else line)
    assert caught.value.answer.endswith(b"\n")
    answer: dict[str, Any] = json.loads(caught.value.answer)
    assert set(answer) == {"jsonrpc", "id", "error"}
    return answer


@pytest.mark.parametrize("id", [1, 0, -5, 1.5, "one", "", None, 2**70])
def test_request_is_read_and_its_id_echoed(id: Any) -> None:
    request = rpc.read(json.dumps({"jsonrpc": "2.0", "id": id, "method": "M", "params": {"a": 1}}).encode())
    assert request == rpc.Request(id, "M", {"a": 1})
    assert json.loads(rpc.succeeded(id, {}))["id"] == id


def test_params_may_be_left_out() -> None:
    assert rpc.read(b'{"jsonrpc":"2.0","id":1,"method":"M"}').params == {}


def test_request_without_an_id_is_a_notification() -> None:
    assert rpc.read(b'{"jsonrpc":"2.0","method":"M"}').is_notification
    assert not rpc.read(b'{"jsonrpc":"2.0","id":null,"method":"M"}').is_notification


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
    ids=["garbage", "half", "two", "before", "bom", "nan", "infinite", "digits", "bytes", "unclosed", "deep"],
)
def test_what_is_no_json_is_a_parse_error(line: str | bytes) -> None:
    answer = refusal(line)
    assert (answer["id"], answer["error"]["code"]) == (None, -32700)
    assert len(answer["error"]["message"]) < 300


@pytest.mark.parametrize(
    ("line", "id", "message"),
    [
        ("[]", None, "batches are not served"),
        ('[{"jsonrpc":"2.0","id":1,"method":"M"}]', None, "batches are not served"),
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
def test_what_is_json_and_no_request_is_an_invalid_request(line: str, id: Any, message: str) -> None:
    answer = refusal(line)
    assert (answer["id"], answer["error"]["code"]) == (id, -32600)
    assert message in answer["error"]["message"]


def test_parameters_by_position_are_invalid_params() -> None:
    answer = refusal('{"jsonrpc":"2.0","id":7,"method":"M","params":[1]}')
    assert (answer["id"], answer["error"]["code"]) == (7, -32602)


def test_line_that_is_too_long_is_refused_unread() -> None:
    with pytest.raises(rpc.Refused) as caught:
        rpc.read(b"x" * 11, limit=10)
    assert json.loads(caught.value.answer)["error"]["message"].startswith("the line is longer than 10 bytes")


def answered(method: Any) -> dict[str, Any]:
    request = rpc.Request(1, "M", {})
    answer: dict[str, Any] = json.loads(rpc.answer(request, {} if method is None else {"M": method}))
    return answer


def test_method_that_there_is_not_is_named_with_those_that_there_are() -> None:
    error = answered(None)["error"]
    assert (error["code"], error["message"]) == (-32601, "there is no method 'M'; there is ")


def test_fault_of_ours_is_3002_and_tells_nothing_of_it() -> None:
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


def test_answer_is_one_line_of_ascii_whatever_is_in_it() -> None:
    line = rpc.succeeded("a", {"text": "\n\r\u2028\ud800é"})
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert json.loads(line)["result"] == {"text": "\n\r\u2028\ud800é"}


# --- lines ---


def test_lines_are_cut_wherever_the_pieces_end() -> None:
    text = b"one\n\ntwo\nthree"
    for size in range(1, len(text) + 1):
        lines = rpc.Lines()
        found = [line for at in range(0, len(text), size) for line in lines.feed(text[at : at + size])]
        assert found == [b"one", b"", b"two"]
        assert lines.feed(b"\n") == [b"three"]


def test_of_a_line_that_is_too_long_only_the_beginning_is_kept() -> None:
    lines = rpc.Lines(limit=4)
    assert [lines.feed(b"x" * 100) for _ in range(100)] == [[]] * 100
    assert lines.feed(b"xx\nok\n") == [b"xxxxx", b"ok"]
    assert lines.feed(b"1234\n12345\n") == [b"1234", b"12345"]
