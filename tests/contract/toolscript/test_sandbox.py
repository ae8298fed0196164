"""Sandbox Environment: process, files, network and environment of a script."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.support.toolscripts import IMPORT, ScriptEnvironment, arguments_of, scripts_below


async def test_isolated_execution(scripts: ScriptEnvironment) -> None:
    """A script runs in its own Deno process, in a container with almost no permissions."""
    waiting_script = IMPORT + "await tools.every.slow({ seconds: 60 });"
    running = asyncio.create_task(scripts.run(waiting_script, timeout_ms=1_500))
    await scripts.until_called("every__slow")
    own_pid = os.getpid()
    [pid] = scripts_below(own_pid)
    given = [each.partition("=") for each in arguments_of(pid) if each.startswith("--allow")]
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/{own_pid}/ns/{kind}")  # noqa: PTH115
    assert {name: value for name, _, value in given} == {
        "--allow-read": "/hutch,/hutch.sock,/import-map.json,/tmp/script",
        "--allow-write": "/hutch.sock,/tmp/script",
        "--allow-net": "127.0.0.1:4111,unix:/hutch.sock",
        "--allow-import": "127.0.0.1:4111",
        "--allow-env": "TOOLSCRIPT_GATEWAY_URL",
    }
    assert (await running).exit_code == 124

    code = """
        const states: Record<string, string> = {};
        for (const name of ["read", "write", "net", "env", "run", "ffi", "sys"] as const) {
          states[name] = (await Deno.permissions.query({ name })).state;
        }
        return states;
    """
    # No permission may be "granted". The runner needs permission to read the script's files, and drops this
    # permission before the script starts.
    ran = await scripts.run(code)
    assert set(ran.value.values()) <= {"prompt", "denied"}, ran


async def test_network_restrictions(scripts: ScriptEnvironment) -> None:
    code = """
        const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL")!;
        const outcomes: Record<string, unknown> = {};
        const urls = [
          `${gateway}/health`, "http://127.0.0.1:4112/", "http://localhost:4111/health", "http://1.1.1.1/",
          "https://example.com/", "http://[::1]:4111/", "http://0.0.0.0:4111/", "ws://127.0.0.1:9/",
        ];
        for (const url of urls) {
          try {
            outcomes[url] = url.startsWith("ws") ? `${new WebSocket(url).url}` : (await fetch(url)).status;
          } catch (error) {
            outcomes[url] = (error as Error).name;
          }
        }
        for (const [name, port] of [["other port", 4112], ["gateway", 4111]] as const) {
          try {
            (await Deno.connect({ hostname: "127.0.0.1", port })).close();
            outcomes[name] = "connected";
          } catch (error) {
            outcomes[name] = (error as Error).name;
          }
        }
        return outcomes;
    """
    ran = await scripts.run(code)
    allowed = {name: what for name, what in ran.value.items() if what != "NotCapable"}
    assert allowed == {"http://127.0.0.1:4111/health": 200, "gateway": "connected"}
    assert len(ran.value) == 10


async def test_filesystem_restrictions(scripts: ScriptEnvironment, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    code = """
        const [folder] = Deno.args;
        const outcomes: Record<string, string> = {};
        const attempts: Record<string, () => unknown> = {
          read: () => Deno.readTextFileSync(`${folder}/secret`),
          "read relatively": () => Deno.readTextFileSync("secret"),
          list: () => [...Deno.readDirSync(folder)],
          "read the system's": () => Deno.readTextFileSync("/etc/hosts"),
          "read its own": () => Deno.readTextFileSync(new URL(import.meta.url)),
          write: () => Deno.writeTextFileSync(`${folder}/new`, ""),
          "write elsewhere": () => Deno.writeTextFileSync("/tmp/new", ""),
          "make a temporary file": () => Deno.makeTempFileSync(),
          remove: () => Deno.removeSync(`${folder}/secret`),
          stat: () => Deno.statSync(folder),
        };
        for (const name in attempts) {
          try {
            outcomes[name] = `got ${attempts[name]()}`;
          } catch (error) {
            outcomes[name] = (error as Error).name;
          }
        }
        return outcomes;
    """
    ran = await scripts.run(code, args=(str(tmp_path),), cwd=str(tmp_path))
    assert set(ran.value.values()) == {"NotCapable"}, ran
    assert os.listdir(tmp_path) == ["secret"]  # noqa: PTH208


async def test_environment_variable_restrictions(scripts: ScriptEnvironment) -> None:
    code = """
        const outcomes: Record<string, unknown> = {};
        for (const name of ["TOOLSCRIPT_GATEWAY_URL", "PATH", "HOME", "HUTCH_HOME", "HUTCH_API_KEY"]) {
          try {
            outcomes[name] = Deno.env.get(name) ?? null;
          } catch (error) {
            outcomes[name] = (error as Error).name;
          }
        }
        return outcomes;
    """
    outcomes = (await scripts.run(code)).value
    assert outcomes.pop("TOOLSCRIPT_GATEWAY_URL") == "http://127.0.0.1:4111"
    assert set(outcomes.values()) == {"NotCapable"}
    ran = await scripts.run("return Deno.env.toObject()")
    assert ran.exit_code == 1
    assert "NotCapable: Requires env access" in ran.stderr
