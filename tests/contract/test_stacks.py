"""Stack traces and permission errors that guests see. Stack traces show only the guest's own code, and
permission errors give advice that the guest's author can follow.
"""

from __future__ import annotations

import re

import pytest
from tests.conftest import Run

from hutch.errors import ToolError

INTERNAL = re.compile(r"prelude\.js|hutch:|ext:|deno\.js|native code")


async def fail() -> None:
    raise ToolError("it broke")


def frames(stack: str) -> list[str]:
    """Returns the frames of a stack, without the name and message that V8 writes before them."""
    return [line.strip() for line in stack.split("\n") if line.startswith("    at ")]


async def test_stack_of_a_caught_error_has_only_frames_of_the_guest_with_their_positions(run: Run) -> None:
    code = """function inner() { null.x }
const outer = () => inner()
try { outer() } catch (e) { return e.stack }"""
    stack = (await run(code)).result
    assert [re.sub(r":\d+\)?$", "", frame) for frame in frames(stack)] == [
        "at inner (guest.js:1",
        "at outer (guest.js:2",
        "at guest.js:3",
    ]
    assert int(frames(stack)[0].rstrip(")").rpartition(":")[2]) <= len(code.split("\n")[0])


SOURCES = {
    "a built-in that the runner provides": "new URL('not a URL')",
    "an input that is not JSON": "await tools.fail(1n)",
    "a callback of a timer": (
        "await new Promise((_, reject) => setTimeout(() => reject(new Error('late')), 1))"
    ),
    "a callback of a native function": "[1].map(() => { throw new Error('in') })",
    "captureStackTrace": "const o = {}; Error.captureStackTrace(o); throw o",
}


@pytest.mark.parametrize("code", SOURCES.values(), ids=SOURCES)
async def test_no_stack_has_internal_frames(run: Run, code: str) -> None:
    result = await run(f"try {{ {code} }} catch (e) {{ return e.stack }}", tools=[fail])
    assert "guest.js:1:" in result.result
    assert not INTERNAL.search(result.result)


async def test_stack_of_a_failed_tool_call_has_the_position_of_the_call(run: Run) -> None:
    code = "async function f() {\n  await tools.fail()\n}\ntry { await f() } catch (e) { return e.stack }"
    stack = (await run(code, tools=[fail])).result
    assert frames(stack)[0].startswith("at f (guest.js:2:")
    assert not INTERNAL.search(stack)


async def test_position_of_an_error_is_the_same_after_the_guest_has_read_its_stack(run: Run) -> None:
    code = "try {\n  null.x\n} catch (e) { e.stack; throw e }"
    error = (await run(code)).error
    assert error is not None
    assert error.line == 2


@pytest.mark.parametrize("engine", ["deno"])
@pytest.mark.parametrize(
    "code",
    ["await fetch('http://example.com')", "(await import('node:fs')).readFileSync('/etc/passwd')"],
)
async def test_refused_permission_says_that_guests_have_only_tools(run: Run, code: str) -> None:
    text = (await run(f"try {{ {code} }} catch (e) {{ return e.message + e.stack }}")).result
    assert text.count("; guests have no permissions, only tools") == 2
    assert "--allow" not in text
    error = (await run(code)).error
    assert error is not None
    assert error.message.endswith("; guests have no permissions, only tools")


@pytest.mark.parametrize("engine", ["quickjs"])
async def test_missing_fetch_says_that_guests_have_only_tools(run: Run) -> None:
    error = (await run("await fetch('http://example.com')")).error
    assert error is not None
    assert error.message == "fetch is not defined: guests have no network, only tools"
