"""What goes wrong around scripts: each a clear message, and the rest unharmed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from tests.processes import PATIENCE
from tests.toolscripts import IMPORT, Place, configure, gateway, place, starts, stdio

MESSAGE = "catch (error) { console.log(`${error}`) }"


async def test_many_scripts_at_once_get_their_own_answers(scripts: Place) -> None:
    codes = [f"{IMPORT}return [{each}, await tools.every.echo({{ value: [{each}] }})]" for each in range(24)]
    runs = await asyncio.gather(*(scripts.run(code) for code in codes))
    assert [ran.value for ran in runs] == [[each, [each]] for each in range(24)]


async def test_a_server_that_dies_in_a_call_fails_that_call_and_no_other_server(tmp_path: Path) -> None:
    async with place(tmp_path, {"a": stdio("everything"), "b": stdio("everything")}) as scripts:
        code = f"{IMPORT}try {{ await tools.a.crash() }} {MESSAGE}\nreturn await tools.b.zero()"
        ran = await scripts.run(code)
        assert (ran.exit_code, ran.value) == (0, "0")
        assert ran.stdout == "ToolError: the server was lost before it answered: it ended (exit code 3)\n"


async def test_tools_that_change_while_a_script_runs_are_there_for_the_next(tmp_path: Path) -> None:
    async with place(tmp_path, {"every": stdio("everything")}) as scripts:
        changed = asyncio.Event()
        first = f"{IMPORT}await tools.every.grow(); await tools.every.slow({{ seconds: 0.3 }});"
        first += "return await tools.every.zero()"
        await scripts.run("")
        scripts.app.upstreams.on_change.append(changed.set)
        running = asyncio.create_task(scripts.run(first))
        await asyncio.wait_for(changed.wait(), PATIENCE)
        second = await scripts.run(f"{IMPORT}return await tools.every.grown1({{ value: 'new' }})")
        assert second.value == "new"
        # The one that ran meanwhile has not noticed.
        assert (await running).value == "0"


def test_a_gateway_that_goes_away_fails_the_call_with_its_address(
    tmp_path: Path, every: dict[str, Any]
) -> None:
    code = f"{IMPORT}console.log('there');\ntry {{ await tools.every.slow({{ seconds: 60 }}) }} {MESSAGE}"
    config = configure(tmp_path, {"every": every})
    with (
        gateway("--config", config) as elsewhere,
        starts("exec", "-g", elsewhere.url, code, cwd=tmp_path) as running,
    ):
        assert running.stdout is not None
        first = running.stdout.readline()
        assert first == b"there\n", running.communicate(timeout=PATIENCE)
        os.kill(elsewhere.process.pid, signal.SIGKILL)
        out, err = running.communicate(timeout=PATIENCE)
        assert (running.returncode, err) == (0, b"")
        assert out.startswith(f"ToolError: The gateway at {elsewhere.url} cannot be reached".encode())
