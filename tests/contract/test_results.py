"""Results, default limits and their ranges, and the JSON-safety of results and tool inputs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import Run

import hutch
from hutch.errors import InvalidExecution
from hutch.session.limits import Limits


async def test_success_has_a_result_and_no_error(run: Run) -> None:
    result = await run("({ a: [1, 2.5, 'x', true, null] })")
    assert (result.ok, result.error, result.logs) == (True, None, [])
    assert result.result == {"a": [1, 2.5, "x", True, None]}
    assert result.duration_ms > 0
    assert len(result.run_id) == 32


async def test_failure_has_an_error_and_no_result(run: Run) -> None:
    result = await run("console.log('before'); throw new Error('no')")
    assert (result.ok, result.result, result.result_json) == (False, None, None)
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("runtime_error", "no")
    assert result.logs == ["before"]
    assert result.duration_ms > 0


async def test_undefined_is_distinguished_from_null(run: Run) -> None:
    nothing, null = await run("undefined"), await run("null")
    assert (nothing.ok, nothing.result, nothing.result_json) == (True, None, None)
    assert (null.ok, null.result, null.result_json) == (True, None, b"null")


def test_default_limits_are_those_of_the_protocol() -> None:
    defaults = Limits()
    assert (defaults.timeout_ms, defaults.memory_limit_bytes) == (5000, 67108864)
    assert (defaults.max_log_lines, defaults.max_log_chars) == (100, 64000)


async def test_limits_of_the_call_override_those_of_the_sandbox(engine: str) -> None:
    code = "for (let i = 0; i < 200; i++) console.log(i)"
    async with hutch.Hutch(max_log_lines=7) as sandbox:
        with_sandbox_limit = await sandbox.run(code, engine=engine)
        with_call_limit = await sandbox.run(code, engine=engine, max_log_lines=3)
    assert (len(with_sandbox_limit.logs), len(with_call_limit.logs)) == (7, 3)


INVALID_OPTIONS: dict[str, dict[str, Any]] = {
    "zero timeout": {"timeout_ms": 0},
    "timeout of the wrong type": {"timeout_ms": "5"},
    "infinite timeout": {"timeout_ms": float("inf")},
    "NaN timeout": {"timeout_ms": float("nan")},
    "timeout above the maximum": {"timeout_ms": 10**9},
    "negative memory limit": {"memory_limit_bytes": -1},
    "memory limit above the maximum": {"memory_limit_bytes": 2**50},
    "negative log lines": {"max_log_lines": -1},
    "boolean log characters": {"max_log_chars": True},
    "unknown engine": {"engine": "spidermonkey"},
}


@pytest.mark.parametrize("options", INVALID_OPTIONS.values(), ids=INVALID_OPTIONS.keys())
async def test_option_out_of_range_is_named_and_nothing_runs(
    sandbox: hutch.Hutch, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidExecution) as caught:
        await sandbox.run("1", **options)
    assert caught.value.field in options
    assert caught.value.field in str(caught.value)


async def test_too_much_code_is_refused_with_both_sizes() -> None:
    async with hutch.Hutch(max_code_bytes=100) as sandbox:
        with pytest.raises(InvalidExecution, match=r"code: has 102 bytes; the limit is 100"):
            await sandbox.run("'" + "é" * 50 + "'")


SAFE = {
    "zero and minus zero": ("[0, -0]", [0, 0]),
    "large numbers": ("[2**53 - 1, 1e308, 5e-324, -1.5]", [2**53 - 1, 1e308, 5e-324, -1.5]),
    "an empty array and object": ("[[], {}]", [[], {}]),
    "empty text": ("''", ""),
    "undefined properties are dropped": ("({ a: undefined, b: 1 })", {"b": 1}),
    "objects without a prototype": ("Object.assign(Object.create(null), { a: 1 })", {"a": 1}),
    "a repeated value, which is not a cycle": ("const a = [1]; return [a, a, { a }]", [[1], [1], {"a": [1]}]),
    "result of JSON.parse": ("JSON.parse('{\"a\": [{}]}')", {"a": [{}]}),
    "the line separators": ("'\\u2028\\u2029'", "\u2028\u2029"),
    "NUL": ("'a\\0b'", "a\0b"),
    "all controls": ("String.fromCharCode(...Array(32).keys())", "".join(map(chr, range(32)))),
    "astral characters": ("'\\u{1f407}'", "\U0001f407"),
    "a lone high surrogate": ("'a\\ud800'", "a\ud800"),
    "a lone low surrogate": ("'\\udfffb'", "\udfffb"),
    "surrogates in the wrong order": ("'\\udc07\\ud83d'", "\udc07\ud83d"),
    "a lone surrogate as a key": ("({ '\\ud800': 1 })", {"\ud800": 1}),
    "__proto__ as a key": ('JSON.parse(\'{"__proto__": {"a": 1}}\')', {"__proto__": {"a": 1}}),
    "constructor as a key": (
        "({ constructor: 1, prototype: 2, toString: 3 })",
        {"constructor": 1, "prototype": 2, "toString": 3},
    ),
    "keys in their order": ("({ b: 1, a: 2, 1: 3 })", {"1": 3, "b": 1, "a": 2}),
    "symbol keys are dropped": ("({ [Symbol('s')]: 1, a: 2 })", {"a": 2}),
    "getters are read": ("({ get a() { return 1 } })", {"a": 1}),
    "text of a megabyte": ("'x'.repeat(1 << 20)", "x" * (1 << 20)),
}


@pytest.mark.parametrize(("code", "expected"), SAFE.values(), ids=SAFE.keys())
async def test_json_safe_values_are_returned_unchanged(run: Run, code: str, expected: object) -> None:
    result = await run(code)
    assert result.error is None
    assert result.result == expected


async def test_result_may_nest_a_hundred_levels(run: Run) -> None:
    result = await run("let v = 1; for (let i = 0; i < 100; i++) v = [v]; return v")
    assert result.result_json == b"[" * 100 + b"1" + b"]" * 100


async def test_order_of_keys_is_kept(run: Run) -> None:
    result = await run("({ b: 1, a: 2, 1: 3 })")
    assert list(result.result) == ["1", "b", "a"]


UNSAFE = {
    "NaN": ("NaN", "NaN"),
    "Infinity": ("Infinity", "Infinity"),
    "minus Infinity": ("({ a: [-Infinity] })", "-Infinity at .a[0]"),
    "a BigInt": ("10n", "a bigint"),
    "a BigInt inside": ("[{ n: 10n }]", "a bigint at [0].n"),
    "a function": ("return () => 1", "a function"),
    "a method": ("({ f() {} })", "a function at .f"),
    "a symbol": ("Symbol('s')", "a symbol"),
    "a Date": ("[new Date(0)]", "an instance of Date at [0]; use .toISOString()"),
    "a Map": ("new Map([[1, 2]])", "an instance of Map; use Object.fromEntries(map)"),
    "a Set": ("({ s: new Set() })", "an instance of Set at .s; use [...set]"),
    "a Promise": ("({ p: Promise.resolve(1) })", "an instance of Promise at .p; did you forget await?"),
    "a RegExp": ("/a/", "an instance of RegExp"),
    "an Error": ("new TypeError('x')", "an instance of TypeError"),
    "a typed array": ("new Uint8Array(3)", "an instance of Uint8Array"),
    "an ArrayBuffer": ("new ArrayBuffer(3)", "an instance of ArrayBuffer"),
    "a URL": ("new URL('http://a')", "an instance of URL"),
    "a class instance": ("class Point { x = 1 }\nreturn new Point()", "an instance of Point"),
    "a boxed number": ("Object(1)", "an instance of Number"),
    "a cycle": ("const a = { b: {} }; a.b.c = a; return a", "a cycle at .b.c"),
    "a cycle in an array": ("const a = []; a.push([a]); return a", "a cycle at [0][0]"),
    "undefined in an array": ("[1, undefined]", "undefined at [1]"),
    "a hole in an array": ("[1, , 2]", "undefined at [1]"),
    "two hundred levels": (
        "let v = 1; for (let i = 0; i < 200; i++) v = [v]; return v",
        "nested deeper than",
    ),
}


@pytest.mark.parametrize(("code", "found"), UNSAFE.values(), ids=UNSAFE.keys())
async def test_result_that_is_not_json_safe_is_refused_with_its_path(run: Run, code: str, found: str) -> None:
    result = await run(code)
    assert result.error is not None
    assert result.error.code == "serialization_error"
    assert result.error.message.startswith("The result is not JSON-safe: ")
    assert found in result.error.message


@pytest.mark.parametrize(("code", "found"), UNSAFE.values(), ids=UNSAFE.keys())
async def test_input_that_is_not_json_safe_never_reaches_its_tool(run: Run, code: str, found: str) -> None:
    calls = []

    async def take(value: Any, /) -> None:
        calls.append(value)

    body = code if "return" in code else f"return {code}"
    wrapped = f"const value = (() => {{ {body} }})();\ntry {{ await tools.take(value) }} catch (e) {{ \
return [e instanceof Error, e.code, e.message] }}"
    result = await run(wrapped, tools=[take])
    assert result.error is None
    assert calls == []
    is_error, error_code, message = result.result
    assert (is_error, error_code) == (True, "serialization_error")
    assert message.startswith("The input of tools.take is not JSON-safe: ")
    assert found in message


async def test_uncaught_error_of_an_unsafe_input_is_the_executions_error(run: Run) -> None:
    async def take(value: Any, /) -> None: ...

    result = await run("await tools.take(NaN)", tools=[take])
    assert result.error is not None
    assert result.error.code == "serialization_error"


async def test_result_of_too_many_bytes_is_refused(run: Run) -> None:
    result = await run("'x'.repeat(9 * 1024 * 1024)")
    assert result.error is not None
    assert result.error.code == "result_too_large"
    assert "too large" in result.error.message or "limit" in result.error.message
