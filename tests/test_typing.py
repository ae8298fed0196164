"""The types of the Python API, as mypy sees them in a program of a user."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """\
import hutch

@hutch.tool
def add(a: int, b: int = 2) -> int:
    return a + b

@hutch.tool(name="other")
async def named(text: str) -> str:
    return text

async def main() -> None:
    reveal_type(add(1, b=2))
    reveal_type(await named("x"))
    add("x")  # wrong
    hutch.Hutch(max_processes=4, isolation="container", egress_allow=["a:1"])
    hutch.Hutch(max_proceses=4)  # wrong
    hutch.Hutch(isolation="jail")  # wrong
    async with hutch.Hutch() as h:
        r = await h.run("1", tools=[add, named], engine="deno", timeout_ms=4, inputs={"a": 1}, on_log=print)
        reveal_type(r.raise_for_error().calls[0].tool)
        await h.run("1", engine="dneo")  # wrong
        run = await h.start("1", mcp={"a": {"command": "x"}}, check=True, tools=[add])
        await h.start("1", timeout=4)  # wrong
        async for event in run:
            if isinstance(event, hutch.ToolCallStarted):
                reveal_type(event.tool)
            event.outcome  # wrong
        await h.run("1", timeout=4)  # wrong
        h.as_tool([add], timeout=4)  # wrong
    hutch.run_sync("1", engine="quickjs", timeout_ms=4, tools=add, inputs={"a": 1}, owner="me")
    hutch.run_sync("1", engine="dneo")  # wrong
    hutch.run_sync("1", timeout=4)  # wrong
    async with hutch.connect("ws://x") as remote:
        await remote.run("1", engine="deno", memory_limit_bytes=None)
        await remote.run("1", engine="dneo")  # wrong
        await remote.run("1", owner="me")  # wrong
    if r.error is not None:
        raise r.error
"""


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, str]]:
    """Messages of mypy with their lines."""
    file = tmp_path_factory.mktemp("program") / "program.py"
    file.write_text(PROGRAM)
    # Uses the cache of `make lint` if there is one.
    command = [sys.executable, "-m", "mypy", "--strict", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return [(int(line), text) for line, text in re.findall(r"program\.py:(\d+): (.*)", done.stdout)]


def test_mypy_finds_exactly_the_wrong_calls(messages: list[tuple[int, str]]) -> None:
    wrong = {number for number, line in enumerate(PROGRAM.split("\n"), 1) if line.endswith("# wrong")}
    assert {line for line, text in messages if text.startswith("error")} == wrong


def test_mypy_knows_the_types_of_tools_and_results(messages: list[tuple[int, str]]) -> None:
    revealed = [text for _, text in messages if "Revealed type" in text]
    assert [re.findall(r'"(?:builtins\.)?(\w+)"', text) for text in revealed] == [
        ["int"],
        ["str"],
        ["str"],
        ["str"],
    ]
