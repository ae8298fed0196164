"""Toolscripts from the shell and in a running server, and their tool calls. The baseline is `deno run
--check`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from bench.kernel.startup import compile_sources
from bench.report import Row, Scale, median, number, percentile
from hutch.app.app import App
from hutch.mcp_client.tools import McpTool
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.codegen.module import declarations, tools_module
from hutch.protocols.toolscript.execute import GATEWAY_VARIABLE, ScriptRequest
from hutch.protocols.toolscript.gateway.catalog import Catalog
from hutch.sandbox import deno_binary
from hutch.settings import Settings

SERVER = '''
from mcp.server.mcpserver import MCPServer
server = MCPServer("echo")
@server.tool()
def echo(value: int) -> int:
    """Returns its argument."""
    return value
server.run("stdio")
'''
SCRIPT = 'import {{ tools }} from "toolscript";\nreturn await tools.echo.echo({{ value: {0} }});\n'
# Program with the imports that `hutch exec` makes before it starts any process.
START_UP = """
import gc
gc.set_threshold(10_000)
import hutch.cli.toolscript, hutch.protocols.toolscript.gateway.remote
gc.freeze()
"""
numbers = itertools.count(1)


def new_script() -> str:
    """Returns a script that no cache contains."""
    return SCRIPT.format(next(numbers))


async def scripts(scale: Scale) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as folder:
        server = Path(folder) / "server.py"
        server.write_text(SERVER)
        entry = {"command": sys.executable, "args": [str(server)]}
        config = Path(folder) / "servers.json"
        config.write_bytes(msgspec.json.encode({"mcpServers": {"echo": entry}}))
        async with running(Settings(mcp_config=(str(config),))) as app:
            rows = await _in_server(app, scale)
            rows.append(await _calls(app, str(server), scale))
            rows.append(await _at_once(app, scale))
        rows.insert(0, await _from_shell(folder, str(config), scale))
        rows.append(_generation())
    return rows


@contextlib.asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[App]:
    app = await App.create(settings)
    try:
        await app.mcp_servers.start()
        await run(app, new_script())
        # `hutch serve` does the same after its start.
        gc.collect()
        gc.freeze()
        yield app
    finally:
        await app.close()


async def run(app: App, text: str, *, check: bool = True) -> float:
    began = time.perf_counter()
    result = await app.scripts.run(ScriptRequest(script=Script(text), check=check), app.script_gateway)
    if result.exit_code != 0:
        raise RuntimeError(f"the script failed: {result}")
    return (time.perf_counter() - began) * 1000


async def _spare(app: App) -> None:
    while True:
        stats = app.pool.stats()
        if stats.warm.get("script") and not stats.starting:
            # Give the previous runner time to end.
            return await asyncio.sleep(0.1)
        await asyncio.sleep(0.01)


async def _in_server(app: App, scale: Scale) -> list[Row]:
    count = scale.of(40, 5)
    checked, unchecked, rewritten, same = [], [], [], []
    text = new_script()
    await run(app, text)
    for _ in range(count):
        for figures, script, check in (
            (checked, new_script(), True), (unchecked, new_script().replace("return ", ""), False),
            (rewritten, new_script(), False), (same, text, True),
        ):  # fmt: skip
            await _spare(app)
            figures.append(await run(app, script, check=check))
    reference = await _baseline(app, scale)
    with_check, base = median(checked), median(reference)
    data = {
        "checked_ms": checked,
        "unchecked_ms": unchecked,
        "unchanged_ms": same,
        "rewritten_ms": rewritten,
        "baseline_ms": reference,
    }
    return [
        Row(
            what="script with one tool call, in a running server, changed and checked: p50 / p95",
            measured=f"{number(with_check)} / {number(percentile(checked, 0.95))} ms",
            baseline=f"{number(base)} ms: `deno run --check`, same import map, no jail",
            target="p50 ≤ 120 ms, baseline at least 8 times slower",
            met=with_check <= 120 and base >= 8 * with_check,
            data=data,
        ),
        Row(
            what="the same without the check (with a top-level `return`) / unchanged",
            measured=f"{number(median(unchecked))} ({number(median(rewritten))}) / {number(median(same))} ms",
            target="≤ 15 ms",
            met=median(unchecked) <= 15 and median(same) <= 15,
        ),
    ]


async def _baseline(app: App, scale: Scale) -> list[float]:
    """Returns the milliseconds of `deno run --check` with the same gateway, without Hutch and with a warm
    cache.
    """
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app.gateway_app, log_config=None, lifespan="off"))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    figures = []
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as folder:
        import_map = Path(folder) / "map.json"
        target = f"{url}/runtime/tools.ts?_t={await app.script_gateway.revision()}"
        import_map.write_bytes(msgspec.json.encode({"imports": {"toolscript": target}}))
        env = {
            "DENO_DIR": f"{folder}/cache",
            GATEWAY_VARIABLE: url,
            "NO_COLOR": "1",
            "PATH": os.environ["PATH"],
        }
        address = url.removeprefix("http://")
        for index in range(scale.of(6, 2)):
            script = Path(folder) / "script.ts"
            script.write_text(new_script().replace("return ", "console.log(", 1).replace(");", "));"))
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                deno_binary.find_deno(), "run", "--quiet", "--check", "--no-prompt",
                f"--import-map={import_map}", f"--allow-net={address}", f"--allow-import={address}",
                f"--allow-env={GATEWAY_VARIABLE}", str(script),
                env=env, stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            if await process.wait() != 0:
                raise RuntimeError("deno run --check failed")
            if index:
                # The first run, which fills the cache, does not count.
                figures.append((time.perf_counter() - began) * 1000)
    server.should_exit = True
    await serving
    return figures


async def _calls(app: App, server: str, scale: Scale) -> Row:
    count = scale.of(1000, 100)
    baseline = await _sdk_call_ms(server, count)
    text = (
        'import { tools } from "toolscript";\nconst each: number[] = [];\n'
        f"for (let value = 0; value < {count}; value++) {{\n"
        "  const began = performance.now();\n  await tools.echo.echo({ value });\n"
        "  each.push(performance.now() - began);\n}\nreturn each;\n"
    )
    result = await app.scripts.run(ScriptRequest(script=Script(text)), app.script_gateway)
    each = msgspec.json.decode(result.value_json or "[]", type=list[float])
    mean, middle = sum(each) / len(each), median(each)
    return Row(
        what=f"a tool call in a script, echo over stdio ({count} in a row): p50 / mean",
        measured=f"{number(middle)} / {number(mean)} ms",
        baseline=f"{number(baseline)} ms: the same server called by the SDK's client, without a script",
        target="≤ 3 ms",
        met=max(middle, mean) <= 3,
        data={"p50_ms": middle, "mean_ms": mean, "baseline_ms": baseline},
    )


async def _sdk_call_ms(server: str, count: int) -> float:
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async with (
        stdio_client(StdioServerParameters(command=sys.executable, args=[server])) as (read, write),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        began = time.perf_counter()
        for value in range(count):
            await session.call_tool("echo", {"value": value})
        return (time.perf_counter() - began) * 1000 / count


async def _at_once(app: App, scale: Scale) -> Row:
    count = scale.of(50, 10)
    began = time.perf_counter()
    results = await asyncio.gather(
        *(
            app.scripts.run(ScriptRequest(script=Script(SCRIPT.format(n))), app.script_gateway)
            for n in range(count)
        )
    )
    seconds = time.perf_counter() - began
    correct = [result.value_json for result in results] == [f'{{"result":{n}}}' for n in range(count)]
    return Row(
        what=f"{count} scripts at once",
        measured=f"{'all' if correct else 'NOT all'} correct in {number(seconds)} s",
        target="all correct, bounded memory",
        met=correct,
        data={"seconds": seconds, "max_processes": app.settings.max_processes},
    )


async def _from_shell(folder: str, config: str, scale: Scale) -> Row:
    compile_sources()
    hutch = str(Path(sys.executable).parent / "hutch")
    env = {**os.environ, "HUTCH_MCP_CONFIG": config, "HUTCH_LOG_LEVEL": "error"}
    gateway = await asyncio.create_subprocess_exec(
        hutch, "gateway", "start", "--port", "0", env=env, cwd=folder,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert gateway.stdout is not None
    figures: list[float] = []
    versions: list[float] = []
    try:
        url = (await gateway.stdout.readline()).decode().split(" at ")[1].split()[0]
        for index in range(scale.of(12, 3)):
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(
                hutch, "exec", new_script(), env={**env, GATEWAY_VARIABLE: url}, cwd=folder,
                stdout=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            if await process.wait() != 0:
                raise RuntimeError("hutch exec failed")
            if index:
                figures.append(time.perf_counter() - began)
            began = time.perf_counter()
            process = await asyncio.create_subprocess_exec(sys.executable, "-c", START_UP, env=env)
            await process.wait()
            versions.append(time.perf_counter() - began)
    finally:
        gateway.terminate()
        await gateway.wait()
    total, start_up = median(figures), median(versions)
    return Row(
        what="`hutch exec` from the shell, gateway running, checked, one tool call (Hutch's start-up)",
        measured=f"{number(total)} s ({number(start_up)} s)",
        target="≤ 0.45 s, of which ≤ 0.2 s start-up",
        met=total <= 0.45 and start_up <= 0.2,
        data={"seconds": figures, "import_seconds": versions},
    )


def _generation() -> Row:
    schema = {"type": "object", "properties": {"title": {"type": "string"}, "labels": {"type": "array"}}}
    tools = [
        McpTool(server=f"s{n % 10}", name=f"tool_{n}", description=f"Does {n}.", input_schema=schema)
        for n in range(500)
    ]
    began = time.perf_counter()
    catalog = Catalog.of(tools, [])
    tools_module(catalog)
    declarations(catalog)
    seconds = time.perf_counter() - began
    return Row(
        what="generating the module and types of 500 tools",
        measured=f"{number(seconds)} s",
        target="≤ 0.5 s, cached afterwards",
        met=seconds <= 0.5,
        data={"seconds": seconds},
    )
