from __future__ import annotations

from typing import Any

import pytest

from hutch.errors import HutchError
from hutch.protocols.toolscript.gateway.answers import (
    GatewayStatus,
    ListedMatch,
    ListedServer,
    ListedTool,
    decode_answer,
)


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        (b'{"qualifiedName": "a__b", "toolId": "c", "serverName": "d", "toolName": "e"}', "a__b"),
        (b'{"toolId": "a__b", "serverName": "d", "toolName": "e"}', "a__b"),
        (b'{"serverName": "a", "toolName": "b", "description": null, "more": [1]}', "a__b"),
    ],
)
def test_tool_has_a_name_in_every_known_shape(tool: bytes, name: str) -> None:
    answer = decode_answer("/tools", b"[%b]" % tool, list[ListedTool])
    assert [tool.name for tool in answer.value] == [name]
    assert len(answer.json) == 1


@pytest.mark.parametrize(
    "kind", [list[ListedTool], list[ListedMatch], list[ListedServer], GatewayStatus], ids=str
)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"<html>",
        b"\xff",
        b'"text"',
        b"[1]",
        b"[null]",
        b"[{}]",
        b'{"error": "no"}',
        b'[{"score": "high", "tool": {"toolId": "a"}}]',
        b'[{"score": 1, "tool": {}}]',
        b"[NaN]",
        b"[" * 100_000,
        b'[{"name": 3}]',
    ],
)
def test_unexpected_answer_is_an_error_that_names_the_request(body: bytes, kind: Any) -> None:
    with pytest.raises(HutchError) as caught:
        decode_answer("/path", body, kind)
    assert str(caught.value).startswith("The gateway's answer to /path is not a valid answer of a gateway: ")
