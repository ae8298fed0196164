"""Parameters of tools that take long to decode and encode do not block the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.contract.tpmjs.harness import tool
from tests.support.packaged import ToolsHarness, open_tools
from tests.support.stalls import LoopStalls, repeat_on_stall

# The parameters are made by functions. Otherwise pytest would make all of them when it collects the tests.
SLOW_PARAMS: dict[str, Callable[[], Any]] = {
    "exponents": lambda: [1e300] * 400_000,
    "keys": lambda: {f"k{number}": 1 for number in range(200_000)},
    "line breaks": lambda: "\n" * 4_000_000,
    "quotes": lambda: '"' * 2_000_000,
}


@pytest.fixture(scope="module")
async def packages(
    anyio_backend: object, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ToolsHarness]:
    async with open_tools(tmp_path_factory.mktemp("home"), tool_timeout_ms=60_000) as made:
        made.npm.publish("receiver", files={"index.js": tool("return typeof params.value")})
        await made.execute("receiver")
        yield made


@pytest.mark.parametrize("name", SLOW_PARAMS)
@repeat_on_stall
async def test_large_params_do_not_block_the_event_loop(packages: ToolsHarness, name: str) -> None:
    value = SLOW_PARAMS[name]()
    async with LoopStalls() as stalls:
        output = await packages.execute("receiver", {"value": value})
    assert output == ("string" if isinstance(value, str) else "object")
    stalls.assert_short(name)
