"""Attempts to reach the host's objects, files, environment, processes and network."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.conftest import Run
from tests.hostile.guests.attempts import program, successes

import hutch

# An attempt succeeds if its value is neither null, undefined nor an error.
CONSTRUCTORS = {
    "the environment through Function": "([]).constructor.constructor('return process')().env.PATH",
    "all variables": "Object.keys(([]).constructor.constructor('return process')().env).length || null",
    "through an async function": "(async () => {}).constructor('return process.env.HOME')()",
    "through a generator": "(function* () {}).constructor('yield process.env.HOME')().next().value",
    "through a tool": "tools.echo.constructor('return process.env.HOME')()",
    "through a tool's promise": "tools.echo(1).constructor.constructor('return process.env.HOME')()",
    "through an error of the host": (
        "try { await tools.fail() } catch (e) { return e.constructor.constructor('return"
        " process.env.HOME')() }"
    ),
    "through a tool's result": (
        "(await tools.echo({ a: 1 })).constructor.constructor('return process.env.HOME')()"
    ),
    "through the caller": "(function f() { return f.caller && f.caller.caller && 'caller' })()",
    "the runner's entry": "globalThis.__hutch_entry ?? globalThis.__hutch_c",
    "require": "typeof require === 'function' ? require('fs').readFileSync('/etc/passwd', 'utf8') : null",
    "std and os of QuickJS": "typeof std !== 'undefined' ? 'std' : typeof os !== 'undefined' ? 'os' : null",
}

IMPORTS = {
    "a text module": "(await import('/etc/passwd', { with: { type: 'text' } })).default",
    "a text module by URL": "(await import('file:///etc/hostname', { with: { type: 'text' } })).default",
    "a text module by path": "(await import('../../../etc/passwd', { with: { type: 'text' } })).default",
    "bytes": "(await import('file:///etc/hostname', { with: { type: 'bytes' } })).default",
    "json": "(await import('file:///hutch/image.json', { with: { type: 'json' } })).default",
    "a module of WebAssembly": "Object.keys(await import('file:///hutch/quickjs.wasm'))",
    "the runner itself": "Object.keys(await import('file:///hutch/deno.js'))",
    "the memory image": "(await import('file:///hutch/image.bin', { with: { type: 'bytes' } })).default",
    "from a module of data": (
        '(await import(\'data:text/javascript,export default (await import("file:///etc/passwd",'
        ' {with:{type:"text"}})).default\')).default'
    ),
    "statically from a module of data": (
        '(await import(\'data:text/javascript,import t from "file:///etc/passwd" with {type:"text"};'
        "export default t')).default"
    ),
    "from a module of a blob": (
        '(await import(URL.createObjectURL(new Blob([\'import t from "file:///etc/passwd" with {type:"text"};'
        "export default t'], { type: 'text/javascript' })))).default"
    ),
    "through procfs": "(await import('file:///proc/self/environ', { with: { type: 'text' } })).default",
    "npm": "await import('npm:left-pad@1.3.0')",
    "npm through a module of data": "await import('data:text/javascript,import \"npm:left-pad@1.3.0\"')",
    "jsr": "await import('jsr:@std/path')",
    "https": "await import('https://deno.land/std/version.ts')",
    "http on the loopback": "await import('http://127.0.0.1:8080/x.js')",
    "a bare specifier": "await import('left-pad')",
    "node's loader": (
        "const { createRequire } = await import('node:module');"
        " return createRequire('file:///')('/etc/passwd')"
    ),
    "a source map's file": (
        "(await import('data:application/json,{}', { with: { type: 'text' } })).constructor.x"
    ),
}

FILES = {
    **{
        f"reading {path}": f"Deno.readTextFileSync('{path}')"
        for path in (
            "/etc/passwd",
            "/etc/shadow",
            "/etc/resolv.conf",
            "/proc/self/environ",
            "/proc/1/cmdline",
            "/proc/1/environ",
            "/proc/self/mem",
            "/proc/self/maps",
            "/proc/self/root/etc/passwd",
            "/proc/self/fd/0",
            "/proc/meminfo",
            "/sys/kernel/notes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/dev/mem",
            "/dev/kmsg",
            "/hutch/entry.js",
            "/../../etc/passwd",
            "/tmp/../etc/passwd",
        )
    },
    "listing the root": "[...Deno.readDirSync('/')].map((e) => e.name)",
    "listing /proc": "[...Deno.readDirSync('/proc')].map((e) => e.name)",
    "node's file system": "(await import('node:fs')).readFileSync('/etc/passwd', 'utf8')",
    "node's promises": "await (await import('node:fs/promises')).readdir('/')",
    "node's streams": (
        "const fs = await import('node:fs'); return await new Promise((r, j) =>"
        " fs.createReadStream('/etc/passwd').on('data', (d) => r(`${d}`)).on('error', j))"
    ),
    "writing": "Deno.writeTextFileSync('/tmp/left', 'x'); return 'written'",
    "a temporary file": "Deno.makeTempFileSync()",
    "a link to the host": "Deno.symlinkSync('/etc/shadow', '/tmp/link'); return 'linked'",
    "a hard link": "Deno.linkSync('/deno', '/tmp/deno'); return 'linked'",
    "a directory": "Deno.mkdirSync('/tmp/d'); return 'made'",
    "the control socket": (
        "await Deno.connect({ transport: 'unix', path: '/hutch.sock' }); return 'connected'"
    ),
    "stat": "Deno.statSync('/etc/passwd').size",
    "real path of a file": "Deno.realPathSync('/')",
    "a key-value store": "await Deno.openKv('/tmp/kv'); return 'opened'",
    "a database": "new (await import('node:sqlite')).DatabaseSync('/tmp/db'); return 'opened'",
    "watching": "Deno.watchFs('/'); return 'watching'",
    "opening": "Deno.openSync('/etc/passwd'); return 'opened'",
}

SYSTEM = {
    "the environment": "Deno.env.toObject()",
    "one variable": "Deno.env.get('PATH')",
    "node's environment": "(await import('node:process')).env.PATH",
    "setting a variable": "Deno.env.set('LD_PRELOAD', '/tmp/x'); return 'set'",
    "a command": "new Deno.Command('/deno', { args: ['--version'] }).outputSync().code",
    "spawning": "new Deno.Command('/bin/sh').spawn().pid",
    "node's exec": "(await import('node:child_process')).execSync('id').toString()",
    "node's spawn": (
        "const c = (await import('node:child_process')).spawn('/deno', ['--version']);"
        " return await new Promise((r, j) => c.on('error', j).on('exit', (n) => r(n)))"
    ),
    "node's fork": "(await import('node:child_process')).fork('data:,').pid",
    "node's cluster": "(await import('node:cluster')).default.fork().process.pid",
    "a foreign library": (
        "Deno.dlopen('/lib/x86_64-linux-gnu/libc.so.6', { getpid: { parameters: [], result: 'i32' } })"
    ),
    "a pointer": "Deno.UnsafePointer.create(4096n)",
    "a native add-on": (
        "const m = { exports: {} }; (await import('node:process')).dlopen(m, '/x.node'); return 'loaded'"
    ),
    "a signal": "Deno.kill(1, 'SIGKILL'); return 'sent'",
    "node's kill": "(await import('node:process')).kill(1, 'SIGKILL') && 'sent'",
    "the host's name": "Deno.hostname()",
    "the user": "Deno.uid()",
    "the release": "Deno.osRelease()",
    "interfaces": "Deno.networkInterfaces()",
    "load": "Deno.loadavg()",
    "memory of the machine": "Deno.systemMemoryInfo()",
    "asking for permission": (
        "(await Deno.permissions.request({ name: 'read' })).state === 'granted' ? 'granted' : null"
    ),
    "a worker with inherited permissions": (
        'const w = new Worker(\'data:text/javascript,try{postMessage(Deno.readTextFileSync("/etc/passwd"))}'
        "catch(e){postMessage(null)}', { type: 'module' });"
        " return await new Promise((r, j) => { w.onmessage = (e) => r(e.data);"
        " w.onerror = (e) => { e.preventDefault(); j(new Error(e.message)) } })"
    ),
    "the inspector": "(await import('node:inspector')).open(9229) ?? (await import('node:inspector')).url()",
    "a graphics card": "(await navigator.gpu.requestAdapter()).info",
}

NETWORK = {
    "fetch": "(await fetch('http://1.1.1.1/')).status",
    "fetch of metadata": "(await fetch('http://169.254.169.254/latest/meta-data/')).status",
    "fetch of the loopback": "(await fetch('http://127.0.0.1:PORT/')).status",
    "fetch of a file": "await (await fetch('file:///etc/passwd')).text()",
    "a DNS lookup": "await Deno.resolveDns('example.com', 'A')",
    "a lookup with a name server": (
        "await Deno.resolveDns('example.com', 'A', { nameServer: { ipAddr: '8.8.8.8', port: 53 } })"
    ),
    "node's DNS lookup": "await (await import('node:dns/promises')).lookup('example.com')",
    "a connection": "await Deno.connect({ hostname: '127.0.0.1', port: PORT }); return 'connected'",
    "a connection with TLS": "await Deno.connectTls({ hostname: '1.1.1.1', port: 443 }); return 'connected'",
    "listening": "Deno.listen({ port: 0 }).addr.port",
    "a datagram": "Deno.listenDatagram({ port: 0, transport: 'udp' }).addr.port",
    "serving": "Deno.serve({ port: 0 }, () => new Response()).addr.port",
    "a web socket": (
        "const w = new WebSocket('ws://127.0.0.1:PORT/');"
        " return await new Promise((r, j) => { w.onopen = () => r('open'); w.onerror = (e) => j(new"
        " Error(e.message)) })"
    ),
    "an event source": (
        "const s = new EventSource('http://127.0.0.1:PORT/');"
        " return await new Promise((r, j) => { s.onopen = () => r('open'); s.onerror = () => {"
        " s.close(); j(new Error('no')) } })"
    ),
    "node's sockets": (
        "const net = await import('node:net'); return await new Promise((r, j) =>"
        " net.connect(PORT, '127.0.0.1').on('connect', () => r('open')).on('error', j))"
    ),
    "node's http": (
        "const http = await import('node:http'); return await new Promise((r, j) =>"
        " http.get('http://127.0.0.1:PORT/', (x) => r(x.statusCode)).on('error', j))"
    ),
    "QUIC": (
        "await Deno.connectQuic({ hostname: '127.0.0.1', port: PORT, alpnProtocols: ['h3'] });"
        " return 'connected'"
    ),
    "a unix socket": (
        "await Deno.connect({ transport: 'unix', path: '/var/run/docker.sock' }); return 'connected'"
    ),
}

# Attempts for which Deno ends the execution or its process.
LETHAL = {
    "a worker with more permissions": (
        "const w = new Worker('data:text/javascript,postMessage(Deno.readTextFileSync(\"/etc/passwd\"))',"
        " { type: 'module', deno: { permissions: { read: true } } });"
        " return await new Promise((r, j) => { w.onmessage = (e) => r(e.data);"
        " w.onerror = (e) => { e.preventDefault(); j(new Error(e.message)) } })"
    ),
    "node's datagrams": (
        "const d = (await import('node:dgram')).createSocket('udp4'); return await new Promise((r, j) =>"
        " d.on('error', j).send('x', 53, '127.0.0.1', (e) => e ? j(e) : r('sent')))"
    ),
}

TOPICS = {"constructors": CONSTRUCTORS, "imports": IMPORTS, "files": FILES, "system": SYSTEM}


async def echo(value: Any, /) -> Any:
    return value


async def fail() -> None:
    raise hutch.ToolError("no")


@pytest.mark.parametrize("topic", TOPICS)
async def test_every_escape_is_refused(run: Run, topic: str) -> None:
    attempts = TOPICS[topic]
    result = await run(program(attempts), tools=[echo, fail], timeout_ms=60_000)
    assert result.error is None
    assert result.result.keys() == attempts.keys()
    assert successes(result.result) == {}


@pytest.mark.parametrize("code", LETHAL.values(), ids=LETHAL.keys())
async def test_lethal_attempt_ends_only_the_guest(sandbox: hutch.Hutch, code: str) -> None:
    result = await sandbox.run(code, engine="deno")
    assert result.error is not None
    assert result.error.code in ("runtime_error", "internal_error")
    assert (await sandbox.run("1", engine="deno")).result == 1


async def test_no_network_can_be_reached(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        attempts = {name: code.replace("PORT", str(port)) for name, code in NETWORK.items()}
        result = await run(program(attempts), timeout_ms=60_000)
        assert result.error is None
        assert successes(result.result) == {}
        # Nothing has connected to the server.
        with pytest.raises(BlockingIOError):
            server.accept()


async def test_environment_of_the_host_is_not_visible(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_TEST_SECRET", "very-secret-indeed")
    code = (
        "const p = globalThis.process; return JSON.stringify([globalThis.Deno?.args, p?.argv,"
        " p?.execArgv, p?.title])"
    )
    async with hutch.Hutch() as fresh:
        result = await fresh.run(code, engine="deno")
    assert result.ok
    assert "very-secret" not in result.result
    home = str(Path.home())
    assert home == "/" or home not in result.result


async def test_deno_imports_only_data_blobs_and_node_modules(
    sandbox: hutch.Hutch,
) -> None:
    code = """
        const data = await import('data:text/javascript,export default 1');
        const text = new Blob(['export default 2'], { type: 'text/javascript' });
        const blob = await import(URL.createObjectURL(text));
        const node = await import('node:path');
        return [data.default, blob.default, node.join('a', 'b')];
    """
    assert (await sandbox.run(code, engine="deno")).result == [1, 2, "a/b"]


async def test_quickjs_imports_nothing(sandbox: hutch.Hutch) -> None:
    attempts = {
        kind: f"Object.keys(await import('{kind}'))"
        for kind in (
            "data:text/javascript,export default 1",
            "node:path",
            "std",
            "os",
            "./guest.js",
            "file:///x",
        )
    }
    result = await sandbox.run(program(attempts))
    assert successes(result.result) == {}


async def test_event_loop_of_the_host_stays_responsive(run: Run) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.sleep(0.01)
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await run("for (;;);", timeout_ms=500)
        group.cancel_scope.cancel()
    assert ticks > 15
