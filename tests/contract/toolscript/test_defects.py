"""The nine defects of the public implementation. The number in a test's name is the number of the defect."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from tests.support.mcp_servers import everything
from tests.support.processes import TIMEOUT_SECONDS, Traces, hutch
from tests.support.toolscripts import (
    IMPORT,
    ScriptEnvironment,
    configure,
    script_environment,
    start_command,
    stdio,
)


async def test_1_return_values_are_printed_and_promises_awaited(scripts: ScriptEnvironment) -> None:
    ran = await scripts.run("return { count: 42 }")
    assert (ran.exit_code, ran.value, ran.stderr) == (0, {"count": 42}, "")
    assert (await scripts.run("return (async () => ({ count: 43 }))()")).value == {"count": 43}


async def test_2_output_is_exact_and_streamed(scripts: ScriptEnvironment) -> None:
    code = IMPORT + 'console.log("x");\nawait tools.every.slow({ seconds: 60 });'
    has_arrived = asyncio.Event()
    running = asyncio.create_task(scripts.run(code, on_output=lambda *_: has_arrived.set()))
    await asyncio.wait_for(has_arrived.wait(), TIMEOUT_SECONDS)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    ran = await scripts.run('console.log("x")')
    assert (ran.stdout, ran.stderr) == ("x\n", "")


async def test_3_tool_and_protocol_errors_throw_with_their_text(scripts: ScriptEnvironment) -> None:
    for call, text in (
        ("fail({ city: 'Rome' })", "no such city: Rome"),
        ("reject()", "the quota is used up"),
    ):
        ran = await scripts.run(f"{IMPORT}await tools.every.{call}")
        assert ran.exit_code == 1
        assert f"ToolError: {text}\n" in ran.stderr


async def test_4_structured_content_is_used_with_an_output_schema(scripts: ScriptEnvironment) -> None:
    code = IMPORT + (
        "const { every } = tools;\nreturn [await every.add({ a: 2, b: 2 }), await every.zero(),\n"
        "  await every.echo({ value: '[1]' }), await every.echo({ value: 'true' }), await every.image()]"
    )
    [structured, zero, array, text, image] = (await scripts.run(code)).value
    assert (structured, zero, array, text) == ({"sum": 4}, "0", [1], "true")
    blocks = image if isinstance(image, list) else [image]
    assert [each["type"] for each in blocks] == ["image"]


async def test_5_odd_names_are_callable_and_collisions_are_reported(scripts: ScriptEnvironment) -> None:
    code = IMPORT + (
        "const { every } = tools;\n"
        "const names = Object.keys(every).filter((name) => /^get_?[uU]ser/.test(name));\n"
        "const called = await Promise.all(names.map((name) => (every as any)[name]({ id: '1' })));\n"
        "return { names, called: called.map(({ tool }) => tool), delete: (await every.delete({})).tool,\n"
        "  comment: (await every.comment({})).tool };"
    )
    ran = await scripts.run(code)
    assert sorted(ran.value["called"]) == ["get-user", "getUserName", "get_user"], ran
    assert "getUserName" in ran.value["names"]
    assert (ran.value["delete"], ran.value["comment"]) == ("delete", "comment")
    collisions = (await scripts.app.gateway.status())["collisions"]
    assert [{*each["became"]} for each in collisions] == [{"get_user", "get-user"}]


async def test_6_time_and_memory_are_limited_and_exit_codes_preserved(scripts: ScriptEnvironment) -> None:
    began = time.monotonic()
    ran = await scripts.run("console.log('before'); for (;;);", timeout_ms=300)
    assert (ran.exit_code, ran.stdout, ran.message) == (
        124,
        "before\n",
        "The script did not finish within 300 ms",
    )
    assert time.monotonic() - began < TIMEOUT_SECONDS
    full = "const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1))"
    ran = await scripts.run(full, memory_bytes=96 * 2**20)
    assert (ran.exit_code, ran.message) == (1, "Execution exceeded its memory limit of 96 MiB")
    for code in (0, 1, 7, 124, 133, 255):
        assert (await scripts.run(f"Deno.exit({code})", check=False)).exit_code == code
    assert (await scripts.run("Deno.exitCode = 9; console.log('goes on')")).exit_code == 9


async def test_7_all_pages_are_listed_and_a_crashed_server_is_restarted(tmp_path: Path) -> None:
    async with script_environment(tmp_path, {"every": stdio("everything")}) as scripts:
        names = (await scripts.run(f"{IMPORT}return Object.keys(tools.every)")).value
        assert len(names) > 3 * 7
        code = IMPORT + (
            "try { await tools.every.crash() } catch (error) { console.log((error as Error).message) }\n"
            "for (;;) {\n  try {\n    console.log(await tools.every.zero());\n    break;\n  } catch {\n"
            "    await new Promise((go) => setTimeout(go, 50));\n  }\n}"
        )
        ran = await scripts.run(code)
        crashed, back = ran.stdout.strip().split("\n")
        assert crashed == "the server was lost before it answered: it ended (exit code 3)"
        assert back == "0"


def test_7_no_server_outlives_a_killed_command(tmp_path: Path) -> None:
    config = configure(tmp_path, {"every": {"command": sys.executable, "args": [everything.__file__]}})
    code = (
        IMPORT + "await tools.every.spawn(); console.log('there'); await tools.every.slow({ seconds: 600 });"
    )
    with start_command("exec", code, cwd=tmp_path, HUTCH_MCP_CONFIG=config) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"there\n"
        with Traces(running.pid) as traces:
            assert traces.processes >= 6
            running.kill()
            running.communicate(timeout=TIMEOUT_SECONDS)
            assert [each for each in traces.remaining() if each.isdecimal()] == []


def test_8_servers_get_a_minimal_environment_and_their_own(tmp_path: Path) -> None:
    config = configure(tmp_path, {"every": stdio("everything", env={"MINE": "${SECRET_OF_MINE}"})})
    secret = {"SECRET_OF_MINE": "1", "SECRET_OF_OTHERS": "2", "HUTCH_MCP_CONFIG": config}
    done = hutch("exec", f"{IMPORT}return await tools.every.environment()", env=secret, cwd=tmp_path)
    variables = json.loads(done.stdout)
    assert variables["MINE"] == "1"
    assert {name for name in variables if name.startswith(("SECRET_", "HUTCH_"))} == set()


def test_9_checked_script_is_fast(tmp_path: Path) -> None:
    """`make bench` measures the target of 0.45 s. The public implementation takes at least 1.3 s."""
    hutch("exec", "console.log(0)", cwd=tmp_path)
    times = []
    for each in range(3):
        began = time.monotonic()
        done = hutch("exec", f"const n: number = {each}; console.log(n)", cwd=tmp_path)
        times.append(time.monotonic() - began)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{each}\n", "")
    assert min(times) < 5
