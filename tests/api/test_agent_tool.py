"""`as_tool`: code execution as one function for agent frameworks."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import get_type_hints

import docstring_parser
import pytest
from tests.support.processes import ServeProcess

import hutch
from hutch.session.run import Result


async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def test_tool_has_the_signature_and_docstring_that_frameworks_read() -> None:
    tool = hutch.Hutch().as_tool([add])
    assert inspect.iscoroutinefunction(tool)
    assert tool.__name__ == "run_code"
    assert get_type_hints(tool) == {"code": str, "return": str}
    assert [*inspect.signature(tool).parameters] == ["code"]
    parsed = docstring_parser.parse(tool.__doc__ or "", docstring_parser.DocstringStyle.GOOGLE)
    assert [each.arg_name for each in parsed.params] == ["code"]
    assert "function add(input: { a: number; b: number }): Promise<number>" in (parsed.description or "")
    assert "Adds two numbers." in (parsed.description or "")


def test_tool_without_tools_says_that_the_code_has_none() -> None:
    assert "no packages.\n" in (hutch.Hutch().as_tool().__doc__ or "")


async def test_tool_returns_the_value_as_json_and_the_logs(sandbox: hutch.Hutch) -> None:
    tool = sandbox.as_tool([add])
    assert await tool("return {sum: await tools.add({a: 1, b: 2})}") == '{"sum":3}'
    assert await tool("console.log('hello'); return 'x'") == '"x"\n\nLogs:\nhello'
    assert await tool("const a = 1;") == "The code returned no value."


async def test_tool_returns_the_error_with_its_code_and_line(sandbox: hutch.Hutch) -> None:
    text = await sandbox.as_tool()("console.log('before')\nthrow new Error('no')")
    assert text == "The code failed (runtime_error) at line 2: no\n\nLogs:\nbefore"


async def test_tool_passes_the_options_of_run(sandbox: hutch.Hutch) -> None:
    text = await sandbox.as_tool(timeout_ms=50)("for (;;);")
    assert text.startswith("The code failed (timeout)")


async def test_long_values_and_logs_are_cut(sandbox: hutch.Hutch) -> None:
    tool = sandbox.as_tool(max_chars=20)
    text = await tool("console.log('l'.repeat(50)); return 'v'.repeat(50)")
    value, logs = text.split("\n\nLogs:\n")
    assert value == '"' + "v" * 19 + "… (52 characters; return less)"
    assert logs == "… " + "l" * 20


def test_name_that_is_not_an_identifier_is_refused() -> None:
    with pytest.raises(hutch.InvalidTool, match="run_code"):
        hutch.Hutch().as_tool(name="run code")


@pytest.fixture
def sync_hutch() -> Iterator[hutch.Hutch]:
    h = hutch.Hutch(quickjs_warm=0, deno_warm=0)
    yield h
    asyncio.run(h.close())


def test_synchronous_tool_needs_no_event_loop(sync_hutch: hutch.Hutch) -> None:
    tool = sync_hutch.as_tool([add], sync=True, name="execute")
    assert not inspect.iscoroutinefunction(tool)
    assert (tool.__name__, get_type_hints(tool)) == ("execute", {"code": str, "return": str})
    assert tool("return await tools.add({a: 20, b: 22})") == "42"


async def test_synchronous_tool_can_block_a_running_event_loop(sync_hutch: hutch.Hutch) -> None:
    """Some frameworks call tools synchronously inside an async program."""
    assert sync_hutch.as_tool(sync=True)("return 1") == "1"


async def test_remote_client_has_the_same_tool(server: ServeProcess) -> None:
    async with hutch.connect(server.execbox) as remote:
        tool = remote.as_tool([add])
        assert "function add" in (tool.__doc__ or "")
        assert await tool("return await tools.add({a: 1, b: 2})") == "3"


def test_result_without_logs_is_only_the_value() -> None:
    from hutch.api.agent_tool import text_for_model

    assert text_for_model(Result(ok=True, result=1, result_json=b"1"), 10) == "1"
