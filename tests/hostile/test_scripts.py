"""Toolscripts that try to escape. The jail and the gateway must stop an attempt even if Deno's permissions
allow it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.hostile.conftest import peak_bytes
from tests.hostile.guests.attempts import successes
from tests.support.mcp_servers.asgi_server import running_app
from tests.support.mcp_servers.everything import Everything, app
from tests.support.processes import TIMEOUT_SECONDS, Traces, hutch, wait_until
from tests.support.toolscripts import (
    IMPORT,
    TOKEN,
    ScriptEnvironment,
    script_environment,
    scripts_below,
    start_command,
    stdio,
)

MIB = 2**20


@pytest.fixture(scope="module")
async def victim(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ScriptEnvironment]:
    with running_app(app(Everything())) as remote:
        servers = {"every": stdio("everything"), "remote": {"type": "http", "url": f"{remote.url}/mcp"}}
        async with script_environment(tmp_path_factory.mktemp("servers"), servers, api_key=TOKEN) as server:
            yield server


@pytest.fixture
async def scripts(victim: ScriptEnvironment) -> AsyncIterator[ScriptEnvironment]:
    """The shared environment. After each test, checks that another script runs normally."""
    victim.requests.clear()
    yield victim
    result = await victim.run(f"{IMPORT}return [await tools.every.zero(), await tools.remote.zero()]")
    assert (result.exit_code, result.value, result.stderr) == (0, ["0", "0"], "")


@pytest.fixture
def listener() -> Iterator[int]:
    """A port on the host's loopback on which the test listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# --- files ---

IMPORTS = {
    "text": 'import text from "/etc/passwd" with { type: "text" }; console.log("leak", text);',
    "bytes": 'import bytes from "/etc/passwd" with { type: "bytes" }; console.log("leak", bytes);',
    "JSON": 'import json from "/etc/passwd" with { type: "json" }; console.log("leak", json);',
    "a URL": 'import text from "file:///etc/passwd" with { type: "text" }; console.log("leak", text);',
    "a parent": 'import text from "../../etc/passwd" with { type: "text" }; console.log("leak", text);',
    "dynamic": 'console.log("leak", await import("file:///etc/passwd", { with: { type: "text" } }));',
    "dynamic JSON": 'console.log("leak", await import("file:///etc/passwd", { with: { type: "json" } }));',
    "the environment": (
        'import text from "/proc/self/environ" with { type: "text" }; console.log("leak", text);'
    ),
    "npm": 'import pad from "npm:left-pad@1.3.0"; console.log("leak", pad);',
    "dynamic npm import": 'console.log("leak", await import("npm:left-pad@1.3.0"));',
    "jsr": 'import { join } from "jsr:@std/path@1"; console.log("leak", join);',
    "https": 'import { x } from "https://esm.sh/left-pad"; console.log("leak", x);',
    "another port": 'import { x } from "http://127.0.0.1:4112/x.ts"; console.log("leak", x);',
    "another host": 'import { x } from "http://localhost:4111/runtime/tools.ts"; console.log("leak", x);',
}


async def test_nothing_of_the_host_or_a_registry_can_be_imported(scripts: ScriptEnvironment) -> None:
    runs = await asyncio.gather(*(scripts.run(code, check=False) for code in IMPORTS.values()))
    ends = dict(zip(IMPORTS, runs, strict=True))
    assert {
        name: result for name, result in ends.items() if result.exit_code != 1 or "leak" in result.stdout
    } == {}
    # The error messages must not contain contents of files either.
    assert {name for name, result in ends.items() if "root:" in result.stderr} == set()


async def test_unsupported_import_names_the_alternative(scripts: ScriptEnvironment) -> None:
    for specifier in ("npm:left-pad", "https://esm.sh/left-pad", "/etc/passwd"):
        result = await scripts.run(f'import x from "{specifier}";\nconsole.log(x);')
        assert (result.exit_code, result.stdout) == (1, "")
        assert "toolscript" in result.stderr
        assert "script.ts:1:" in result.stderr


