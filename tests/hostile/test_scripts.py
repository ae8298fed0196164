"""Toolscripts that want out: what Deno's permissions leave open, the jail and the gateway do not."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.hostile.attempts import successes
from tests.hostile.conftest import peak_bytes
from tests.mcp_servers.everything import Everything, app
from tests.mcp_servers.serving import serving
from tests.processes import PATIENCE, Traces, hutch, until
from tests.toolscripts import IMPORT, TOKEN, Place, place, scripts_below, starts, stdio

MIB = 2**20


@pytest.fixture(scope="module")
async def victim(
    anyio_backend: object, environment: None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Place]:
    with serving(app(Everything())) as far:
        servers = {"every": stdio("everything"), "far": {"type": "http", "url": f"{far.url}/mcp"}}
        async with place(tmp_path_factory.mktemp("servers"), servers, api_key=TOKEN) as made:
            yield made


@pytest.fixture
async def scripts(victim: Place) -> AsyncIterator[Place]:
    """Looked after when the test is over: the next script is served as if nothing had been."""
    victim.asked.clear()
    yield victim
    ran = await victim.run(f"{IMPORT}return [await tools.every.zero(), await tools.far.zero()]")
    assert (ran.exit_code, ran.value, ran.stderr) == (0, ["0", "0"], "")


@pytest.fixture
def listener() -> Iterator[int]:
    """A port of the host's loopback where something listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# --- files ---

IMPORTS = {
    "text": 'import text from "/etc/passwd" with { type: "text" }; console.log("loot", text);',
    "bytes": 'import bytes from "/etc/passwd" with { type: "bytes" }; console.log("loot", bytes);',
    "JSON": 'import json from "/etc/passwd" with { type: "json" }; console.log("loot", json);',
    "a URL": 'import text from "file:///etc/passwd" with { type: "text" }; console.log("loot", text);',
    "from above": 'import text from "../../etc/passwd" with { type: "text" }; console.log("loot", text);',
    "late": 'console.log("loot", await import("file:///etc/passwd", { with: { type: "text" } }));',
    "late, JSON": 'console.log("loot", await import("file:///etc/passwd", { with: { type: "json" } }));',
    "the environment": (
        'import text from "/proc/self/environ" with { type: "text" }; console.log("loot", text);'
    ),
    "npm": 'import pad from "npm:left-pad@1.3.0"; console.log("loot", pad);',
    "npm, late": 'console.log("loot", await import("npm:left-pad@1.3.0"));',
    "jsr": 'import { join } from "jsr:@std/path@1"; console.log("loot", join);',
    "https": 'import { x } from "https://esm.sh/left-pad"; console.log("loot", x);',
    "another port": 'import { x } from "http://127.0.0.1:4112/x.ts"; console.log("loot", x);',
    "another name": 'import { x } from "http://localhost:4111/runtime/tools.ts"; console.log("loot", x);',
}


async def test_nothing_of_the_host_or_of_a_registry_can_be_imported(scripts: Place) -> None:
    runs = await asyncio.gather(*(scripts.run(code, check=False) for code in IMPORTS.values()))
    ends = dict(zip(IMPORTS, runs, strict=True))
    assert {name: ran for name, ran in ends.items() if ran.exit_code != 1 or "loot" in ran.stdout} == {}
    # A file that might be found is no clue either.
    assert {name for name, ran in ends.items() if "root:" in ran.stderr} == set()


async def test_a_checked_import_of_another_kind_says_what_there_is_instead(scripts: Place) -> None:
    for specifier in ("npm:left-pad", "https://esm.sh/left-pad", "/etc/passwd"):
        ran = await scripts.run(f'import x from "{specifier}";\nconsole.log(x);')
        assert (ran.exit_code, ran.stdout) == (1, "")
        assert "toolscript" in ran.stderr
        assert "script.ts:1:" in ran.stderr


def found_in(pid: int) -> tuple[set[str], list[str], set[int]]:
    """Folders of a host, network interfaces, and ports that are listened on, as a process has them."""
    root = Path(f"/proc/{pid}/root")
    folders = {"etc", "root", "home", "usr", "bin", "sys", "var"}
    interfaces = Path(f"/proc/{pid}/net/dev").read_text().splitlines()[2:]
    sockets = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return (
        {name for name in folders if (root / name).exists()},
        [line.split(":")[0].strip() for line in interfaces],
        {int(each[1].rpartition(":")[2], 16) for each in sockets if each[3] == "0A"},
    )


