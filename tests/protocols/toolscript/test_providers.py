"""Code that uses tools of MCP servers together with its caller's own tools, and the type check of such
code.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import ServeProcess

import hutch
from hutch.errors import ConfigError
from hutch.protocols.toolscript import providers

TRACKER = Path(__file__).parents[2] / "support/mcp_servers/tracker.py"
MCP = {"tracker": {"command": sys.executable, "args": [str(TRACKER)]}}


def add(a: int, b: int) -> int:
    return a + b


CODE = """
const issue = await tools.tracker.createIssue({title: "new"});
return [await tools.add({a: 1, b: 2}), issue.title]
"""


async def test_tools_of_mcp_servers_are_beside_own_tools(sandbox: hutch.Hutch, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": MCP}))
    for config in (MCP, {"mcpServers": MCP}, file, str(file)):
        result = await sandbox.run(CODE, tools=[add], mcp=config)
        assert result.raise_for_error().result == [3, "new"]
    assert [call.provider for call in result.calls] == ["tools.tracker", "tools"]


async def test_servers_stay_connected_between_runs(sandbox: hutch.Hutch) -> None:
    code = "return (await tools.tracker.createIssue({title: 'x'})).number"
    first, second = [(await sandbox.run(code, mcp=MCP)).result for _ in range(2)]
    assert second == first + 1


async def test_invalid_configuration_is_refused(sandbox: hutch.Hutch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        await sandbox.run("1", mcp=tmp_path / "none.json")
    with pytest.raises(ConfigError, match=r"^mcp: mcpServers\.tracker: expected `command`"):
        await sandbox.run("1", mcp={"tracker": {}})
    with pytest.raises(hutch.InvalidExecution, match="mcp: expected a path or a dict, got list"):
        await sandbox.run("1", mcp=[])  # type: ignore[arg-type]


async def test_number_of_configurations_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "MAX_CONFIGURATIONS", 1)
    async with hutch.Hutch() as h:
        assert (await h.run("1", mcp={})).result == 1
        with pytest.raises(hutch.InvalidExecution, match="at most 1 different configurations"):
            await h.run("1", mcp={"mcpServers": {"x": {"command": "x", "disabled": True}}})


async def test_own_tool_with_the_name_of_a_server_is_refused(sandbox: hutch.Hutch) -> None:
    def tracker() -> None: ...

    with pytest.raises(hutch.InvalidTool, match="is a tool and the namespace of an MCP server"):
        await sandbox.run("1", tools=[tracker], mcp=MCP)


@pytest.mark.parametrize(
    ("code", "message", "line"),
    [
        ("return await tools.add({a: 'x', b: 2})", "Type 'string' is not assignable to type 'number'", 1),
        ("1;\nawait tools.nope()", "Property 'nope' does not exist", 2),
        ("await tools.tracker.createIssue({})", "Property 'title' is missing", 1),
        ("(await tools.tracker.createIssue({title: ''})).nmber", "Property 'nmber' does not exist", 1),
        ("await math.add({a: 1})", "Property 'b' is missing", 1),
        ("rowz", "Cannot find name 'rowz'", 1),
        ("```ts\nconst x: string = 1\n```", "Type 'number' is not assignable", 2),
    ],
)
async def test_code_with_type_errors_does_not_run(
    sandbox: hutch.Hutch, code: str, message: str, line: int
) -> None:
    tools: Any = {"tools": [add], "math": [add]}
    result = await sandbox.run(code, tools=tools, inputs={"rows": []}, mcp=MCP, check=True)
    assert result.error is not None
    assert message in result.error.message
    assert (result.error.code, result.error.name, result.error.line) == (
        "validation_error",
        "TypeCheckError",
        line,
    )
    assert result.calls == ()
    assert result.run_id


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("return (await tools.add({a: rows.length, b: 2})).toFixed(1)", "3.0"),
        ("const n = {}; n.x = 1; n", {"x": 1}),
        ("async (): Promise<number> => math.add({a: 1, b: 1})", 2),
        ("for await (const x of tools.count()) return x + 1", 2),
    ],
)
async def test_correct_code_is_checked_and_runs(sandbox: hutch.Hutch, code: str, value: Any) -> None:
    async def count() -> Any:
        yield 1

    tools: Any = {"tools": [add, count], "math": [add]}
    result = await sandbox.run(code, tools=tools, inputs={"rows": [1]}, check=True)
    assert result.raise_for_error().result == value


async def test_external_runner_cannot_check() -> None:
    async with hutch.Hutch(runner=["false"]) as h:
        with pytest.raises(hutch.InvalidExecution, match="check"):
            await h.run("1", check=True)


async def test_mcp_servers_and_check_work_over_a_connection(server: ServeProcess) -> None:
    async with hutch.connect(server.execbox) as h:
        result = await h.run(CODE, tools=[add], mcp=MCP, check=True)
        assert result.raise_for_error().result == [3, "new"]
        result = await h.run("tools.add({a: 1})", tools=[add], check=True)
        assert result.error is not None
        assert (result.error.code, result.error.line) == ("validation_error", 1)


@pytest.mark.parametrize("check", [False, True])
async def test_unreachable_server_is_named_with_the_reason(sandbox: hutch.Hutch, check: bool) -> None:
    mcp = {"tracker": MCP["tracker"], "files": {"command": "no-such-program"}}
    result = await sandbox.run("return await tools.files.read({})", mcp=mcp, check=check)
    assert result.error is not None
    assert re.search(r"(?:; |\n)not connected: MCP server files$", result.error.message)
    [warning] = result.warnings
    assert warning.startswith("the MCP server files is not connected: ")
    assert "no-such-program" in warning
    assert (await sandbox.run("1", mcp=mcp)).warnings == result.warnings
    assert (await sandbox.run("1", mcp=MCP)).warnings == ()


async def test_unreachable_server_is_named_over_a_connection(server: ServeProcess) -> None:
    async with hutch.connect(server.execbox) as h:
        result = await h.run("tools.files.read({})", mcp={"files": {"command": "no-such-program"}})
    assert result.error is not None
    assert result.error.message.endswith("; not connected: MCP server files")
    assert "no-such-program" in result.warnings[0]
