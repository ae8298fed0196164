"""Endless guests time out: the engine interrupts the guest, or the host kills the guest's process. Other
guests survive.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import anyio
import pytest
from tests.conftest import Run
from tests.hostile.processes import exists, runners, wait_for_exit
from tests.support.processes import TIMEOUT_SECONDS

import hutch

LOOPS = {
    "while": "while (true) {}",
    "for await": "for (;;) await 0",
    "await in parallel": "const f = async () => { for (;;) await 0 }; await Promise.all([f(), f(), f()])",
    "microtasks": "const f = () => queueMicrotask(f); f(); await new Promise(() => {})",
    "promises": "const f = () => Promise.resolve().then(f); await f()",
    "a thenable": "await { then(r) { for (;;); } }",
    "timers": (
        "const f = () => { setTimeout(f, 0); for (let i = 0; i < 1e5; i++); }; f(); await new"
        " Promise(() => {})"
    ),
    "a finalization registry": (
        "const r = new FinalizationRegistry(() => { for (;;); });"
        " for (;;) { for (let i = 0; i < 1000; i++) r.register({}, i); await new Promise((s) =>"
        " setTimeout(s)) }"
    ),
    "try and catch": "for (;;) { try { for (;;) { throw 1 } } catch { continue } finally { continue } }",
    "recursion": "const f = () => { try { f() } finally { f() } }; f()",
    "a generator": "function* g() { for (;;) yield 1 } for (const _ of g());",
    "an async generator": "async function* g() { for (;;) yield 1 } for await (const _ of g());",
    "a getter": "const o = { get a() { for (;;); } }; o.a",
    "a getter in the result": "return { get a() { for (;;); } }",
    "a proxy": "const p = new Proxy({}, { get() { for (;;); }, has() { for (;;); } }); p.a",
    "a proxy as the result": "return new Proxy({}, { ownKeys() { for (;;); } })",
    "toJSON": "return Object.defineProperty({}, 'toJSON', { value() { for (;;); } })",
    "a log": "console.log({ toJSON() { for (;;); } })",
    "an error's message": "throw Object.defineProperty(new Error(), 'message', { get() { for (;;); } })",
    "a thrown object": "throw { toString() { for (;;); }, toJSON() { for (;;); } }",
    "sort": "[3, 1, 2].sort(() => { for (;;); })",
    "inconsistent sort comparator": (
        "const a = Array.from({ length: 1e6 }, Math.random); for (;;) a.sort(() => Math.random() - 0.5)"
    ),
    "a regular expression": "/^(a+)+$/.test('a'.repeat(40) + 'b')",
    "another": "/(x+x+)+y/.exec('x'.repeat(50))",
    "replace": "'a'.repeat(1e6).replace(/a/g, () => { for (;;); })",
    "JSON.parse with a reviver": "JSON.parse('[1]', () => { for (;;); })",
    "Array.from": "Array.from({ get length() { for (;;); } })",
    "an iterator that is closed": "const i = { [Symbol.iterator]: () => ({ next: () => ({}), return() {"
    " for (;;); } }) };"
    " for (const _ of i) break",
    "a class's static block": "class A { static { for (;;); } }",
    "a default parameter": "((a = (() => { for (;;); })()) => a)()",
    "eval": "eval('for (;;);')",
    "a long eval": "for (;;) eval('1'.repeat(1000))",
    "Function": "new Function('for (;;);')()",
    "Atomics.wait": "Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
}

# Calls that run for long without checking the clock. Neither QuickJS nor Deno's own timers can interrupt such
# calls.
NATIVE = {
    "join": "const a = []; a.length = 4294967295; a.join()",
    "a big integer as text": "for (;;) (7n ** 200000n).toString()",
    "fill": "const u = new Uint8Array(30 * 1024 * 1024); for (;;) u.fill(1)",
    "indexOf": "const s = 'a'.repeat(20 * 1024 * 1024); for (;;) s.indexOf('b')",
    "includes": "const a = new Uint8Array(30 * 1024 * 1024); for (;;) a.includes(1)",
    "reverse": "const a = new Uint32Array(7 * 1024 * 1024); for (;;) a.reverse()",
    "lastIndexOf on a sparse array": "const a = []; a.length = 4294967295; for (;;) a.lastIndexOf(1)",
}


async def test_endless_guests_time_out(run: Run) -> None:
    began = time.monotonic()
    results = await asyncio.gather(*(run(code, timeout_ms=300) for code in LOOPS.values()))
    assert time.monotonic() - began < 20
    ends = {name: result.error and result.error.code for name, result in zip(LOOPS, results, strict=True)}
    # An engine may also refuse some of these loops with an error immediately.
    assert {name: end for name, end in ends.items() if end not in ("timeout", "runtime_error")} == {}
    refused = {name for name, end in ends.items() if end == "runtime_error"}
    assert refused <= {"Atomics.wait", "recursion", "a regular expression", "another"}
    assert (await run("1")).result == 1


@pytest.mark.parametrize("code", NATIVE.values(), ids=NATIVE.keys())
async def test_uninterruptible_native_call_times_out(run: Run, code: str) -> None:
    began = time.monotonic()
    result = await run(code, timeout_ms=250)
    assert result.error is not None
    assert result.error.code in ("timeout", "runtime_error")
    assert time.monotonic() - began < 15


@pytest.fixture
async def one_process() -> AsyncIterator[hutch.Hutch]:
    """A sandbox with one runner process."""
    async with hutch.Hutch(quickjs_processes=1, quickjs_warm=0, deno_warm=0) as sandbox:
        yield sandbox


async def test_process_of_an_uninterruptible_call_is_killed(one_process: hutch.Hutch) -> None:
    await one_process.run("1")
    [pid] = runners(one_process)
    result = await one_process.run(NATIVE["join"], timeout_ms=250)
    assert result.error is not None
    assert result.error.code == "timeout"
    await wait_for_exit(pid)
    assert (await one_process.run("1 + 1")).result == 2


async def test_interruptible_loop_costs_no_process(one_process: hutch.Hutch) -> None:
    await one_process.run("1")
    pid = runners(one_process)
    for _ in range(3):
        assert not (await one_process.run("for (;;);", timeout_ms=100)).ok
    assert (await one_process.run("1")).ok
    assert runners(one_process) == pid


async def test_neighbours_of_a_killed_process_are_retried_or_get_an_error(one_process: hutch.Hutch) -> None:
    called = anyio.Event()
    calls = 0

    async def wait() -> None:
        nonlocal calls
        calls += 1
        called.set()
        await anyio.sleep_forever()

    await one_process.run("1")
    [shared] = runners(one_process)
    slow = "await new Promise((resolve) => setTimeout(resolve, 600)); return 'fine'"
    neighbours = [asyncio.create_task(one_process.run(slow, timeout_ms=10_000)) for _ in range(3)]
    with_tool = asyncio.create_task(one_process.run("await tools.wait()", tools=[wait], timeout_ms=10_000))
    with anyio.fail_after(TIMEOUT_SECONDS):
        await called.wait()
    uninterruptible = await one_process.run(NATIVE["join"], timeout_ms=200)
    assert uninterruptible.error is not None
    assert uninterruptible.error.code == "timeout"
    assert [each.result for each in await asyncio.gather(*neighbours)] == ["fine"] * 3
    victim = await with_tool
    assert victim.error is not None
    assert victim.error.code == "internal_error"
    assert victim.error.message == "The runner was lost: another execution in the same process blocked it"
    assert calls == 1
    assert not exists(shared)


async def test_worst_case_of_the_parser_times_out(run: Run) -> None:
    began = time.monotonic()
    result = await run("const a: x = " + "f<" * 5_000 + "1", timeout_ms=300)
    assert result.error is not None
    assert result.error.code in ("timeout", "runtime_error")
    assert time.monotonic() - began < 15
    assert (await run("1")).result == 1


async def test_guests_that_ignore_signals_are_killed(sandbox: hutch.Hutch) -> None:
    code = """
        for (const s of ['SIGTERM', 'SIGINT', 'SIGHUP', 'SIGUSR1', 'SIGALRM']) {
          try { Deno.addSignalListener(s, () => { for (;;); }) } catch {}
        }
        addEventListener('unload', () => { for (;;); });
        addEventListener('beforeunload', (e) => e.preventDefault());
        await tools.ready();
        for (;;);
    """
    started = anyio.Event()
    before, alive = runners(sandbox), set()

    async def ready() -> None:
        alive.update(runners(sandbox) - before)
        started.set()

    task = asyncio.create_task(sandbox.run(code, engine="deno", tools=[ready], timeout_ms=1_000))
    with anyio.fail_after(TIMEOUT_SECONDS):
        await started.wait()
    result = await task
    assert result.error is not None
    assert result.error.code == "timeout"
    assert (await sandbox.run("1", engine="deno")).result == 1
    assert alive
    for pid in alive:
        await wait_for_exit(pid)


TRAPS = {
    "loop": "const trap = () => { for (;;); };",
    "throw": "const trap = () => { throw new Error('trap') };",
    "throw a Proxy": "const trap = () => { throw thrown };",
    "recursion": "const trap = () => trap() + 1;",
}
PROXY = (
    "const names = ['get', 'has', 'getPrototypeOf', 'ownKeys', 'getOwnPropertyDescriptor', 'apply'];"
    " const handler = Object.fromEntries(names.map((name) => [name, trap]));"
    " const thrown = new Proxy({target}, handler);"
)
PROXY_TARGETS = ("{}", "new Error('inner')", "() => 1")


@pytest.mark.parametrize("throw", ["throw thrown", "await Promise.reject(thrown)"])
@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
async def test_thrown_proxy_ends_the_execution_immediately(run: Run, trap: str, throw: str) -> None:
    for target in PROXY_TARGETS:
        result = await run(f"{trap} {PROXY.replace('{target}', target)} {throw}", timeout_ms=20_000)
        assert result.error is not None
        assert (result.error.code, result.error.message) == ("runtime_error", "The guest threw a Proxy")


async def test_proxy_thrown_in_a_timer_ends_the_execution_immediately(sandbox: hutch.Hutch) -> None:
    """When a timer throws an error, Deno reads the error, so on deno the Proxy's traps could run. The test
    runs on QuickJS only.
    """
    throw = "setTimeout(() => { throw thrown }); await new Promise(() => {})"
    for trap in TRAPS.values():
        code = f"{trap} {PROXY.replace('{target}', '{}')} {throw}"
        result = await sandbox.run(code, timeout_ms=20_000)
        assert result.error is not None
        assert result.error.message == "The guest threw a Proxy"


UNREADABLE = {
    "getters that throw": (
        "class E extends Error { get message() { throw 1 } get stack() { throw 2 } } throw new E()"
    ),
    "a symbol as the message": "throw Object.assign(new Error(), { message: Symbol('x') })",
    "a prototype that throws": (
        "throw Object.create(new Proxy({}, { get() { throw 1 }, getPrototypeOf() { throw 2 } }))"
    ),
    "an object that cannot be converted": "throw { toJSON() { throw 1 }, toString() { throw 2 } }",
    "an object without conversions": "const o = Object.create(null); o.o = o; throw o",
}


@pytest.mark.parametrize("code", UNREADABLE.values(), ids=UNREADABLE)
async def test_thrown_value_that_cannot_be_read_ends_the_execution_immediately(run: Run, code: str) -> None:
    result = await run(code, timeout_ms=20_000)
    assert result.error is not None
    assert (result.error.code, result.error.message) == (
        "runtime_error",
        "The guest threw a value that cannot be read",
    )
