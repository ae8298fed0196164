"""Uses the Python API as a user's program does. The file is checked by mypy, and is never run.

mypy reports a `type: ignore` on a line without an error, so each marked line must be an error with the code
in its mark.
"""

from __future__ import annotations

from typing import assert_type

import hutch


@hutch.tool
def add(a: int, b: int = 2) -> int:
    return a + b


@hutch.tool(name="other")
async def named(text: str) -> str:
    return text


async def main() -> None:
    assert_type(add(1, b=2), int)
    assert_type(await named("x"), str)
    add("x")  # type: ignore[arg-type]
    hutch.Hutch(max_processes=4, isolation="container", egress_allow=["a:1"])
    hutch.Hutch(max_proceses=4)  # type: ignore[call-arg]
    hutch.Hutch(isolation="jail")  # type: ignore[arg-type]
    async with hutch.Hutch() as h:
        r = await h.run("1", tools=[add, named], engine="deno", timeout_ms=4, inputs={"a": 1}, on_log=print)
        assert_type(r.raise_for_error().calls[0].tool, str)
        await h.run("1", engine="dneo")  # type: ignore[arg-type]
        run = await h.start("1", mcp={"a": {"command": "x"}}, check=True, tools=[add])
        await h.start("1", timeout=4)  # type: ignore[call-arg]
        async for event in run:
            if isinstance(event, hutch.ToolCallStarted):
                assert_type(event.tool, str)
            print(event.outcome)  # type: ignore[union-attr]
        await h.run("1", timeout=4)  # type: ignore[call-arg]
        h.as_tool([add], timeout=4)  # type: ignore[call-overload]
    hutch.run_sync("1", engine="quickjs", timeout_ms=4, tools=add, inputs={"a": 1}, owner="me")
    hutch.run_sync("1", engine="dneo")  # type: ignore[arg-type]
    hutch.run_sync("1", timeout=4)  # type: ignore[call-arg]
    async with hutch.connect("ws://x") as remote:
        await remote.run("1", engine="deno", memory_limit_bytes=None)
        await remote.run("1", engine="dneo")  # type: ignore[arg-type]
        await remote.run("1", owner="me")  # type: ignore[call-arg]
    if r.error is not None:
        raise r.error
