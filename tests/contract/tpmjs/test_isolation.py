"""Isolation of executions: each execution sees only its own env and package, and nothing of the server or of
other calls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.harness import ToolServer, server_with_registry, start_server, tool
from tests.npm import registry

API_KEY = "marker-of-the-key"
TOKEN = "marker-of-the-registry"


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ToolServer]:
    """A server that has secrets: an API key, a token for the registry, and a token of another service."""
    with registry.run_registry(token=TOKEN) as npm:
        variables = {
            "EXECUTOR_API_KEY": API_KEY,
            "SOME_SERVICE_TOKEN": "marker-of-the-server",
            f"NPM_CONFIG_//127.0.0.1:{npm.port}/:_authToken": TOKEN,
        }
        async with start_server(npm, variables, home=tmp_path_factory.mktemp("guarded")) as running:
            running.client.headers["Authorization"] = f"Bearer {API_KEY}"
            yield running


READ_ENVIRONMENT = """
    const { readdirSync, readFileSync, readlinkSync } = await import("node:fs");
    const seen = { deno: Deno.env.toObject(), node: { ...process.env }, argv: process.argv, args: Deno.args };
    const attempt = (name, action) => { try { return seen[name] = action() } catch {} };
    const look = (path, depth) => {
      attempt("link " + path, () => readlinkSync(path));
      attempt("file " + path, () => readFileSync(path, "latin1").slice(0, 2000));
      for (const name of depth && attempt("folder " + path, () => readdirSync(path)) || []) {
        look(`${path}/${name}`, depth - 1);
      }
    };
    for (const path of ["/tmp", "/proc", "/etc", "/root", "/home", "/run", "/var", "/pkg"]) look(path, 3);
    for (const pid of ["self", 1, 2]) {
      for (const name of ["environ", "cmdline", "mounts", "fd/0", "fd/3"]) look(`/proc/${pid}/${name}`, 1);
    }
    return seen;
