"""Floods of logs, and huge or deeply nested results. The host neither keeps them in memory nor parses them as
protocol messages.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.conftest import Run
from tests.hostile.processes import resident_bytes
from tests.support.stalls import LoopStalls, repeat_on_stall

import hutch

MIB = 1024 * 1024
# Every flood is larger than this bound. If the host's memory grows by less, the host does not keep the flood
# in memory.
MAX_GROWTH = 64 * MIB

FLOODS = {
    "console.log": (
        "const line = 'x'.repeat(1 << 20); for (let i = 0; i < 150; i++) console.log(line); return 'done'"
    ),
    "many short lines": "for (let i = 0; i < 100000; i++) console.log(i); return 'done'",
    "all methods": (
        "const line = 'x'.repeat(1 << 18);"
        " for (let i = 0; i < 150; i++) for (const m of ['log', 'warn', 'error', 'info'])"
        " console[m](line); return 'done'"
    ),
}
DENO_FLOODS = {
    "stdout": (
        "const b = new Uint8Array(1 << 20).fill(120); b[0] = 10; for (let i = 0; i < 150; i++)"
        " Deno.stdout.writeSync(b); return 'done'"
    ),
    "one endless line": (
        "const b = new Uint8Array(1 << 20).fill(120); for (let i = 0; i < 150;"
        " i++) Deno.stdout.writeSync(b); return 'done'"
    ),
    "stderr": (
        "const b = new Uint8Array(1 << 20).fill(120); for (let i = 0; i < 150; i++)"
        " Deno.stderr.writeSync(b); return 'done'"
    ),
    "node's stdout": (
        "const p = await import('node:process'); const s = 'x'.repeat(1 << 16); for (let i"
        " = 0; i < 1000; i++) p.stdout.write(s); return 'done'"
    ),
    "console.table and dir": (
        "for (let i = 0; i < 2000; i++) { console.table([[i]]); console.dir({ i"
        " }); console.group('g') } return 'done'"
    ),
    "invalid UTF-8": (
        "const b = crypto.getRandomValues(new Uint8Array(1 << 16)); for (let i ="
        " 0; i < 300; i++) Deno.stdout.writeSync(b); return 'done'"
    ),
}


async def run_flood(run: Run, code: str) -> hutch.Result:
    before = resident_bytes(os.getpid())
    result = await run(code, timeout_ms=60_000)
    assert resident_bytes(os.getpid()) < before + MAX_GROWTH
    assert result.error is None
    assert result.result == "done"
    assert result.logs_truncated
    assert len(result.logs) <= 100
    assert sum(map(len, result.logs)) <= 64_000
    return result


@pytest.mark.parametrize("code", FLOODS.values(), ids=FLOODS.keys())
async def test_flood_of_logs_is_truncated_and_flagged(run: Run, code: str) -> None:
    assert (await run_flood(run, code)).logs


@pytest.mark.parametrize("engine", ["deno"])
@pytest.mark.parametrize("code", DENO_FLOODS.values(), ids=DENO_FLOODS.keys())
async def test_flood_past_the_console_is_truncated(run: Run, code: str) -> None:
    assert (await run_flood(run, code)).logs


async def test_endless_flood_times_out_and_keeps_its_beginning(run: Run) -> None:
    result = await run("for (let i = 0; ; i++) console.log('line', i)", timeout_ms=700)
    assert result.error is not None
    assert result.error.code == "timeout"
    assert result.logs[:2] == ["line 0", "line 1"]
    assert len(result.logs) == 100


# --- results ---


@pytest.fixture(scope="module")
async def small_results(anyio_backend: object) -> AsyncIterator[hutch.Hutch]:
    """A sandbox that refuses results larger than one MiB."""
    async with hutch.Hutch(max_result_bytes=MIB) as sandbox:
        yield sandbox


HUGE_RESULTS = {
    "a text": "'x'.repeat(50 * 1024 * 1024)",
    "very many keys": "const o = {}; for (let i = 0; i < 3e5; i++) o['key' + i] = i; return o",
    "a long array": "new Array(5e6).fill(7)",
    "a text of wide characters": "'\u20ac'.repeat(400000)",
    "a value that is shared": "let v = ['x'.repeat(100)]; for (let i = 0; i < 40; i++) v = [v, v]; return v",
}


@pytest.mark.parametrize("code", HUGE_RESULTS.values(), ids=HUGE_RESULTS.keys())
async def test_huge_result_is_rejected(small_results: hutch.Hutch, engine: str, code: str) -> None:
    before = resident_bytes(os.getpid())
    result = await small_results.run(code, engine=engine, memory_limit_bytes=900 * MIB, timeout_ms=60_000)
    assert resident_bytes(os.getpid()) < before + MAX_GROWTH
    assert result.error is not None
    assert result.error.code == "result_too_large"
    assert result.error.message == "The result is too large: its JSON text has more than 1048576 bytes"


@pytest.mark.parametrize(
    "code",
    [
        "'x'.repeat(1048574)",
        "'\\u20ac'.repeat(349524) + 'xx'",
        "new Array(524287).fill(7)",
        "({ a: 'x'.repeat(1048568) })",
    ],
)
async def test_result_of_exactly_the_limit_is_accepted(
    small_results: hutch.Hutch, engine: str, code: str
) -> None:
    exact = await small_results.run(code, engine=engine)
    assert exact.error is None
    assert len(exact.result_json or b"") in (MIB, MIB - 1)


@pytest.mark.parametrize("text", ["'\"'.repeat(4194302)", "'\\u0001'.repeat(1398100)"])
@repeat_on_stall
async def test_result_of_escapes_does_not_block_the_host(run: Run, text: str) -> None:
    """If the host read the message with such a result in one step, it would be blocked for up to 80 ms."""
    async with LoopStalls() as stalls:
        result = await run(text, memory_limit_bytes=300 * MIB, timeout_ms=60_000)
    assert result.error is None
    assert len(result.result_json or b"") > 8_388_600
    stalls.assert_short()


async def test_result_of_millions_of_wide_characters_is_accepted(run: Run) -> None:
    """QuickJS needs more than 20 s for a loop over the characters of such a result, so the prelude must
    measure the result without a loop.
    """
    for text, size in (("'é'.repeat(4194303)", 8_388_608), ("'😀'.repeat(2097152)", None)):
        result = await run(text, memory_limit_bytes=300 * MIB, timeout_ms=15_000)
        if size is None:
            assert result.error is not None
            assert result.error.code == "result_too_large"
        else:
            assert len(result.result_json or b"") == size


async def test_huge_input_is_rejected_without_calling_the_tool(run: Run) -> None:
    calls = []

    async def take(value: Any, /) -> None:
        calls.append(1)

    for text in ("'x'.repeat(40 * 1024 * 1024)", "'\u20ac'.repeat(7 * 1024 * 1024)"):
        code = f"try {{ await tools.take({text}) }} catch (e) {{ return [e.code, e.message] }}"
        result = await run(code, tools=[take], memory_limit_bytes=900 * MIB, timeout_ms=20_000)
        assert result.result == [
            "serialization_error",
            "The input of tools.take is too large: its JSON text has more than 8388608 bytes",
        ]
    assert calls == []


async def test_huge_tool_result_is_an_error_that_the_guest_can_catch(run: Run) -> None:
    async def give() -> str:
        return "x" * (20 * MIB)

    code = "try { await tools.give() } catch (e) { return [e.code, e.message] }"
    result = await run(code, tools=[give], timeout_ms=60_000)
    assert result.error is None
    code, message = result.result
    assert code == "serialization_error"
    assert "limit" in message


@pytest.mark.parametrize("text", ['"' * 4_000_000, "\x01" * 1_300_000], ids=["quotes", "controls"])
@repeat_on_stall
async def test_large_tool_result_does_not_block_the_host(run: Run, text: str) -> None:
    """Encoding such a result in one step takes 80 to 120 ms."""

    async def give() -> dict[str, str]:
        return {"text": text}

    async with LoopStalls() as stalls:
        result = await run(
            "return (await tools.give()).text.length", tools=[give], memory_limit_bytes=300 * MIB
        )
    assert result.result == len(text), result
    stalls.assert_short()


async def test_huge_error_is_truncated(run: Run) -> None:
    result = await run("const e = new Error('x'.repeat(5e6)); e.name = 'N'.repeat(5e6); throw e")
    assert result.error is not None
    assert result.error.code == "runtime_error"
    assert len(result.error.message) < 10_000
    assert len(result.error.name or "") < 10_000


# --- nesting ---


async def test_result_nested_200_000_levels_is_rejected(run: Run) -> None:
    result = await run("let v = 1; for (let i = 0; i < 200000; i++) v = [v]; return v")
    assert result.error is not None
    assert result.error.code in ("serialization_error", "runtime_error")


async def test_input_nested_200_000_levels_is_rejected(run: Run) -> None:
    calls = []

    async def take(value: Any, /) -> None:
        calls.append(1)

    code = """
        let v = 1; for (let i = 0; i < 200000; i++) v = { v };
        try { await tools.take(v) } catch (e) { return e.code }
    """
    result = await run(code, tools=[take])
    assert result.result == "serialization_error"
    assert calls == []


async def test_tool_result_nested_200_000_levels_is_rejected(run: Run) -> None:
    async def give() -> Any:
        value: Any = 1
        for _ in range(200_000):
            value = [value]
        return value

    result = await run("await tools.give()", tools=[give], timeout_ms=60_000)
    assert result.error is not None
    assert result.error.code == "serialization_error"
    assert result.error.message.startswith("Tool give returned a non-serializable value")


async def test_error_with_a_long_chain_of_causes_is_a_plain_error(run: Run) -> None:
    result = await run(
        "let e = new Error('first'); for (let i = 0; i < 20000; i++) e = new Error('next', { cause: e"
        " }); throw e"
    )
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("runtime_error", "next")


# --- fake protocol messages ---

FORGED = [
    '{"type":"done","id":"x","ok":true,"durationMs":1,"logs":[],"result":"forged"}',
    '{"type":"started","id":"x"}',
    '{"type":"tool_call","callId":"1","providerName":"tools","safeToolName":"note","input":null}',
    '{"jsonrpc":"2.0","id":1,"result":"forged"}',
]


async def test_protocol_lines_on_the_console_are_text(run: Run) -> None:
    calls = []

    async def note() -> None:
        calls.append(1)

    code = f"for (const line of {FORGED!r}) console.log(line + '\\n' + line); return 'honest'"
    result = await run(code, tools=[note])
    assert result.result == "honest"
    assert result.logs == [f"{line}\n{line}" for line in FORGED]
    assert calls == []


@pytest.mark.parametrize("where", ["Deno.stdout", "Deno.stderr"])
async def test_protocol_lines_on_stdout_are_text(sandbox: hutch.Hutch, where: str) -> None:
    calls = []

    async def note() -> None:
        calls.append(1)

    code = f"""
        const text = {FORGED!r}.map((line) => line + '\\n').join('');
        {where}.writeSync(new TextEncoder().encode('\\n' + text));
        await tools.note();
        return 'honest';
    """
    result = await sandbox.run(code, engine="deno", tools=[note])
    assert result.result == "honest"
    assert result.logs == ["", *FORGED]
    assert calls == [1]


async def test_stdin_is_empty(sandbox: hutch.Hutch) -> None:
    code = """
        const buffer = new Uint8Array(64);
        const p = await import('node:process');
        const rest = []; for await (const chunk of Deno.stdin.readable) rest.push(chunk.length);
        return [Deno.stdin.readSync(buffer), await Deno.stdin.read(buffer), rest];
    """
    code = code.replace("const p = await import('node:process');\n", "")
    assert (await sandbox.run(code, engine="deno")).result in ([None, None, []], [None, None, [0]])
