"""Isolation between executions: an execution leaves no state to the next one, and concurrent executions do
not affect each other.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.conftest import Run

POLLUTION = """
    globalThis.left = 1;
    var alsoLeft = 2;
    Object.prototype.polluted = 'object';
    Array.prototype.polluted = 'array';
    Function.prototype.call = () => 'call';
    Promise.prototype.then = function () { return this };
    Promise.resolve = () => ({ then() {} });
    Array.prototype.map = Array.prototype.push = () => 'broken';
    JSON.parse = () => 'parsed';
    JSON.stringify = () => '"stringified"';
    Math.random = () => 4;
    Date.now = () => 0;
    String.prototype.split = () => ['split'];
    console.log = () => {};
    setTimeout = () => 0;
    URL = TextEncoder = structuredClone = undefined;
    WeakMap.prototype.get = WeakMap.prototype.set = Reflect.apply = () => undefined;
    Object.defineProperty(globalThis, 'tools', { value: 'mine', writable: false, configurable: false });
    Object.freeze(Object.prototype);
    new WeakRef(globalThis);
"""

FIND_POLLUTION = """
    const found = [];
    for (const name of ['left', 'alsoLeft', 'tools', 'polluted'])
      if (typeof globalThis[name] !== 'undefined') found.push(name);
    if (({}).polluted || [].polluted) found.push('prototypes');
    if (JSON.stringify({ a: [1].map((n) => n + 1) }) !== '{"a":[2]}') found.push('json');
    if (Date.now() < 1e12 || Math.random() === 4) found.push('sources');
    if ('a,b'.split(',').length !== 2) found.push('strings');
    if (new URL('a:b').href !== 'a:b' || new TextEncoder().encode('a')[0] !== 97) found.push('platform');
    if (await new Promise((resolve) => setTimeout(resolve, 0, 'ok')) !== 'ok') found.push('timers');
    if (Object.isFrozen(Object.prototype)) found.push('frozen');
    console.log('seen');
    return found;
"""


async def test_changes_to_globals_and_prototypes_do_not_survive_the_execution(run: Run) -> None:
    for _ in range(2):
        # The result of the polluting code does not matter, but it must end soon.
        await run(POLLUTION, timeout_ms=300)
        result = await run(FIND_POLLUTION)
        assert (result.result, result.logs) == ([], ["seen"])


@pytest.mark.parametrize(
    "end",
    ["throw new Error('x')", "for (;;);", "await new Promise(() => {})", "const a = []; for (;;) a.push(a)"],
    ids=["an error", "a loop", "an await", "exhaustion"],
)
async def test_nothing_survives_however_an_execution_ends(run: Run, end: str) -> None:
    code = f"Object.prototype.polluted = 1; globalThis.left = 1; setInterval(() => {{ left++ }}, 1);\n{end}"
    assert not (await run(code, timeout_ms=200, memory_limit_bytes=32 * 1024 * 1024)).ok
    result = await run(FIND_POLLUTION)
    assert (result.result, result.logs) == ([], ["seen"])


async def test_timers_of_a_finished_execution_do_not_fire(run: Run) -> None:
    calls = []

    async def record() -> None:
        calls.append(1)

    await run("setInterval(() => tools.record(), 1); return 1", tools=[record])
    before = len(calls)
    for _ in range(5):
        await run("await new Promise((resolve) => setTimeout(resolve, 5))")
    assert len(calls) == before


async def test_random_values_differ_between_executions(run: Run) -> None:
    code = (
        "[Math.random(), Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new"
        " Uint8Array(8))].join()]"
    )
    sequential = [(await run(code)).result for _ in range(4)]
    concurrent = [result.result for result in await asyncio.gather(*(run(code) for _ in range(4)))]
    drawn = [value for result in (*sequential, *concurrent) for value in result]
    assert len(set(drawn)) == len(drawn) == 32


async def test_math_random_is_evenly_distributed(run: Run) -> None:
    code = "let sum = 0; for (let i = 0; i < 20000; i++) sum += Math.random(); return sum / 20000"
    assert 0.45 < (await run(code)).result < 0.55


async def test_clock_is_the_hosts(run: Run) -> None:
    import time

    before = time.time() * 1000
    guest_time = (await run("Date.now()")).result
    assert before - 1 <= guest_time <= time.time() * 1000 + 1


async def test_concurrent_executions_all_return_their_own_results(run: Run, engine: str) -> None:
    # Start fewer executions on deno, because each execution there has its own process.
    numbers = range(32 if engine == "quickjs" else 12)

    async def square(n: int) -> int:
        await asyncio.sleep(0)
        return n * n

    def code(n: int) -> str:
        return f"""
            globalThis.mine = {n};
            console.log('start', mine);
            const squared = await tools.square({{ n: mine }});
            await new Promise((resolve) => setTimeout(resolve, 1));
            console.log('end', mine);
            return [mine, squared, await tools.square({{ n: mine + 1 }})];
        """

    results = await asyncio.gather(*(run(code(n), tools=[square], timeout_ms=30_000) for n in numbers))
    assert [result.result for result in results] == [[n, n * n, (n + 1) ** 2] for n in numbers]
    assert [result.logs for result in results] == [[f"start {n}", f"end {n}"] for n in numbers]
    assert len({result.run_id for result in results}) == len(numbers)


async def test_concurrent_executions_with_different_ends_do_not_affect_each_other(run: Run) -> None:
    async def echo(value: str, /) -> str:
        return value

    expected_ends = {
        "return await tools.echo('fine')": ("ok", "fine"),
        "throw new Error('wrong')": ("runtime_error", None),
        "for (;;);": ("timeout", None),
        "await new Promise(() => {})": ("timeout", None),
        "return NaN": ("serialization_error", None),
    }
    codes = [*expected_ends] * 2
    results = await asyncio.gather(*(run(code, tools=[echo], timeout_ms=2_000) for code in codes))
    ends = [(result.error.code if result.error else "ok", result.result) for result in results]
    assert ends == [expected_ends[code] for code in codes]


async def test_endless_loop_does_not_starve_other_executions(run: Run) -> None:
    loops = [asyncio.create_task(run("for (;;);", timeout_ms=60_000)) for _ in range(3)]
    try:
        for n in range(5):
            result = await run(
                f"let s = 0; for (let i = 0; i < 1000; i++) s += i; return s + {n}", timeout_ms=30_000
            )
            assert result.result == 499500 + n
        assert not any(loop.done() for loop in loops)
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def test_a_thousand_sequential_executions_all_succeed(run: Run, engine: str) -> None:
    for n in range(1000 if engine == "quickjs" else 20):
        assert (await run(f"globalThis.n = (globalThis.n ?? 0) + {n}; return n")).result == n
