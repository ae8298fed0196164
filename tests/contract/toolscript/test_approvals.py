"""Approvals of a script's calls: waiting, denied, and asked at the terminal."""

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
from tests.support.processes import HUTCH, TIMEOUT_SECONDS
from tests.support.toolscripts import (
    IMPORT,
    TOKEN,
    ScriptEnvironment,
    configure,
    gateway,
    script_environment,
)

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
    everything_config: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[ScriptEnvironment]:
    folder = tmp_path_factory.mktemp("asking")
    async with script_environment(
        folder, {"every": everything_config}, api_key=TOKEN, approvals=RULES
    ) as made:
        yield made


@asynccontextmanager
async def operator(scripts: ScriptEnvironment) -> AsyncIterator[httpx2.AsyncClient]:
    """HTTP client that sends the operator's token."""
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(scripts.app.gateway_app),
        base_url=scripts.script_gateway.url,
        headers={"authorization": f"Bearer {TOKEN}"},
    ) as client:
        yield client


async def next_question(scripts: ScriptEnvironment) -> dict[str, Any]:
    """Waits for the next question, and returns the only waiting call from `/approvals`."""
    with scripts.app.gateway.approvals.listen() as events:
        while (
            event := await asyncio.wait_for(events.get(), TIMEOUT_SECONDS)
        ) is None or event.name != "asked":
            pass
    async with operator(scripts) as client:
        [waiting] = (await client.get("/approvals")).json()
    return dict(waiting)


async def decide(scripts: ScriptEnvironment, id: str, **answer: Any) -> int:
    async with operator(scripts) as client:
        return int((await client.post(f"/approvals/{id}", json=answer)).status_code)


async def test_call_waits_for_approval_and_the_timeout_is_paused(asking: ScriptEnvironment) -> None:
    code = f"{IMPORT}return [await tools.every.zero(), await tools.every.echo({{ value: 'asked' }})]"
    running = asyncio.create_task(asking.run(code, timeout_ms=1_000))
    question = await next_question(asking)
    assert (question["server"], question["tool"], question["arguments"]) == (
        "every",
        "echo",
        {"value": "asked"},
    )
    assert question["run"]
    # Wait longer than the script's timeout.
    await asyncio.sleep(1.5)
    assert not running.done()
    assert await decide(asking, question["id"], decision="allow") == 200
    ran = await running
    assert (ran.exit_code, ran.value) == (0, ["0", "asked"])
    assert await decide(asking, question["id"], decision="deny") == 409


async def test_timeout_runs_while_nothing_waits(asking: ScriptEnvironment) -> None:
    code = f"{IMPORT}await tools.every.echo({{ value: 1 }}); for (;;);"
    running = asyncio.create_task(asking.run(code, timeout_ms=500))
    question = await next_question(asking)
    assert await decide(asking, question["id"], decision="allow") == 200
    assert (await running).exit_code == 124


async def test_denied_call_throws(asking: ScriptEnvironment) -> None:
    code = f"{IMPORT}{TRY}return [await attempt(tools.every.echo({{ value: 1 }})), await tools.every.zero()]"
    running = asyncio.create_task(asking.run(code))
    question = await next_question(asking)
    await decide(asking, question["id"], decision="deny", reason="not today")
    assert (await running).value == [
        "ToolError: The call of every__echo was denied: not today",
        "0",
    ]


async def test_call_denied_by_policy_throws_without_asking(asking: ScriptEnvironment) -> None:
    code = f"{IMPORT}{TRY}return await attempt(tools.every.fail({{ city: 'x' }}))"
    assert (await asking.run(code)).value == "ToolError: The policy denies every__fail"
    assert asking.app.gateway.approvals.pending() == []


async def test_decision_can_be_remembered_for_the_run_only(asking: ScriptEnvironment) -> None:
    code = (
        f"{IMPORT}return [await tools.every.echo({{ value: 'a' }}), await tools.every.echo({{ value: 'b' }})]"
    )
    for _ in range(2):
        running = asyncio.create_task(asking.run(code))
        question = await next_question(asking)
        await decide(asking, question["id"], decision="allow", remember=True)
        assert (await running).value == ["a", "b"]


async def test_approval_of_a_finished_script_is_withdrawn(asking: ScriptEnvironment) -> None:
    running = asyncio.create_task(asking.run(f"{IMPORT}await tools.every.echo({{ value: 1 }})"))
    await next_question(asking)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(TIMEOUT_SECONDS):
        with asking.app.gateway.approvals.listen() as events:
            while asking.app.gateway.approvals.pending():
                await events.get()


# --- at the terminal ---

DENIED = "ToolError: The call of every__echo was denied: by the person at the terminal"
CODE = f"""{IMPORT}{TRY}
    const escape = String.fromCharCode(27, 0x9b, 0x202e);
    return await Promise.all(["one", escape].map((value) => attempt(tools.every.echo({{ value }}))));
"""


def test_hutch_exec_asks_at_the_terminal_one_by_one(
    tmp_path: Path, everything_config: dict[str, Any]
) -> None:
    config = configure(tmp_path, {"every": everything_config})
    with at_terminal(CODE, tmp_path, HUTCH_MCP_CONFIG=config, HUTCH_APPROVALS="every__echo=ask") as terminal:
        text = answer_two(terminal)
    assert json.loads(text) == ["one", DENIED]


def test_hutch_exec_asks_at_the_terminal_for_a_remote_gateway(
    tmp_path: Path, everything_config: dict[str, Any]
) -> None:
    config = configure(tmp_path, {"every": everything_config})
    with (
        gateway("--config", config, HUTCH_APPROVALS="every__echo=ask") as running,
        # The two answers together take longer than the script's timeout.
        at_terminal(CODE, tmp_path, "--timeout", "1.5", TOOLSCRIPT_GATEWAY_URL=running.url) as terminal,
    ):
        text = answer_two(terminal, pause=1.0)
    assert json.loads(text) == ["one", DENIED]


def answer_two(terminal: int, pause: float = 0) -> str:
    """Answers two questions: allows the call with "one" and denies the other call. Returns the script's
    output.
    """
    for _ in range(2):
        shown = read_until(terminal, "Allow it? ")
        assert "The script calls every__echo with " in shown
        # The question escapes control characters, so the terminal gets none.
        assert not {"\x1b", "\x9b", "\u202e"} & set(shown)
        time.sleep(pause)
        os.write(terminal, b"y\n" if '{"value":"one"}' in shown else b"n\n")
    return read_until(terminal, "]\r\n").strip().splitlines()[-1]


@contextmanager
def at_terminal(code: str, cwd: Path, *arguments: str, **env: str) -> Iterator[int]:
    """Runs `hutch exec` at a terminal and expects exit code 0."""
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
                assert running.wait(TIMEOUT_SECONDS) == 0
            finally:
                running.kill()
    finally:
        os.close(terminal)


def read_until(terminal: int, part: str) -> str:
    shown = ""
    while part not in shown:
        assert select.select([terminal], [], [], TIMEOUT_SECONDS)[0], shown
        try:
            shown += os.read(terminal, 65536).decode()
        except OSError:
            raise AssertionError(shown) from None
    return shown
