"""A hostile caller cannot change the descriptions that other callers get."""

from __future__ import annotations

from pathlib import Path

from tests.contract.tpmjs.harness import tool
from tests.support.packaged import open_tools

from hutch.npm.package_spec import parse_spec
from hutch.protocols.tpmjs.models import PackageToolCall


async def test_description_does_not_come_from_a_process_that_has_served_a_call(tmp_path: Path) -> None:
    async with open_tools(tmp_path, max_spares=2, tool_calls_per_process=5) as harness:
        harness.npm.publish("evaluator", files={"index.js": tool("return eval(params.code)")})
        await harness.execute("evaluator", {"code": "tool.description = 'poison'"}, caller="eve")
        assert await harness.execute("evaluator", {"code": "tool.description"}, caller="eve") == "poison"
        call = PackageToolCall(spec=parse_spec("evaluator"), name="tool", caller="eve")
        description, failure, _ = await harness.app.tools.describe(call)
        assert failure is None
        assert description is not None
        assert description.description == "made up"
