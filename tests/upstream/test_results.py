from __future__ import annotations

from typing import Any

import pytest
from mcp.types import CallToolResult

from hutch.errors import UpstreamError
from hutch.upstream.results import MAX_MESSAGE, unwrap


def result(*texts: str, **fields: Any) -> CallToolResult:
    content = [{"type": "text", "text": text} for text in texts]
    return CallToolResult.model_validate({"content": content, **fields})


@pytest.mark.parametrize("structured", [{"a": 1}, {}, [1], "text", 0, False, None])
def test_structured_content_counts_where_there_is_a_schema(structured: Any) -> None:
    given = result("something else", structuredContent=structured)
    assert unwrap(given, True) == structured
    assert unwrap(given, False) == "something else"


def test_without_structured_content_the_text_counts_though_there_is_a_schema() -> None:
    assert unwrap(result('{"a": 1}'), True) == {"a": 1}


def test_structured_content_counts_where_there_is_nothing_else() -> None:
    assert unwrap(result(structuredContent={"a": 1}), False) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1]}', {"a": [1]}),
        (" \n[1, null]\n", [1, None]),
        ("0", "0"),
        ("null", "null"),
        ('"x"', '"x"'),
        ("true", "true"),
        ("{}", {}),
        ("{a: 1}", "{a: 1}"),
        ('{"a": NaN}', '{"a": NaN}'),
        ('{"a": 1} and more', '{"a": 1} and more'),
        ("[" * 5_000 + "]" * 5_000, "[" * 5_000 + "]" * 5_000),
        ("", ""),
    ],
)
def test_single_text_is_parsed_only_when_it_is_an_object_or_a_list(text: str, value: object) -> None:
    assert unwrap(result(text), False) == value


def test_several_texts_stay_several() -> None:
    blocks = [{"type": "text", "text": "{}"}, {"type": "text", "text": "b"}]
    assert unwrap(result("{}", "b"), False) == blocks


def test_blocks_keep_what_they_carry() -> None:
    blocks = [
        {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x", "mimeType": "text/plain"}},
        {"type": "text", "text": "x", "annotations": {"audience": ["user"], "priority": 1.0}},
    ]
    assert unwrap(CallToolResult.model_validate({"content": blocks}), False) == blocks
    assert unwrap(CallToolResult.model_validate({"content": blocks[:1]}), False) == blocks[:1]


def test_failure_carries_all_texts_and_what_else_there_is() -> None:
    with pytest.raises(UpstreamError) as caught:
        unwrap(result("one", "two", isError=True, structuredContent={"code": 7}), True, server="s", tool="t")
    error = caught.value
    assert (error.server, error.tool, error.kind, error.message) == ("s", "t", "tool_error", "one\ntwo")
    assert error.details == {"code": 7}


def test_failure_without_a_text_says_so_and_keeps_its_blocks() -> None:
    picture = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    with pytest.raises(UpstreamError, match="said nothing of why") as caught:
        unwrap(CallToolResult.model_validate({"content": [picture], "isError": True}), False)
    assert caught.value.details == [picture]


def test_very_long_failure_is_cut() -> None:
    with pytest.raises(UpstreamError) as caught:
        unwrap(result("x" * 100_000, isError=True), False)
    assert len(caught.value.message) == MAX_MESSAGE + 1
