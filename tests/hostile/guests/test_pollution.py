"""Guests that pollute prototypes or their own realm harm neither the host nor later executions."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conftest import Run

POLLUTED: list[Any] = [
    {"__proto__": {"polluted": "yes"}},
    {"constructor": {"prototype": {"polluted": "yes"}}},
    {"a": {"__proto__": {"polluted": "yes"}, "constructor": {"prototype": {"polluted": "yes"}}}},
    [{"__proto__": ["polluted"]}],
    {"__proto__": None, "toString": 1, "valueOf": 2, "then": 3, "toJSON": 4},
]


@pytest.mark.parametrize("value", POLLUTED)
async def test_polluting_keys_are_passed_as_data(run: Run, value: Any) -> None:
    seen: list[Any] = []

    async def give() -> Any:
        return value

    async def take(value: Any, /) -> None:
        seen.append(value)

    code = """
        const given = await tools.give();
        await tools.take(given);
        const clean = [{}, [], Object].every((each) => each.polluted === undefined);
        return [clean, given];
    """
    result = await run(code, tools=[give, take])
    assert result.error is None
    assert result.result == [True, value]
    assert seen == [value]
    assert (await run("({}).polluted === undefined && [].polluted === undefined")).result is True


async def test_thenable_from_a_tool_is_not_treated_as_a_promise(run: Run) -> None:
    async def give() -> Any:
        return {"then": "data"}

    assert (await run("await tools.give()", tools=[give])).result == {"then": "data"}


async def test_parameters_named_like_python_internals_are_harmless(run: Run) -> None:
    async def take(name: str, value: Any = None) -> str:
        return f"{name}.{value}"

    for extra in ("__class__", "__init__", "self", "__globals__", "context"):
        code = f"await tools.take({{ name: 'x', '{extra}': {{ __globals__: 1 }} }})"
        result = await run(code, tools=[take])
        assert result.result == "x.None" or (result.error and result.error.code == "validation_error")


SABOTAGE = {
    "JSON": "JSON.stringify = () => '\"forged\"'; JSON.parse = () => ({ type: 'done', ok: true })",
    "toJSON": "Object.prototype.toJSON = Array.prototype.toJSON = () => 'forged'",
    "promises": "Promise.prototype.then = function (f) { f?.('forged'); return this }",
    "arrays": "Array.prototype.push = Array.prototype.shift = Array.prototype.map = () => { throw 1 }",
    "objects": "Object.keys = Object.entries = Object.create = Object.defineProperty = () => []",
    "maps": (
        "Map.prototype.get = WeakMap.prototype.get = WeakMap.prototype.set = () => ({ code:"
        " 'timeout', message: 'x' })"
    ),
    "setters": (
        "for (const key of ['code', 'message', 'id', 'type', 'ok', 'result', 'error', 'resolve',"
        " 'reject', '0', '1'])"
        " Object.defineProperty(Object.prototype, key, { set() { throw 1 }, get() { return 'forged' },"
        " configurable: true })"
    ),
    "errors": (
        "Error.prepareStackTrace = () => { throw 1 }; Error.prototype.toString = () => { throw 1"
        " }; Error = undefined"
    ),
    "symbols": "Array.prototype[Symbol.iterator] = function* () { yield 'forged' }",
    "text": (
        "globalThis.TextEncoder = globalThis.TextDecoder = undefined; String.prototype.split = ()"
        " => ['forged']"
    ),
    "encoding": "if (globalThis.TextEncoder) TextEncoder.prototype.encode = () => new Uint8Array([10])",
    "functions": (
        "Function.prototype.call = Function.prototype.apply = Function.prototype.bind = () => 'forged'"
    ),
    "reflection": "Reflect.apply = () => 'forged'; globalThis.Reflect = undefined",
    "everything": (
        "for (const key of Object.getOwnPropertyNames(globalThis)) { try { globalThis[key] ="
        " undefined } catch {} }"
    ),
}


@pytest.mark.parametrize("sabotage", SABOTAGE.values(), ids=SABOTAGE.keys())
async def test_sabotaged_realm_affects_only_its_own_run(run: Run, sabotage: str) -> None:
    async def note(value: Any, /) -> str:
        return "noted"

    hostile_code = (
        f"{sabotage};\nawait tools.note({{ a: 1 }});\nthrow Object.assign(new Error('x'), {{"
        f" code: 'timeout' }})"
    )
    result = await run(hostile_code, tools=[note], timeout_ms=400)
    assert not result.ok or result.result in ("forged", None)
    assert result.error is None or result.error.code in (
        "runtime_error",
        "timeout",
        "serialization_error",
        "internal_error",
    )
    honest = await run("[await tools.note({ a: 1 }), ({}).code === undefined]", tools=[note])
    assert honest.result == ["noted", True]
