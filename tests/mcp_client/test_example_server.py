"""The example tools that a server without MCP servers offers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hutch.app.app import App
from hutch.errors import UpstreamError
from hutch.mcp_client.example_server import ExampleServers
from hutch.mcp_client.servers import McpServers
from hutch.settings import load_settings


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("get_price", {"article": "boat"}, "There is no article 'boat'; the shop has lamp"),
        ("get_price", {}, "^Invalid input for tool get_price: article: is missing; expected a string$"),
        ("get_price", {"artikel": "lamp"}, "artikel: is not known; did you mean article?"),
        (
            "order",
            {"article": "lamp", "count": 0},
            "order: count: expected an integer from 1 to 100, got",
        ),
    ],
)
async def test_wrong_calls_say_what_is_expected(tool: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UpstreamError, match=message):
        await ExampleServers().call("shop", tool, arguments)


async def test_results_match_the_declared_types() -> None:
    shop = ExampleServers()
    assert await shop.call("shop", "list_articles", {}) == {"articles": ["lamp", "desk", "chair"]}
    assert await shop.call("shop", "order", {"article": "lamp", "count": 2}) == {"total": 40}


@pytest.mark.parametrize(
    ("examples", "config", "expected"),
    [
        (True, "{}", ExampleServers),
        (False, "{}", McpServers),
        (True, '{"own": {"command": "true"}}', McpServers),
    ],
)
async def test_example_is_offered_on_request_and_never_beside_own_servers(
    tmp_path: Path, examples: bool, config: str, expected: type
) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(f'{{"mcpServers": {config}}}')
    app = await App.create(load_settings({"mcp_config": [str(file)], "example_tools": examples}))
    try:
        assert type(app.mcp_servers) is expected
    finally:
        await app.close()
