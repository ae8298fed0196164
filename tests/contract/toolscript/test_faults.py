"""Failures outside of scripts: each causes a clear message and does not affect other scripts."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from tests.support.processes import TIMEOUT_SECONDS
from tests.support.toolscripts import (
    IMPORT,
    ScriptEnvironment,
    configure,
    gateway,
    script_environment,
    start_command,
    stdio,
)

MESSAGE = "catch (error) { console.log(`${error}`) }"


async def test_concurrent_scripts_get_their_own_results(scripts: ScriptEnvironment) -> None:
    codes = [f"{IMPORT}return [{each}, await tools.every.echo({{ value: [{each}] }})]" for each in range(24)]
    runs = await asyncio.gather(*(scripts.run(code) for code in codes))
    assert [ran.value for ran in runs] == [[each, [each]] for each in range(24)]


async def test_server_crash_fails_only_its_call(tmp_path: Path) -> None:
    async with script_environment(tmp_path, {"a": stdio("everything"), "b": stdio("everything")}) as scripts:
        code = f"{IMPORT}try {{ await tools.a.crash() }} {MESSAGE}\nreturn await tools.b.zero()"
        ran = await scripts.run(code)
        assert (ran.exit_code, ran.value) == (0, "0")
        assert ran.stdout == "ToolError: the server was lost before it answered: it ended (exit code 3)\n"


async def test_changed_tools_are_available_to_the_next_script(tmp_path: Path) -> None:
    async with script_environment(tmp_path, {"every": stdio("everything")}) as scripts:
        changed = asyncio.Event()
        first = f"{IMPORT}await tools.every.grow(); await tools.every.slow({{ seconds: 0.3 }});"
        first += "return await tools.every.zero()"
        await scripts.run("")
        scripts.app.mcp_servers.on_change.append(changed.set)
        running = asyncio.create_task(scripts.run(first))
        await asyncio.wait_for(changed.wait(), TIMEOUT_SECONDS)
        second = await scripts.run(f"{IMPORT}return await tools.every.grown1({{ value: 'new' }})")
        assert second.value == "new"
        # The script was already running when the tools changed, so it keeps the old module.
        assert (await running).value == "0"


def test_lost_gateway_fails_the_call_with_its_address(
    tmp_path: Path, everything_config: dict[str, Any]
) -> None:
    code = f"{IMPORT}console.log('there');\ntry {{ await tools.every.slow({{ seconds: 60 }}) }} {MESSAGE}"
    config = configure(tmp_path, {"every": everything_config})
    with (
        gateway("--config", config) as elsewhere,
        start_command("exec", "-g", elsewhere.url, code, cwd=tmp_path) as running,
    ):
        assert running.stdout is not None
        first = running.stdout.readline()
        assert first == b"there\n", running.communicate(timeout=TIMEOUT_SECONDS)
        os.kill(elsewhere.process.pid, signal.SIGKILL)
        out, err = running.communicate(timeout=TIMEOUT_SECONDS)
        assert (running.returncode, err) == (0, b"")
        assert out.startswith(f"ToolError: The gateway at {elsewhere.url} cannot be reached".encode())
