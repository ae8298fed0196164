"""Memory bombs end with the error `memory_limit`, guests cannot fake this error, and no memory stays in
use.
"""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.conftest import Run
from tests.hostile.processes import resident_bytes, runners

import hutch

MIB = 1024 * 1024
LIMIT = 32 * MIB

BOMBS = {
    "arrays": "const a = []; for (;;) a.push(new Array(1000).fill(1.5))",
    "one array": "const a = []; for (;;) a.push(a.length)",
    "objects": "const a = []; for (let i = 0; ; i++) a.push({ i, s: 'x' + i })",
    "a map": "const m = new Map(); for (let i = 0; ; i++) m.set('key' + i, { i })",
    "strings": "const a = []; for (let i = 0; ; i++) a.push(('x' + i).repeat(1000) + i)",
    "buffers": "const a = []; for (;;) a.push(new Uint8Array(1024 * 1024).fill(1))",
    "one buffer": "const a = new Uint8Array(1024 * 1024 * 1024).fill(1); return a.length",
    "closures": "const a = []; for (;;) { const big = new Array(100).fill(a.length); a.push(() => big) }",
    "promises": "const a = []; for (;;) a.push(new Promise(() => {}), Promise.resolve(a.length))",
    "microtasks": "for (;;) queueMicrotask(() => {})",
    "big integers": "const a = []; let n = 1n << 100000n; for (;;) { n += 1n; a.push(n * 3n) }",
    "URLs": (
        "const a = []; for (let i = 0; ; i++) a.push(new URL('https://example.com/' + 'x'.repeat(1000) + i))"
    ),
    "text": "const a = []; const t = new TextEncoder(); for (;;) a.push(t.encode('x'.repeat(100000)))",
    "clones": "const a = []; const big = new Uint8Array(1e6); for (;;) a.push(structuredClone(big))",
    "JSON": (
        "const a = []; const s = JSON.stringify(new Array(10000).fill({ a: 1 })); for (;;)"
        " a.push(JSON.parse(s))"
    ),
    "errors": "const a = []; for (;;) a.push(new Error('x'.repeat(1000)))",
    "after an await": "await 0; const a = []; for (;;) a.push(new Array(1000).fill(1.5))",
    "in a timer": (
        "setTimeout(() => { const a = []; for (;;) a.push(new Array(1000).fill(1.5)) });"
        " await new Promise(() => {})"
    ),
    "source": (
        "const a = []; for (let i = 0; ; i++) a.push(new Function('return ' +"
        " JSON.stringify('x'.repeat(10000) + i)))"
    ),
}


async def test_every_bomb_exceeds_its_memory_limit(run: Run, engine: str) -> None:
    # QuickJS reaches a low limit sooner, so the test is faster. A Deno process needs a higher limit to start.
    limit = 8 if engine == "quickjs" else 32
    options = {"memory_limit_bytes": limit * MIB, "timeout_ms": 60_000}
    results = await asyncio.gather(*(run(code, **options) for code in BOMBS.values()))
    expected = ("memory_limit", f"Execution exceeded its memory limit of {limit} MiB")
    ends = {
        name: (result.error.code, result.error.message) if result.error else result.result
        for name, result in zip(BOMBS, results, strict=True)
    }
    assert {name: end for name, end in ends.items() if end != expected} == {}


async def test_guest_that_only_queues_jobs_exceeds_its_memory_at_every_limit(
    sandbox: hutch.Hutch,
) -> None:
    """If the memory suffices for a promise but not for its job, QuickJS drops the job and continues. This
    happens only at some limits, so the test tries many.
    """
    limits = range(4 * MIB, 5 * MIB, 64 * 1024)
    code = "for (;;) queueMicrotask(() => {})"
    results = await asyncio.gather(
        *(sandbox.run(code, memory_limit_bytes=limit, timeout_ms=30_000) for limit in limits)
    )
    assert {result.error and result.error.code for result in results} == {"memory_limit"}


async def test_doubling_string_exceeds_the_memory_of_quickjs(sandbox: hutch.Hutch) -> None:
    result = await sandbox.run("let s = 'x'; for (;;) s += s", memory_limit_bytes=LIMIT)
    assert result.error is not None
    assert result.error.code == "memory_limit"


async def test_memory_within_the_limit_may_be_used(run: Run) -> None:
    code = (
        "const a = []; for (let i = 0; i < 40; i++) a.push(new Uint8Array(1024 * 1024).fill(1));"
        " return a.length"
    )
    assert (await run(code, memory_limit_bytes=64 * MIB)).result == 40


async def test_freed_memory_may_be_reused(run: Run) -> None:
    code = "let a; for (let i = 0; i < 200; i++) a = new Uint8Array(1024 * 1024).fill(i); return a[0]"
    assert (await run(code, memory_limit_bytes=64 * MIB, timeout_ms=20_000)).result == 199


async def test_larger_limit_allows_more(run: Run) -> None:
    code = (
        "const a = []; for (let i = 0; i < 150; i++) a.push(new Uint8Array(1024 * 1024).fill(1));"
        " return a.length"
    )
    small = await run(code, memory_limit_bytes=64 * MIB)
    assert small.error is not None
    assert small.error.code == "memory_limit"
    assert (await run(code, memory_limit_bytes=256 * MIB)).result == 150