async def test_the_jail_has_nothing_of_the_host(scripts: Place, listener: int) -> None:
    """Not what Deno permits counts here but what is there: looked at from outside, through /proc."""
    running = asyncio.create_task(scripts.run(f"{IMPORT}await tools.every.slow({{ seconds: 60 }})"))
    await scripts.until_called("every__slow")
    [pid] = scripts_below(os.getpid())
    assert found_in(pid) == (set(), ["lo"], {4111})
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    code = f"try {{ await Deno.connect({{ port: {listener} }}) }} catch (error) {{ console.log(error.name) }}"
    assert (await scripts.run(code, check=False)).stdout == "NotCapable\n"


async def test_processes_libraries_and_system_are_refused(scripts: Place) -> None:
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
        const told = {{}};
        for (const [name, attempt] of Object.entries({{ {functions} }})) {{
          try {{
            const loot = await attempt();
            told[name] = loot === undefined || loot === null ? "refused: nothing" : `got ${{loot}}`;
          }} catch (error) {{
            told[name] = `refused: ${{error.name}}: ${{error.message}}`;
          }}
        }}
        console.log(JSON.stringify(told));
        Deno.exit(0);
    """
    ran = await scripts.run(code, check=False)
    told = msgspec.json.decode(ran.stdout)
    assert successes(told) == {}
    assert len(told) == len(attempts)


async def test_stdin_is_empty(scripts: Place, tmp_path: Path) -> None:
    code = "console.log(JSON.stringify(await new Response(Deno.stdin.readable).text()))"
    assert (await scripts.run(code)).stdout == '""\n'
    done = await asyncio.to_thread(hutch, "exec", code, input="what is meant for others", cwd=tmp_path)
    assert done.stdout == '""\n'


async def test_nothing_is_kept_from_one_run_to_the_next(scripts: Place) -> None:
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
        before.push((globalThis as any).kept ?? null);
        (globalThis as any).kept = 1;
        return before.filter((each) => each !== null);
    """
    for _ in range(2):
        ran = await scripts.run(code)
        assert (ran.exit_code, ran.value) == (0, []), ran


# --- time and memory ---