"""


async def test_server_environment_is_invisible(guarded: ToolServer) -> None:
    answer = await guarded.run(tool(READ_ENVIRONMENT), env={"MINE": "yes"})
    assert answer["success"] is True, answer
    seen = answer["output"]
    assert "import(" in seen["file /pkg/load.mjs"]
    assert seen["node"]["MINE"] == seen["deno"]["MINE"] == "yes"
    assert {*seen["node"]} <= {"MINE", "HOME", "TMPDIR"}
    assert "marker-of" not in json.dumps(seen)


async def test_key_is_required_and_never_visible_to_a_tool(guarded: ToolServer) -> None:
    package = guarded.publish(tool("return [params, process.env, options]"))
    assert API_KEY not in json.dumps(await guarded.execute(package))
    refused = await guarded.post("/execute-tool", {"packageName": package, "name": "tool"}, Authorization="")
    assert refused.status_code == 401


async def test_env_is_set_before_the_package_is_imported(spare_server: ToolServer) -> None:
    package = spare_server.publish(tool("return atImport", "const atImport = process.env.MARK ?? null;"))
    for mark in ("one", "two", "one"):
        assert (await spare_server.execute(package, env={"MARK": mark}))["output"] == mark
    assert (await spare_server.execute(package))["output"] is None


async def test_env_is_not_visible_to_the_next_call(spare_server: ToolServer) -> None:
    package = spare_server.publish(
        tool("const { ...seen } = process.env; process.env.LEFT = 'x'; return seen")
    )
    first = (await spare_server.execute(package, env={"TOKEN": "secret", "ONE": "1"}))["output"]
    assert first["TOKEN"] == "secret"
    for _ in range(2):
        assert {*(await spare_server.execute(package))["output"]} <= {"HOME", "TMPDIR"}
        assert (await spare_server.execute(package, env={"TOKEN": "other"}))["output"].get("ONE") is None


async def test_concurrent_calls_see_their_own_env(spare_server: ToolServer) -> None:
    package = spare_server.publish(
        tool("await new Promise((r) => setTimeout(r, 20)); return process.env.WHO", "process.env.WHO;")
    )
    answers = await asyncio.gather(*(spare_server.execute(package, env={"WHO": str(n)}) for n in range(12)))
    assert [answer["output"] for answer in answers] == [str(n) for n in range(12)]


async def test_variables_of_loaders_only_reach_the_tool(spare_server: ToolServer) -> None:
    names = [
        "PATH",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "NODE_OPTIONS",
        "DENO_DIR",
        "DENO_V8_FLAGS",
        "HTTP_PROXY",
    ]
    env = dict.fromkeys(names, "--require /tmp/x --inspect=0.0.0.0:1")
    answer = await spare_server.run(tool("return [process.env, process.execArgv ?? []]"), env=env)
    assert answer["success"] is True, answer
    assert {name: answer["output"][0].get(name) for name in names} == env
    assert "/tmp/x" not in json.dumps(answer["output"][1])


async def test_files_are_not_visible_to_the_next_call(spare_server: ToolServer) -> None:
    package = spare_server.publish(
        tool(
            "const before = readdirSync('/tmp'); writeFileSync('/tmp/left', 'x');"
            " globalThis.left = (globalThis.left ?? 0) + 1; return [before, globalThis.left]",
            "import { readdirSync, writeFileSync } from 'node:fs';",
        )
    )
    for _ in range(3):
        assert (await spare_server.execute(package))["output"] == [[], 1]


async def test_working_directory_is_writable_and_new_for_every_call(spare_server: ToolServer) -> None:
    package = spare_server.publish(
        tool(
            """
            const before = fs.readdirSync(".");
            fs.mkdirSync("data/deep", { recursive: true });
            fs.writeFileSync("data/deep/note.txt", "x");
            await Deno.writeTextFile("report.txt", "y");
            fs.writeFileSync(path.join(os.tmpdir(), "temporary"), "z");
            const texts = [fs.readFileSync(path.resolve("data/deep/note.txt"), "utf8"),
              await Deno.readTextFile(path.join(process.cwd(), "report.txt")),
              fs.readFileSync(path.join(os.tmpdir(), "temporary"), "utf8")];
            return [before, texts];
            """,
            "import fs from 'node:fs'; import os from 'node:os'; import path from 'node:path';",
        )
    )
    for _ in range(3):
        answer = await spare_server.execute(package)
        assert answer.get("output") == [[], ["x", "y", "z"]], answer


async def test_only_the_packages_own_tree_is_readable(spare_server: ToolServer) -> None:
    other = spare_server.publish(tool("return 'other'"))
    assert (await spare_server.execute(other))["output"] == "other"
    answer = await spare_server.run(
        tool(
            "const found = []; const walk = (path) => { for (const each of readdirSync(path)) {"
            " found.push(each); try { walk(path + '/' + each) } catch {} } };"
            " walk('/pkg'); return found",
            "import { readdirSync } from 'node:fs';",
        )
    )
    assert "load.mjs" in answer["output"]
    assert [name for name in answer["output"] if name.startswith(other)] == []


async def test_module_state_is_new_for_every_call(spare_server: ToolServer) -> None:
    package = spare_server.publish(tool("return ++count", "let count = 0;"))
    assert [(await spare_server.execute(package))["output"] for _ in range(4)] == [1, 1, 1, 1]


async def test_module_state_survives_if_the_operator_allows_it(tmp_path: Path) -> None:
    async with server_with_registry(tmp_path, tool_calls_per_process=2, max_spares=1) as server:
        package = server.publish(tool("if (params.fail) throw 1; return ++count", "let count = 0;"))
        counts = [(await server.execute(package))["output"] for _ in range(6)]
        assert sorted(counts) == [1, 1, 1, 2, 2, 2]
        # The counts start again at 1, because a call with another env and a call after a failure each get a
        # new process.
        assert (await server.execute(package, env={"A": "1"}))["output"] == 1
        assert (await server.execute(package, env={"A": "1"}))["output"] == 2
        await server.execute(package, params={"fail": True}, env={"B": "1"})
        assert (await server.execute(package, env={"B": "1"}))["output"] == 1