def visible_to(pid: int) -> tuple[set[str], list[str], set[int]]:
    """Returns the host's folders, the network interfaces and the listening ports that a process can see."""
    root = Path(f"/proc/{pid}/root")
    folders = {"etc", "root", "home", "usr", "bin", "sys", "var"}
    interfaces = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    sockets = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return (
        {name for name in folders if (root / name).exists()},
        [line.split(":")[0].strip() for line in interfaces],
        {int(each[1].rpartition(":")[2], 16) for each in sockets if each[3] == "0A"},
    )


async def test_jail_contains_nothing_of_the_host(scripts: ScriptEnvironment, listener: int) -> None:
    """Looks into the jail from outside, through /proc. From inside, Deno's permissions would hide what exists
    in the jail.
    """
    running = asyncio.create_task(scripts.run(f"{IMPORT}await tools.every.slow({{ seconds: 60 }})"))
    await scripts.until_called("every__slow")
    [pid] = scripts_below(os.getpid())
    assert visible_to(pid) == (set(), ["lo"], {4111})
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    code = f"try {{ await Deno.connect({{ port: {listener} }}) }} catch (error) {{ console.log(error.name) }}"
    assert (await scripts.run(code, check=False)).stdout == "NotCapable\n"


async def test_processes_libraries_and_system_are_refused(scripts: ScriptEnvironment) -> None:
    attempts = {
        "run": "new Deno.Command('/deno', { args: ['--version'] }).outputSync().code",
        "shell": "(await import('node:child_process')).execSync('id').toString()",
        "fork": "(await import('node:child_process')).fork('/hutch/entry.js').pid",
        "ffi": "Deno.dlopen('/lib/x86_64-linux-gnu/libc.so.6', {})",
        "addon": "process.dlopen({ exports: {} }, '/x.node')",
        "kill": "Deno.kill(1)",
        "hostname": "Deno.hostname()",
        "interfaces": "Deno.networkInterfaces()",
        "user": "(await import('node:os')).userInfo()",
        "control": "await Deno.connect({ transport: 'unix', path: '/hutch.sock' })",
        "other control": "(await import('node:net')).connect('/hutch.sock').remoteAddress",
        "listen": "Deno.listen({ port: 4113 }).addr",
        "files by node": "(await import('node:fs')).readdirSync('/')",
        "inspector": "(await import('node:inspector')).open(9229)",
        "permission": "(await Deno.permissions.request({ name: 'read' })).state === 'granted' || null",
    }
    functions = ",\n".join(f"{name!r}: async () => {code}" for name, code in attempts.items())
    code = f"""
        const results = {{}};
        for (const [name, attempt] of Object.entries({{ {functions} }})) {{
          try {{
            const leak = await attempt();
            results[name] = leak === undefined || leak === null ? "refused: nothing" : `got ${{leak}}`;
          }} catch (error) {{
            results[name] = `refused: ${{error.name}}: ${{error.message}}`;
          }}
        }}
        console.log(JSON.stringify(results));
        Deno.exit(0);
    """
    result = await scripts.run(code, check=False)
    results = msgspec.json.decode(result.stdout)
    assert successes(results) == {}
    assert len(results) == len(attempts)


async def test_stdin_is_empty(scripts: ScriptEnvironment, tmp_path: Path) -> None:
    code = "console.log(JSON.stringify(await new Response(Deno.stdin.readable).text()))"
    assert (await scripts.run(code)).stdout == '""\n'
    done = await asyncio.to_thread(hutch, "exec", code, input="input of the command", cwd=tmp_path)
    assert done.stdout == '""\n'


async def test_no_state_is_kept_between_runs(scripts: ScriptEnvironment) -> None:
    code = """
        const before: unknown[] = [];
        try {
          before.push(localStorage.getItem("x"), sessionStorage.getItem("x"));
          localStorage.setItem("x", "1");
          sessionStorage.setItem("x", "1");
        } catch { /* it may be refused as well */ }
        try {
          const cache = await caches.open("x");
          before.push((await cache.match("http://127.0.0.1:4111/x")) ?? null);
          await cache.put("http://127.0.0.1:4111/x", new Response("1"));
        } catch { /* likewise */ }
        before.push((globalThis as any).left ?? null);
        (globalThis as any).left = 1;
        return before.filter((each) => each !== null);
    """
    for _ in range(2):
        result = await scripts.run(code)
        assert (result.exit_code, result.value) == (0, []), result