async def test_logs_before_a_bomb_are_kept(run: Run) -> None:
    result = await run(
        f"console.log('before'); {BOMBS['arrays']}", memory_limit_bytes=LIMIT, timeout_ms=20_000
    )
    assert result.error is not None
    assert (result.error.code, result.logs) == ("memory_limit", ["before"])


FAKES = {
    "an internal error": "throw new (globalThis.InternalError ?? Error)('out of memory')",
    "another": "throw new (globalThis.InternalError ?? Error)('string too long')",
    "an object": "throw { name: 'InternalError', message: 'out of memory' }",
    "null": "throw null",
    "text": "throw 'Execution exceeded its memory limit of 64 MiB'",
    "a range error": "throw new RangeError('Invalid array length')",
    "a real range error": "new Array(-1)",
    "an array that is too long": "new ArrayBuffer(2 ** 53)",
    "a code": "throw Object.assign(new Error('out of memory'), { code: 'memory_limit' })",
    "a string that is too long": "'x'.repeat(2 ** 30)",
    "too deep a recursion": "(function f() { f() })()",
    "too deep a recursion in a getter": "const o = { get a() { return o.a } }; o.a",
    "too deep JSON": "JSON.parse('['.repeat(1e5))",
}


@pytest.mark.parametrize("code", FAKES.values(), ids=FAKES.keys())
async def test_faked_memory_error_is_a_runtime_error(run: Run, code: str) -> None:
    result = await run(code)
    assert result.error is not None
    # The engine itself may report exhausted memory for a string beyond all limits.
    if code != FAKES["a string that is too long"]:
        assert result.error.code == "runtime_error"


async def test_caught_bomb_does_not_turn_later_errors_into_memory_limit(run: Run, engine: str) -> None:
    if engine == "deno":
        # On deno, the limit ends the whole process, so the guest has no error to catch.
        code, expected = BOMBS["arrays"], "memory_limit"
    else:
        code = (
            "try { const a = []; for (;;) a.push(new Array(1000).fill(1.5)) } catch {}\nthrow new"
            " Error('mine')"
        )
        expected = "runtime_error"
    result = await run(code, memory_limit_bytes=LIMIT, timeout_ms=20_000)
    assert result.error is not None
    assert result.error.code == expected


async def test_quickjs_guest_may_continue_after_catching_exhaustion(sandbox: hutch.Hutch) -> None:
    code = (
        "let n = 0; try { const a = []; for (;;) a.push(new Array(1000).fill(1.5)) } catch { n = 1"
        " }\nreturn n"
    )
    result = await sandbox.run(code, memory_limit_bytes=LIMIT, timeout_ms=20_000)
    assert result.result == 1


SELF_KILLS = {
    "exit 137": "Deno.exit(137)",
    "exit 133": "Deno.exit(133)",
    "exit 0": "Deno.exit(0)",
    "node's exit": "(await import('node:process')).exit(137)",
    "abort": "(await import('node:process')).abort()",
    "a signal to itself": (
        "(await import('node:process')).kill((await import('node:process')).pid, 'SIGKILL')"
    ),
    "reallyExit": "(await import('node:process')).reallyExit(137)",
}


@pytest.mark.parametrize("code", SELF_KILLS.values(), ids=SELF_KILLS.keys())
async def test_guest_that_ends_its_own_process_gets_no_memory_error(sandbox: hutch.Hutch, code: str) -> None:
    result = await sandbox.run(code, engine="deno")
    assert result.error is not None
    assert result.error.code in ("internal_error", "runtime_error")
    assert "memory" not in result.error.message
    assert (await sandbox.run("1", engine="deno")).result == 1


# --- memory is returned ---


async def test_runner_and_host_stay_small_after_many_bombs() -> None:
    async with hutch.Hutch(quickjs_processes=1, quickjs_warm=0) as sandbox:
        await sandbox.run("1")
        [runner] = runners(sandbox)
        sizes, hosts = [], []
        bombs = [BOMBS[name] for name in ("buffers", "strings")]
        for _ in range(6):
            for code in bombs:
                result = await sandbox.run(code, memory_limit_bytes=64 * MIB, timeout_ms=20_000)
                assert result.error is not None
                assert result.error.code == "memory_limit"
            sizes.append(resident_bytes(runner))
            hosts.append(resident_bytes(os.getpid()))
        assert runners(sandbox) == {runner}
    # The bombs used 768 MiB in total. Allow for garbage, which is freed by one of the next collections.
    assert max(sizes[3:]) < 400 * MIB
    assert max(sizes[3:]) < max(sizes[:3]) + 100 * MIB
    assert max(hosts[3:]) < max(hosts[:3]) + 16 * MIB


async def test_bomb_does_not_harm_its_neighbours(run: Run) -> None:
    async def echo(n: int) -> int:
        return n

    honest = "let sum = 0; for (let i = 0; i < 20; i++) sum += await tools.echo({ n: i }); return sum"
    bombs = [
        run(BOMBS[name], memory_limit_bytes=LIMIT, timeout_ms=20_000)
        for name in ("arrays", "buffers", "a map")
    ]
    honest_runs = [run(honest, tools=[echo], timeout_ms=20_000) for _ in range(5)]
    results = await asyncio.gather(*bombs, *honest_runs)
    assert [each.error and each.error.code for each in results[:3]] == ["memory_limit"] * 3
    assert [each.result for each in results[3:]] == [190] * 5
