from __future__ import annotations

from typing import Any

import pytest
from mcp.types import CallToolResult

from hutch.errors import UpstreamError
from hutch.mcp_client.tools import MAX_MESSAGE_CHARS, unwrap_result


def result(*texts: str, **fields: Any) -> CallToolResult:
    content = [{"type": "text", "text": text} for text in texts]
    return CallToolResult.model_validate({"content": content, **fields})


@pytest.mark.parametrize("structured", [{"a": 1}, {}, [1], "text", 0, False, None])
async def test_structured_content_is_used_with_a_schema(structured: Any) -> None:
    given = result("something else", structuredContent=structured)
    assert await unwrap_result(given, True) == structured


@pytest.mark.parametrize("structured", [{"a": 1}, {}, [1], "text", 0, False])
async def test_structured_content_is_used_without_a_schema(structured: Any) -> None:
    assert await unwrap_result(result("something else", structuredContent=structured), False) == structured


async def test_null_without_a_schema_is_not_structured_content() -> None:
    assert await unwrap_result(result("something else", structuredContent=None), False) == "something else"


async def test_text_is_used_without_structured_content() -> None:
    assert await unwrap_result(result('{"a": 1}'), True) == {"a": 1}


async def test_structured_content_is_used_if_there_is_nothing_else() -> None:
    assert await unwrap_result(result(structuredContent={"a": 1}), False) == {"a": 1}


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
async def test_single_text_is_parsed_only_if_it_is_an_object_or_array(text: str, value: object) -> None:
    assert await unwrap_result(result(text), False) == value


async def test_several_texts_stay_separate() -> None:
    blocks = [{"type": "text", "text": "{}"}, {"type": "text", "text": "b"}]
    assert await unwrap_result(result("{}", "b"), False) == blocks


async def test_blocks_keep_their_content() -> None:
    blocks = [
        {"type": "audio", "data": "AA==", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "x", "mimeType": "text/plain"}},
        {"type": "text", "text": "x", "annotations": {"audience": ["user"], "priority": 1.0}},
    ]
    assert await unwrap_result(CallToolResult.model_validate({"content": blocks}), False) == blocks
    assert await unwrap_result(CallToolResult.model_validate({"content": blocks[:1]}), False) == blocks[:1]


async def test_failure_carries_all_texts_and_other_content() -> None:
    with pytest.raises(UpstreamError) as caught:
        await unwrap_result(
            result("one", "two", isError=True, structuredContent={"code": 7}), True, server="s", tool="t"
        )
    error = caught.value
    assert (error.server, error.tool, error.kind, error.message) == ("s", "t", "tool_error", "one\ntwo")
    assert error.details == {"code": 7}


async def test_failure_without_a_message_says_so_and_keeps_its_blocks() -> None:
    picture = {"type": "image", "data": "AA==", "mimeType": "image/png"}
    with pytest.raises(UpstreamError, match="failed without a message") as caught:
        await unwrap_result(CallToolResult.model_validate({"content": [picture], "isError": True}), False)
    assert caught.value.details == [picture]


async def test_long_failure_is_truncated() -> None:
    with pytest.raises(UpstreamError) as caught:
        await unwrap_result(result("x" * 100_000, isError=True), False)
    assert len(caught.value.message) == MAX_MESSAGE_CHARS + 1