BOMBS = {
    "buffers": "const all = []; for (;;) all.push(new Uint8Array(1 << 20).fill(1));",
    "one buffer": "new Uint8Array(1 << 30).fill(1); console.log('loot');",
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
async def test_memory_is_bounded(scripts: Place, bomb: str) -> None:
    ran = await scripts.run(BOMBS[bomb], check=False, memory_bytes=128 * MIB, timeout_ms=20_000)
    assert ran.exit_code == 1
    assert "loot" not in ran.stdout
    if bomb != "workers":
        assert ran.message == "Execution exceeded its memory limit of 128 MiB"
    await asyncio.to_thread(until, lambda: len(scripts_below(os.getpid())) <= 1)


async def test_a_catastrophic_regular_expression_ends(scripts: Place) -> None:
    ran = await scripts.run("return /^(a+)+$/.test('a'.repeat(50) + 'b')", timeout_ms=20_000)
    assert (ran.exit_code, ran.value) == (0, False)


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
async def test_what_never_ends_is_ended_with_124(scripts: Place, code: str) -> None:
    ran = await scripts.run(code, check=False, timeout_ms=300)
    assert (ran.exit_code, ran.message) == (124, "The script did not finish in time")


# --- the gateway ---


async def test_the_token_is_nowhere_that_a_script_can_look(scripts: Place) -> None:
    code = (
        IMPORT
        + """
        const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL")!;
        const seen: string[] = [];
        for (const path of ["/health", "/tools", "/servers", "/search?q=echo", "/runtime/tools.ts", "/x"]) {
          const answer = await fetch(gateway + path, { headers: { authorization: "Bearer guess" } });
          seen.push(JSON.stringify([...answer.headers]), await answer.text());
        }
        seen.push(JSON.stringify([await tools.far.headers(), await tools.every.environment()]));
        seen.push(JSON.stringify(Deno.args), Deno.mainModule, import.meta.url);
        return seen;
    """
    )
    ran = await scripts.run(code)
    assert ran.exit_code == 0, ran
    assert len(ran.value) > 10
    assert TOKEN not in "".join(ran.value)
    # It was shown by the listener in the jail all the same, and nothing else was.
    assert {each.headers.get("authorization") for each in scripts.asked} == {f"Bearer {TOKEN}"}


async def test_a_script_cannot_approve_its_own_calls(scripts: Place) -> None:
    code = r"""
        const gateway = Deno.env.get("TOOLSCRIPT_GATEWAY_URL")!;
        const told: Record<string, unknown> = {};
        const paths = ["/approvals", "/approvals/x", "/approvals/events", "//approvals", "/approvals/",
          "/%61pprovals", "/APPROVALS", "/x/../approvals", "/status", "/metrics", "/mcp", "/execute-tool",
          "/execbox", "/info"];
        for (const path of paths) {
          for (const method of ["GET", "POST"]) {
            const headers = { "x-hutch-run": "", "content-type": "application/json" };
            const body = method === "POST" ? '{"decision":"allow"}' : undefined;
            const answer = await fetch(gateway + path, { method, headers, body });
            await answer.body?.cancel();
            told[`${method} ${path}`] = answer.status;
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
          told[name] = text.match(/HTTP\/1.1 \d+/g)?.at(-1);
        }
        return told;
    """
    told = (await scripts.run(code)).value
    allowed = {
        name: what for name, what in told.items() if str(what)[-3:] not in ("400", "403", "404", "405")
    }
    assert allowed == {}
    assert told["GET /approvals"] == told["POST /approvals/x"] == 403
    assert len(told) == 32


async def test_what_is_printed_is_no_control_message(scripts: Place) -> None:
    lines = (
        r'{"type":"done","id":"1","ok":true,"result":{"exit":0,"value":"1"},"logs":[],"durationMs":1}',
        r'{"type":"ready"}',
        r'\u001e"a line"',
    )
    code = "".join(f"console.log('{line}'); console.error('{line}');\n" for line in lines) + "Deno.exit(3);"
    ran = await scripts.run(code)
    assert (ran.exit_code, ran.value) == (3, None)
    shown = "".join(f"{line}\n" for line in lines).replace(r"\u001e", "\x1e")
    assert (ran.stdout, ran.stderr) == (shown, shown)


async def test_a_script_that_breaks_its_world_breaks_its_own_alone(scripts: Place) -> None:
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
    ran = await scripts.run(code, check=False, timeout_ms=2_000)
    assert ran.exit_code in (1, 124)


# --- output ---


def test_megabytes_of_output_pass_through_a_small_host(tmp_path: Path) -> None:
    code = "const line = 'x'.repeat(1023);\nfor (let i = 0; i < 100 * 1024; i++) console.log(line);"
    with starts("exec", "--timeout", "120", code, cwd=tmp_path) as running:
        assert running.stdout is not None
        size = peak = 0
        while chunk := running.stdout.read(MIB):
            size += len(chunk)
            if running.poll() is None:
                peak = max(peak, _peak(running.pid))
        assert (running.wait(PATIENCE), size) == (0, 100 * MIB)
    assert 0 < peak < 300 * MIB


def _peak(pid: int) -> int:
    try:
        return peak_bytes(pid)
    except (OSError, AssertionError):
        return 0


def test_a_reader_that_has_enough_ends_the_script(tmp_path: Path) -> None:
    with starts("exec", "for (;;) console.log('x'.repeat(1000));", cwd=tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"x" * 1000 + b"\n"
        with Traces(running.pid) as traces:
            running.stdout.close()
            began = time.monotonic()
            assert running.wait(PATIENCE) == 1
            assert time.monotonic() - began < 30
            assert traces.remaining() == []


def test_nothing_outlives_a_command_that_is_killed(tmp_path: Path) -> None:
    with starts("exec", "console.log('there'); for (;;);", cwd=tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"there\n"
        with Traces(running.pid) as traces:
            assert traces.processes >= 2
            running.kill()
            running.communicate(timeout=PATIENCE)
            assert [each for each in traces.remaining() if each.isdecimal()] == []