# --- time and memory ---

BOMBS = {
    "buffers": "const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1));",
    "one buffer": "new Uint8Array(1 << 30).fill(1); console.log('leak');",
    "WebAssembly": (
        "const memory = new WebAssembly.Memory({ initial: 1, maximum: 65536 });"
        " for (;;) { memory.grow(16); new Uint8Array(memory.buffer).fill(1); }"
    ),
    "objects": "const all = []; for (let i = 0;; i++) all.push({ i, s: `x${i}` });",
    "workers": (
        "const all = []; const url = URL.createObjectURL(new Blob(['setInterval(() => {}, 1000)']));"
        " for (let i = 0; i < 400; i++) all.push(new Worker(url, { type: 'module' }));"
        " await new Promise((go) => setTimeout(go, 60_000));"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_memory_is_limited(scripts: ScriptEnvironment, bomb: str) -> None:
    result = await scripts.run(BOMBS[bomb], check=False, memory_bytes=128 * MIB, timeout_ms=20_000)
    assert result.exit_code == 1
    assert "leak" not in result.stdout
    if bomb != "workers":
        assert result.message == "Execution exceeded its memory limit of 128 MiB"
    await asyncio.to_thread(wait_until, lambda: len(scripts_below(os.getpid())) <= 1)


async def test_catastrophic_regular_expression_ends(scripts: ScriptEnvironment) -> None:
    result = await scripts.run("return /^(a+)+$/.test('a'.repeat(50) + 'b')", timeout_ms=20_000)
    assert (result.exit_code, result.value) == (0, False)


@pytest.mark.parametrize(
    "code",
    [
        "for (;;);",
        "await new Promise(() => {})",
        "setInterval(() => {}, 1)",
        "globalThis.addEventListener('unload', () => { for (;;); }); for (;;) await 0;",
        "Promise.prototype.then = () => { for (;;); }; await 0; for (;;);",
        "for (;;) { try { for (;;); } finally { continue; } }",
    ],
)
async def test_endless_script_exits_with_124(scripts: ScriptEnvironment, code: str) -> None:
    result = await scripts.run(code, check=False, timeout_ms=300)
    assert (result.exit_code, result.message) == (124, "The script did not finish within 300 ms")


# --- the gateway ---


async def test_token_is_not_visible_to_a_script(scripts: ScriptEnvironment) -> None:
    code = (
        IMPORT
        + """
        const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL")!;
        const seen: string[] = [];
        for (const path of ["/health", "/tools", "/servers", "/search?q=echo", "/runtime/tools.ts", "/x"]) {
          const answer = await fetch(gateway + path, { headers: { authorization: "Bearer guess" } });
          seen.push(JSON.stringify([...answer.headers]), await answer.text());
        }
        seen.push(JSON.stringify([await tools.remote.headers(), await tools.every.environment()]));
        seen.push(JSON.stringify(Deno.args), Deno.mainModule, import.meta.url);
        return seen;
    """
    )
    result = await scripts.run(code)
    assert result.exit_code == 0, result
    assert len(result.value) > 10
    assert TOKEN not in "".join(result.value)
    # Requests from a jail need no token. A token that a script sends is ignored.
    assert {each.headers.get("authorization") for each in scripts.requests} == {"Bearer guess", None}


async def test_script_cannot_approve_its_own_calls(scripts: ScriptEnvironment) -> None:
    code = r"""
        const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL")!;
        const results: Record<string, unknown> = {};
        const paths = ["/approvals", "/approvals/x", "/approvals/events", "//approvals", "/approvals/",
          "/%61pprovals", "/APPROVALS", "/x/../approvals", "/status", "/metrics", "/mcp", "/execute-tool",
          "/execbox", "/info"];
        for (const path of paths) {
          for (const method of ["GET", "POST"]) {
            const headers = { "x-hutch-run": "", "content-type": "application/json" };
            const body = method === "POST" ? '{"decision":"allow"}' : undefined;
            const answer = await fetch(gateway + path, { method, headers, body });
            await answer.body?.cancel();
            results[`${method} ${path}`] = answer.status;
          }
        }
        const wanted = "GET /approvals HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        const port = Number(new URL(gateway).port);
        const raws = {
          absolute: "GET http://elsewhere/approvals HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
          folded: "GET /approvals HTTP/1.1\r\nHost: x\r\nX-Hutch-Run:\r\n 1\r\nConnection: close\r\n\r\n",
          smuggled: "POST /tools/every__zero HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n" +
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + wanted,
          pipelined: "GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + wanted,
        };
        for (const [name, raw] of Object.entries(raws)) {
          const connection = await Deno.connect({ hostname: "127.0.0.1", port });
          await connection.write(new TextEncoder().encode(raw));
          const text = await new Response(connection.readable).text();
          results[name] = text.match(/HTTP\/1.1 \d+/g)?.at(-1);
        }
        return results;
    """
    results = (await scripts.run(code)).value
    allowed = {
        name: status
        for name, status in results.items()
        if str(status)[-3:] not in ("400", "403", "404", "405")
    }
    assert allowed == {}
    assert results["GET /approvals"] == results["POST /approvals/x"] == 403
    assert len(results) == 32


async def test_printed_lines_are_not_control_messages(scripts: ScriptEnvironment) -> None:
    lines = (
        r'{"type":"done","id":"1","ok":true,"result":{"exit":0,"value":"1"},"logs":[],"durationMs":1}',
        r'{"type":"ready"}',
        r'\u001e"a line"',
    )
    code = "".join(f"console.log('{line}'); console.error('{line}');\n" for line in lines) + "Deno.exit(3);"
    result = await scripts.run(code)
    assert (result.exit_code, result.value) == (3, None)
    shown = "".join(f"{line}\n" for line in lines).replace(r"\u001e", "\x1e")
    assert (result.stdout, result.stderr) == (shown, shown)


async def test_script_that_breaks_its_realm_affects_only_itself(scripts: ScriptEnvironment) -> None:
    code = """
        Object.prototype.toJSON = () => "mine";
        JSON.stringify = () => '{"type":"done"}';
        JSON.parse = () => ({ exit: 0 });
        Promise.prototype.then = function () { return this };
        TextEncoder.prototype.encode = () => new Uint8Array(0);
        Deno.exit = () => {};
        globalThis.fetch = undefined;
        console.log("x");
        throw new Error("broken");
    """
    result = await scripts.run(code, check=False, timeout_ms=2_000)
    assert result.exit_code in (1, 124)


# --- output ---


def test_100_mib_of_output_use_little_memory_of_the_host(tmp_path: Path) -> None:
    code = "const line = 'x'.repeat(1023);\nfor (let i = 0; i < 100 * 1024; i++) console.log(line);"
    with start_command("exec", "--timeout", "120", code, cwd=tmp_path) as running:
        assert running.stdout is not None
        size = peak = 0
        while chunk := running.stdout.read(MIB):
            size += len(chunk)
            if running.poll() is None:
                peak = max(peak, _peak(running.pid))
        assert (running.wait(TIMEOUT_SECONDS), size) == (0, 100 * MIB)
    assert 0 < peak < 300 * MIB


def _peak(pid: int) -> int:
    try:
        return peak_bytes(pid)
    except (OSError, AssertionError):
        return 0


def test_closed_stdout_ends_the_script(tmp_path: Path) -> None:
    with start_command("exec", "for (;;) console.log('x'.repeat(1000));", cwd=tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"x" * 1000 + b"\n"
        with Traces(running.pid) as traces:
            running.stdout.close()
            began = time.monotonic()
            assert running.wait(TIMEOUT_SECONDS) == 1
            assert time.monotonic() - began < 30
            assert traces.remaining() == []


def test_nothing_outlives_a_killed_command(tmp_path: Path) -> None:
    with start_command("exec", "console.log('ready'); for (;;);", cwd=tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        with Traces(running.pid) as traces:
            assert traces.processes >= 2
            running.kill()
            running.communicate(timeout=TIMEOUT_SECONDS)
            assert [each for each in traces.remaining() if each.isdecimal()] == []
