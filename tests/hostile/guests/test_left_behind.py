"""State that a guest leaves in storage, files, channels or threads is not visible to the next guest."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from tests.conftest import Run
from tests.hostile.guests.attempts import program
from tests.hostile.processes import runners, wait_for_exit
from tests.support.processes import TIMEOUT_SECONDS

import hutch

LEAVE_STATE = {
    "localStorage": "localStorage.setItem('left', 'secret'); return localStorage.getItem('left')",
    "sessionStorage": "sessionStorage.setItem('left', 'secret'); return sessionStorage.getItem('left')",
    "caches": (
        "const c = await caches.open('left'); await c.put('http://left/', new Response('secret'));"
        " return (await c.match('http://left/')).status"
    ),
    "a key-value store": "const kv = await Deno.openKv(); await kv.set(['left'], 'secret'); return 'set'",
    "a temporary file": "const f = Deno.makeTempFileSync(); Deno.writeTextFileSync(f, 'secret'); return f",
    "a file": "Deno.writeTextFileSync('/tmp/left', 'secret'); return 'written'",
    "a file beside the bundle": "Deno.writeTextFileSync('/hutch/left', 'secret'); return 'written'",
    "a variable": "Deno.env.set('LEFT', 'secret'); return 'set'",
    "a working directory": "Deno.chdir('/tmp'); return 'moved'",
    "a global": "globalThis.left = 'secret'; return 'set'",
    "a symbol": "globalThis[Symbol.for('left')] = Symbol.for('left').description; return 'set'",
    "a module": (
        "(await import('data:text/javascript,export const box = {}')).box.left = 'secret'; return 'set'"
    ),
    "a blob": "globalThis.URL.createObjectURL(new Blob(['secret'])); return 'made'",
    "a template": "const t = (s) => s; globalThis.t1 = t`left`; return 'made'",
    "a title": "(await import('node:process')).title = 'secret'; return 'set'",
    "a worker": (
        "new Worker('data:text/javascript,setInterval(() => {}, 1)', { type: 'module' }); return 'started'"
    ),
    "a broadcast": "new BroadcastChannel('left').postMessage('secret'); return 'sent'",
    "a lock": "await navigator.locks?.request?.('left', () => new Promise(() => {})); return 'locked'",
}

FIND = {
    "localStorage": "localStorage.getItem('left')",
    "sessionStorage": "sessionStorage.getItem('left')",
    "caches": "(await (await caches.open('left')).match('http://left/'))?.status",
    "a key-value store": "(await (await Deno.openKv()).get(['left'])).value",
    "a file": "Deno.readTextFileSync('/tmp/left')",
    "files": "[...Deno.readDirSync('/tmp')].map((e) => e.name)",
    "a file beside the bundle": "Deno.readTextFileSync('/hutch/left')",
    "a variable": "Deno.env.get('LEFT')",
    "a working directory": "typeof Deno !== 'undefined' && Deno.cwd() !== '/' ? Deno.cwd() : null",
    "a global": "globalThis.left",
    "a symbol": "globalThis[Symbol.for('left')]",
    "a module": "(await import('data:text/javascript,export const box = {}')).box.left",
    "a template": "globalThis.t1",
    "a title": "(await import('node:process')).title === 'secret' ? 'secret' : null",
}


async def test_no_state_of_one_execution_is_visible_to_the_next(run: Run) -> None:
    # Some of the attempts to leave state may fail.
    left = await run(program(LEAVE_STATE), timeout_ms=30_000)
    assert left.error is None
    for _ in range(3):
        result = await run(program(FIND), timeout_ms=30_000)
        assert result.error is None
        assert {name: what for name, what in result.result.items() if what.startswith("got")} == {}


@pytest.mark.parametrize("owners", [("a", "a"), ("a", "b")], ids=["of one owner", "of two"])
async def test_concurrent_executions_cannot_communicate(
    sandbox: hutch.Hutch, owners: tuple[str, str]
) -> None:
    listening = anyio.Event()
    sent = anyio.Event()

    async def ready() -> None:
        listening.set()
        await sent.wait()

    listener = """
        const received = [];
        const receive = (e) => received.push(e.data);
        for (const name of ['left', 'hutch']) new BroadcastChannel(name).onmessage = receive;
        addEventListener('storage', (e) => received.push(e.key));
        await tools.ready();
        await new Promise((resolve) => setTimeout(resolve, 50));
        return received;
    """
    sender = """
        for (const name of ['left', 'hutch']) new BroadcastChannel(name).postMessage('secret');
        await new Promise((resolve) => setTimeout(resolve, 50));
        return 'sent';
    """
    task = asyncio.create_task(sandbox.run(listener, engine="deno", tools=[ready], owner=owners[0]))
    with anyio.fail_after(TIMEOUT_SECONDS):
        await listening.wait()
    assert (await sandbox.run(sender, engine="deno", owner=owners[1])).result == "sent"
    sent.set()
    assert (await task).result == []


async def test_threads_of_a_guest_end_with_it(sandbox: hutch.Hutch) -> None:
    before, started = runners(sandbox), set()

    async def find_runner() -> None:
        started.update(runners(sandbox) - before)

    code = """
        for (let i = 0; i < 4; i++) new Worker('data:text/javascript,for (;;);', { type: 'module' });
        await tools.find_runner();
        return 'left';
    """
    assert (await sandbox.run(code, engine="deno", tools=[find_runner])).result == "left"
    [pid] = started
    await wait_for_exit(pid)


async def test_thread_bomb_is_limited(sandbox: hutch.Hutch) -> None:
    code = """
        const workers = [];
        for (let i = 0; i < 2000; i++) {
          workers.push(new Worker('data:text/javascript,setInterval(() => {}, 1000)', { type: 'module' }));
          await new Promise((resolve) => setTimeout(resolve, 0));
        }
        return 'all of them';
    """
    result = await sandbox.run(code, engine="deno", timeout_ms=10_000, memory_limit_bytes=512 * 1024 * 1024)
    assert result.error is not None
    assert result.error.code in ("memory_limit", "internal_error", "runtime_error", "timeout")
    assert (await sandbox.run("1", engine="deno")).result == 1
