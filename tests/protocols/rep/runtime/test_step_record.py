"""Bounded and redacted copies of the inputs and outputs of steps."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hutch.protocols.rep.runtime.step_record import MAX_RECORD_CHARS, MAX_TEXT_CHARS, step_values


def test_small_values_are_copied_unchanged() -> None:
    parameters = {"url": "https://example.com/a?b=1", "query": {"n": 1, "x": None, "list": [True, 2.5]}}
    output = {"status": 200, "body": [1, {"a": "b"}]}
    assert step_values("http.get", parameters, output) == {"input": parameters, "output": output}
    assert step_values("http.get", None, None) == {"input": {}, "output": None}


def test_code_and_inner_steps_are_left_out() -> None:
    assert step_values("code.run", {"code": "return 1", "input": 2}, 1)["input"] == {"input": 2}
    assert step_values("for_each", {"items": [1], "step": {"type": "x"}}, [])["input"] == {"items": [1]}


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("http.request", {"headers": {"Authorization": "Bearer s3cret-value"}}),
        ("http.request", {"headers": {"x-api-key": "s3cret-value", "Cookie": ["s3cret-value"]}}),
        ("http.request", {"body": {"user": {"password": {"old": "s3cret-value"}}}}),
        ("http.get", {"url": "https://example.com/?access_token=s3cret-value&a=1"}),
        ("http.get", {"url": "https://user:s3cret-value@example.com/"}),
        ("tool.execute", {"package": "p", "name": "n", "env": {"ANY_NAME": "s3cret-value"}}),
    ],
)
def test_secrets_in_the_input_are_redacted(kind: str, parameters: dict[str, Any]) -> None:
    text = json.dumps(step_values(kind, parameters, None))
    assert "[redacted]" in text
    assert "s3cret" not in text


def test_secret_of_the_input_is_redacted_in_the_output_too() -> None:
    secret = "s3cret-value"
    output = {"echo": f"you sent {secret}", secret: 1, "long": "x" * (MAX_TEXT_CHARS - 5) + secret}
    text = json.dumps(step_values("http.get", {"headers": {"authorization": f"Bearer {secret}"}}, output))
    assert "you sent [redacted]" in text
    assert "s3c" not in text
    assert step_values("code.run", {}, {"set-cookie": "a=b", "max_tokens": 5})["output"] == {
        "set-cookie": "[redacted]",
        "max_tokens": 5,
    }


@pytest.mark.parametrize(
    "output",
    [
        "x" * 1_000_000,
        ["y" * 50] * 100_000,
        {f"key{number}": "z" * 100 for number in range(100_000)},
        [[["deep"] * 1_000] * 1_000] * 1_000,
        {"a" * 100_000: 1},
        [[]] * 1_000_000,
        ["s" * 5_000] * 1_000,
    ],
)
def test_large_values_are_cut_in_time(output: Any) -> None:
    began = time.process_time()
    shown = step_values("code.run", {"input": output}, output)
    assert time.process_time() - began < 1
    assert len(json.dumps(shown, ensure_ascii=False)) < 4 * MAX_RECORD_CHARS
    assert "…" in json.dumps(shown, ensure_ascii=False)


def test_deep_values_are_cut() -> None:
    value: Any = "bottom"
    for _ in range(90):
        value = {"a": [value]}
    assert "bottom" not in json.dumps(step_values("code.run", {"input": value}, value))
