"""Sandbox Environment: what a script is, sees and reaches."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from tests.toolscripts import IMPORT, Place, arguments_of, scripts_below


async def test_isolated_execution(scripts: Place) -> None:
    """A process of its own, which is Deno in a container with next to no permissions."""
    waits = IMPORT + "await tools.every.slow({ seconds: 60 });"
    running = asyncio.create_task(scripts.run(waits, timeout_ms=1_500))
    await scripts.until_called("every__slow")
    here = os.getpid()
    [pid] = scripts_below(here)
    given = [each.partition("=") for each in arguments_of(pid) if each.startswith("--allow")]
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts"):
        assert os.readlink(f"/proc/{pid}/ns/{kind}") != os.readlink(f"/proc/{here}/ns/{kind}")  # noqa: PTH115
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
    # What the runner had to have for the files of the script is given up before it begins.
    ran = await scripts.run(code)
    assert set(ran.value.values()) <= {"prompt", "denied"}, ran


async def test_network_restrictions(scripts: Place) -> None:
    code = """
        const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL")!;
        const told: Record<string, unknown> = {};
        const urls = [
          `${gateway}/health`, "http://127.0.0.1:4112/", "http://localhost:4111/health", "http://1.1.1.1/",
          "https://example.com/", "http://[::1]:4111/", "http://0.0.0.0:4111/", "ws://127.0.0.1:9/",
        ];
        for (const url of urls) {
          try {
            told[url] = url.startsWith("ws") ? `${new WebSocket(url).url}` : (await fetch(url)).status;
          } catch (error) {
            told[url] = (error as Error).name;
          }
        }
        for (const [name, port] of [["other port", 4112], ["gateway", 4111]] as const) {
          try {
            (await Deno.connect({ hostname: "127.0.0.1", port })).close();
            told[name] = "connected";
          } catch (error) {
            told[name] = (error as Error).name;
          }
        }
        return told;
    """
    ran = await scripts.run(code)
    allowed = {name: what for name, what in ran.value.items() if what != "NotCapable"}
    assert allowed == {"http://127.0.0.1:4111/health": 200, "gateway": "connected"}
    assert len(ran.value) == 10


async def test_filesystem_restrictions(scripts: Place, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a secret")
    code = """
        const [folder] = Deno.args;
        const told: Record<string, string> = {};
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
            told[name] = `got ${attempts[name]()}`;
          } catch (error) {
            told[name] = (error as Error).name;
          }
        }
        return told;
    """
    ran = await scripts.run(code, args=(str(tmp_path),), cwd=str(tmp_path))
    assert set(ran.value.values()) == {"NotCapable"}, ran
    assert os.listdir(tmp_path) == ["secret"]  # noqa: PTH208


async def test_environment_variable_restrictions(scripts: Place) -> None:
    code = """
        const told: Record<string, unknown> = {};
        for (const name of ["TOOLSCRIPT_GATEWAY_URL", "PATH", "HOME", "HUTCH_HOME", "HUTCH_API_KEY"]) {
          try {
            told[name] = Deno.env.get(name) ?? null;
          } catch (error) {
            told[name] = (error as Error).name;
          }
        }
        return told;
    """
    told = (await scripts.run(code)).value
    assert told.pop("TOOLSCRIPT_GATEWAY_URL") == "http://127.0.0.1:4111"
    assert set(told.values()) == {"NotCapable"}
    ran = await scripts.run("return Deno.env.toObject()")
    assert ran.exit_code == 1
    assert "NotCapable: Requires env access" in ran.stderr
