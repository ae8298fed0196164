"""Approvals: a script's calls that wait for somebody, that are refused, and that are nobody's business."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import select
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.processes import HUTCH, PATIENCE
from tests.toolscripts import IMPORT, TOKEN, Place, configure, gateway, place

RULES = {"every__echo": "ask", "every__fail": "deny"}
TRY = (
    "async function attempt(call: Promise<unknown>) {\n"
    "  try { return await call } catch (error) { return `${error}` }\n"
    "}\n"
)


@pytest.fixture(scope="module")
async def asking(
    anyio_backend: object,
    environment: None,
    every: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Place]:
    folder = tmp_path_factory.mktemp("asking")
    async with place(folder, {"every": every}, api_key=TOKEN, approvals=RULES) as made:
        yield made


@asynccontextmanager
async def operator(scripts: Place) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody with the token."""
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(scripts.app.gateway_app),
        base_url=scripts.world.url,
        headers={"authorization": f"Bearer {TOKEN}"},
    ) as client:
        yield client


async def next_question(scripts: Place) -> dict[str, Any]:
    """What waits for an answer, as HTTP has it."""
    with scripts.app.gateway.approvals.listen() as events:
        while (event := await asyncio.wait_for(events.get(), PATIENCE)) is None or event.name != "asked":
            pass
    async with operator(scripts) as client:
        [waiting] = (await client.get("/approvals")).json()
    return dict(waiting)


async def decide(scripts: Place, id: str, **answer: Any) -> int:
    async with operator(scripts) as client:
        return int((await client.post(f"/approvals/{id}", json=answer)).status_code)


async def test_a_call_waits_for_its_approval_and_that_time_does_not_count(asking: Place) -> None:
    code = f"{IMPORT}return [await tools.every.zero(), await tools.every.echo({{ value: 'asked' }})]"
    running = asyncio.create_task(asking.run(code, timeout_ms=1_000))
    question = await next_question(asking)
    assert (question["server"], question["tool"], question["arguments"]) == (
        "every",
        "echo",
        {"value": "asked"},
    )
    assert question["run"]
    # Longer than the script has.
    await asyncio.sleep(1.5)
    assert not running.done()
    assert await decide(asking, question["id"], decision="allow") == 200
    ran = await running
    assert (ran.exit_code, ran.value) == (0, ["0", "asked"])
    assert await decide(asking, question["id"], decision="deny") == 409


async def test_time_that_is_not_spent_waiting_counts(asking: Place) -> None:
    code = f"{IMPORT}await tools.every.echo({{ value: 1 }}); for (;;);"
    running = asyncio.create_task(asking.run(code, timeout_ms=500))
    question = await next_question(asking)
    assert await decide(asking, question["id"], decision="allow") == 200
    assert (await running).exit_code == 124


async def test_a_call_that_is_denied_throws(asking: Place) -> None:
    code = f"{IMPORT}{TRY}return [await attempt(tools.every.echo({{ value: 1 }})), await tools.every.zero()]"
    running = asyncio.create_task(asking.run(code))
    question = await next_question(asking)
    await decide(asking, question["id"], decision="deny", reason="not today")
    assert (await running).value == [
        "ToolError: The call of every__echo was denied: not today",
        "0",
    ]


async def test_what_the_policy_denies_throws_and_asks_nobody(asking: Place) -> None:
    code = f"{IMPORT}{TRY}return await attempt(tools.every.fail({{ city: 'x' }}))"
    assert (await asking.run(code)).value == "ToolError: The policy denies every__fail"
    assert asking.app.gateway.approvals.pending() == []


async def test_an_answer_may_hold_for_the_rest_of_the_run_and_no_longer(asking: Place) -> None:
    code = (
        f"{IMPORT}return [await tools.every.echo({{ value: 'a' }}), await tools.every.echo({{ value: 'b' }})]"
    )
    for _ in range(2):
        running = asyncio.create_task(asking.run(code))
        question = await next_question(asking)
        await decide(asking, question["id"], decision="allow", remember=True)
        assert (await running).value == ["a", "b"]


async def test_a_script_that_is_over_waits_for_nobody(asking: Place) -> None:
    running = asyncio.create_task(asking.run(f"{IMPORT}await tools.every.echo({{ value: 1 }})"))
    await next_question(asking)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(PATIENCE):
        with asking.app.gateway.approvals.listen() as events:
            while asking.app.gateway.approvals.pending():
                await events.get()


# --- at the terminal ---

DENIED = "ToolError: The call of every__echo was denied: by the person at the terminal"
CODE = f"""{IMPORT}{TRY}
    const escape = String.fromCharCode(27, 0x9b, 0x202e);
    return await Promise.all(["one", escape].map((value) => attempt(tools.every.echo({{ value }}))));
"""


def test_hutch_exec_asks_at_the_terminal_one_by_one(tmp_path: Path, every: dict[str, Any]) -> None:
    config = configure(tmp_path, {"every": every})
    with at_terminal(CODE, tmp_path, HUTCH_MCP_CONFIG=config, HUTCH_APPROVALS="every__echo=ask") as terminal:
        told = answer_two(terminal)
    assert json.loads(told) == ["one", DENIED]


def test_hutch_exec_asks_at_the_terminal_for_a_gateway_elsewhere(
    tmp_path: Path, every: dict[str, Any]
) -> None:
    config = configure(tmp_path, {"every": every})
    with (
        gateway("--config", config, HUTCH_APPROVALS="every__echo=ask") as running,
        # Both questions take longer than the script has.
        at_terminal(CODE, tmp_path, "--timeout", "1.5", TOOLSCRIPT_GATEWAY_URL=running.url) as terminal,
    ):
        told = answer_two(terminal, pause=1.0)
    assert json.loads(told) == ["one", DENIED]


def answer_two(terminal: int, pause: float = 0) -> str:
    """Allows the call with "one", and denies the other; what the command printed then."""
    for _ in range(2):
        shown = read_until(terminal, "Allow it? ")
        assert "The script calls every__echo with " in shown
        # What a terminal would obey is shown, not done.
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
        time.sleep(pause)
        os.write(terminal, b"y\n" if '{"value":"one"}' in shown else b"n\n")
    return read_until(terminal, "]\r\n").strip().splitlines()[-1]


@contextmanager
def at_terminal(code: str, cwd: Path, *arguments: str, **env: str) -> Iterator[int]:
    """`hutch exec` with a terminal, which has to end well."""
    terminal, theirs = pty.openpty()
    try:
        with subprocess.Popen(
            [*HUTCH, "exec", *arguments, code],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env={**os.environ, **env},
            start_new_session=True,
        ) as running:
            os.close(theirs)
            try:
                yield terminal
                assert running.wait(PATIENCE) == 0
            finally:
                running.kill()
    finally:
        os.close(terminal)


def read_until(terminal: int, part: str) -> str:
    shown = ""
    while part not in shown:
        assert select.select([terminal], [], [], PATIENCE)[0], shown
        try:
            shown += os.read(terminal, 65536).decode()
        except OSError:
            raise AssertionError(shown) from None
    return shown
