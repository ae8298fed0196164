"""Import Map Generation, and HTTP Import Support."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.processes import TIMEOUT_SECONDS, hutch
from tests.support.toolscripts import (
    IMPORT,
    ScriptEnvironment,
    arguments_of,
    configure,
    gateway,
    script_environment,
    scripts_below,
    stdio,
)

from hutch.protocols.toolscript.execute import ImportMaps
from hutch.sandbox import temp_dirs


@asynccontextmanager
async def running(scripts: ScriptEnvironment) -> AsyncIterator[int]:
    """Yields the pid of the Deno process of a waiting script."""
    task = asyncio.create_task(scripts.run(f"{IMPORT}await tools.every.slow({{ seconds: 60 }});"))
    try:
        await scripts.until_called("every__slow")
        [pid] = scripts_below(os.getpid())
        yield pid
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def map_of(pid: int) -> dict[str, Any]:
    """Reads the import map in the file system of the process."""
    found: dict[str, Any] = json.loads(Path(f"/proc/{pid}/root/import-map.json").read_text())
    return found


async def test_generate_import_map_json(scripts: ScriptEnvironment) -> None:
    async with running(scripts) as pid:
        assert list(map_of(pid)) == ["imports"]
        assert map_of(pid)["imports"]["toolscript"].startswith(
            f"{scripts.script_gateway.url}/runtime/tools.ts"
        )


async def test_import_map_structure_with_cache_busting(scripts: ScriptEnvironment) -> None:
    async with running(scripts) as pid:
        revision = await scripts.script_gateway.revision()
        url = f"{scripts.script_gateway.url}/runtime/tools.ts?_t={revision}"
        assert map_of(pid) == {"imports": {"toolscript": url}}


async def test_cache_busting_timestamp(scripts: ScriptEnvironment) -> None:
    """The module's URL has the gateway's revision as its query. The revision changes only when the tools
    change. Different gateways have different revisions.
    """
    await scripts.run("")
    async with running(scripts) as pid:
        query = map_of(pid)["imports"]["toolscript"].partition("?")[2]
    asked = {each.query for each in scripts.requests if each.path == "/runtime/tools.ts"}
    assert asked <= {query}
    assert re.fullmatch(r"_t=[0-9a-f]{16}-[0-9a-f]{16}", query)


async def test_ensure_fresh_types_on_gateway_restart(
    scripts: ScriptEnvironment, tmp_path: Path, environment: None
) -> None:
    servers = {"every": stdio("everything")}
    grown = f"{IMPORT}return await tools.every.grown1({{ value: 'fresh' }})"
    async with script_environment(tmp_path, servers) as first:
        await first.run("")
        before = await first.script_gateway.revision()
        assert (await first.run(grown)).exit_code == 1
        # Calling `grow` makes the server add a tool and send `list_changed`.
        changed = asyncio.Event()
        first.app.mcp_servers.on_change.append(changed.set)
        await first.run(f"{IMPORT}await tools.every.grow()")
        await asyncio.wait_for(changed.wait(), TIMEOUT_SECONDS)
        assert (await first.run(grown)).value == "fresh"
        asked = [each.query for each in first.requests if each.path == "/runtime/tools.ts"]
        assert asked[-1] == f"_t={await first.script_gateway.revision()}" != asked[0]
        last = await first.script_gateway.revision()
    async with script_environment(tmp_path, servers) as second:
        assert (await second.run(grown)).exit_code == 1
        assert await second.script_gateway.revision() not in (before, last)


async def test_write_import_map_to_temp_file() -> None:
    maps = ImportMaps()
    file = maps.file("http://127.0.0.1:4111/runtime/tools.ts?_t=1")
    # The folder's name identifies the host process, so that a later host can find and remove the folders of
    # killed hosts.
    assert file.parent.name.startswith(f"hutch-run-{temp_dirs.host_id()}-")
    assert file.is_relative_to(tempfile.gettempdir())
    assert json.loads(file.read_text()) == {
        "imports": {"toolscript": "http://127.0.0.1:4111/runtime/tools.ts?_t=1"}
    }
    assert maps.file("http://127.0.0.1:4111/runtime/tools.ts?_t=2") != file
    maps.close()
    assert not file.exists()


async def test_launch_deno_with_import_map_flag(scripts: ScriptEnvironment) -> None:
    async with running(scripts) as pid:
        arguments = arguments_of(pid)
        assert arguments[:2] == ["/deno", "run"]
        assert "--import-map=/import-map.json" in arguments


async def test_clean_import_syntax(scripts: ScriptEnvironment) -> None:
    """Deno loads the module from the gateway over HTTP."""
    ran = await scripts.run('import { tools } from "toolscript";\nconsole.log(Object.keys(tools).join());')
    assert ran.stdout == "every,github,myAtlassian\n"
    query = f"_t={await scripts.script_gateway.revision()}"
    fetched = {(each.method, each.path, each.query) for each in scripts.modules}
    assert ("GET", "/runtime/tools.ts", query) in fetched
    ran = await scripts.run('return import.meta.resolve("toolscript")')
    assert ran.value == f"{scripts.script_gateway.url}/runtime/tools.ts?{query}"


def test_toolscript_gateway_url_environment_variable(
    tmp_path: Path, everything_config: dict[str, Any]
) -> None:
    """`hutch exec` and its scripts use the URL that a session-start hook exports."""
    with gateway("--config", configure(tmp_path, {"every": everything_config}), cwd=tmp_path) as running:
        port = running.url.rpartition(":")[2]
        exported = hutch("gateway", "env", env={"HUTCH_PORT": port}).stdout
        assert exported == f"export TOOLSCRIPT_GATEWAY_URL={running.url}\n"
        variable = exported.removeprefix("export ").strip().partition("=")
        code = IMPORT + (
            "const url = Deno.env.get('TOOLSCRIPT_GATEWAY_URL');\n"
            "return [url, await tools.every.zero(), await (await fetch(`${url}/servers`)).json()];"
        )
        done = hutch("exec", code, env={variable[0]: variable[2]}, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        url, zero, servers = json.loads(done.stdout)
        assert (url, zero, [each["name"] for each in servers]) == (running.url, "0", ["every"])
        # The option `-g` overrides the variable.
        overridden = hutch(
            "exec", "-g", running.url, code, env={variable[0]: "http://127.0.0.1:9"}, cwd=tmp_path
        )
        assert overridden.stdout == done.stdout


async def test_type_safe_http_imports(scripts: ScriptEnvironment) -> None:
    right = IMPORT + (
        "const issue = await tools.github.createIssue({ title: 'x', labels: ['bug'] });\n"
        "const number: number = issue.number;\nconst sum: number = (await tools.every.add({ a: 1 })).sum;"
    )
    assert await scripts.app.scripts.checker.check(right, await scripts.script_gateway.declarations()) == []
    wrong = {
        "tools.github.createIssue({})": "Property 'title' is missing",
        "tools.github.createIssue({ title: 1 })": "Type 'number' is not assignable to type 'string'",
        "tools.github.createIssue({ title: 'x', labels: ['dog'] })": "Type '\"dog\"' is not assignable",
        "tools.github.createIssues({ title: 'x' })": "Did you mean 'createIssue'?",
        "tools.gitlab.createIssue({ title: 'x' })": "Property 'gitlab' does not exist",
        "(await tools.every.add()).total": "Property 'total' does not exist on type '{ sum: number; }'",
    }
    for call, message in wrong.items():
        ran = await scripts.run(f"{IMPORT}{call};")
        assert (ran.exit_code, message in ran.stderr) == (1, True), ran.stderr
    assert scripts.requests == []


async def test_multiple_servers_via_clean_import(scripts: ScriptEnvironment) -> None:
    code = IMPORT + (
        "const here = await tools.github.createIssue({ title: 'here' });\n"
        "const there = await tools.myAtlassian.createIssue({ title: 'there' });\n"
        "return [here.title, there.title, await tools.every.zero()];"
    )
    assert (await scripts.run(code)).value == ["here", "there", "0"]


async def test_server_namespacing_with_camelcase(scripts: ScriptEnvironment) -> None:
    code = IMPORT + "return [Object.keys(tools), Object.keys(tools.github), 'getUserName' in tools.every];"
    assert (await scripts.run(code)).value == [
        ["every", "github", "myAtlassian"],
        ["createIssue", "getIssue"],
        True,
    ]
