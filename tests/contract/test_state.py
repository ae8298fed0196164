"""Executions are strangers: nothing is left between them, and many at once do not meet."""

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

LOOK = """
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


async def test_nothing_that_an_execution_does_to_its_realm_is_left(run: Run) -> None:
    for _ in range(5):
        # How the polluter itself ends is its own affair; that it ends soon is ours.
        await run(POLLUTION, timeout_ms=300)
        result = await run(LOOK)
        assert (result.result, result.logs) == ([], ["seen"])


@pytest.mark.parametrize(
    "end",
    ["throw new Error('x')", "for (;;);", "await new Promise(() => {})", "const a = []; for (;;) a.push(a)"],
    ids=["an error", "a loop", "an await", "exhaustion"],
)
async def test_nothing_is_left_however_an_execution_ends(run: Run, end: str) -> None:
    code = f"Object.prototype.polluted = 1; globalThis.left = 1; setInterval(() => {{ left++ }}, 1);\n{end}"
    assert not (await run(code, timeout_ms=200, memory_limit_bytes=32 * 1024 * 1024)).ok
    result = await run(LOOK)
    assert (result.result, result.logs) == ([], ["seen"])


async def test_timers_of_an_execution_that_is_over_do_not_fire(run: Run) -> None:
    calls = []

    async def note() -> None:
        calls.append(1)

    await run("setInterval(() => tools.note(), 1); return 1", tools=[note])
    before = len(calls)
    for _ in range(5):
        await run("await new Promise((resolve) => setTimeout(resolve, 5))")
    assert len(calls) == before


async def test_randomness_differs_between_executions(run: Run) -> None:
    code = (
        "[Math.random(), Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new"
        " Uint8Array(8))].join()]"
    )
    one_by_one = [(await run(code)).result for _ in range(8)]
    at_once = [each.result for each in await asyncio.gather(*(run(code) for _ in range(8)))]
    drawn = [value for result in (*one_by_one, *at_once) for value in result]
    assert len(set(drawn)) == len(drawn) == 64


async def test_randomness_is_even(run: Run) -> None:
    code = "let sum = 0; for (let i = 0; i < 20000; i++) sum += Math.random(); return sum / 20000"
    assert 0.45 < (await run(code)).result < 0.55


async def test_the_clock_is_the_hosts(run: Run) -> None:
    import time

    before = time.time() * 1000
    told = (await run("Date.now()")).result
    assert before - 1 <= told <= time.time() * 1000 + 1


async def test_32_at_once_are_all_right(run: Run) -> None:
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

    results = await asyncio.gather(*(run(code(n), tools=[square], timeout_ms=30_000) for n in range(32)))
    assert [each.result for each in results] == [[n, n * n, (n + 1) ** 2] for n in range(32)]
    assert [each.logs for each in results] == [[f"start {n}", f"end {n}"] for n in range(32)]
    assert len({each.run_id for each in results}) == 32


async def test_executions_of_every_end_at_once_do_not_disturb_each_other(run: Run) -> None:
    async def echo(value: str, /) -> str:
        return value

    kinds = {
        "return await tools.echo('fine')": ("ok", "fine"),
        "throw new Error('wrong')": ("runtime_error", None),
        "for (;;);": ("timeout", None),
        "await new Promise(() => {})": ("timeout", None),
        "return NaN": ("serialization_error", None),
    }
    codes = [*kinds] * 4
    results = await asyncio.gather(*(run(code, tools=[echo], timeout_ms=2_000) for code in codes))
    ends = [(each.error.code if each.error else "ok", each.result) for each in results]
    assert ends == [kinds[code] for code in codes]


async def test_a_loop_does_not_starve_its_neighbours(run: Run) -> None:
    loops = [asyncio.create_task(run("for (;;);", timeout_ms=60_000)) for _ in range(3)]
    try:
        for n in range(10):
            result = await run(
                f"let s = 0; for (let i = 0; i < 1000; i++) s += i; return s + {n}", timeout_ms=30_000
            )
            assert result.result == 499500 + n
        assert not any(loop.done() for loop in loops)
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


async def test_a_thousand_executions_one_after_another_are_all_right(run: Run, engine: str) -> None:
    for n in range(1000 if engine == "quickjs" else 20):
        assert (await run(f"globalThis.n = (globalThis.n ?? 0) + {n}; return n")).result == n
