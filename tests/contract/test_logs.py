"""Console output as the execution's logs: formats, limits, and logs of failed executions."""

from __future__ import annotations

import re

import pytest
from tests.conftest import Run

FORMS = {
    "text": ("'a b'", "a b"),
    "several": ("'a', 1, true", "a 1 true"),
    "nothing": ("", ""),
    "undefined": ("undefined", "undefined"),
    "null": ("null", "null"),
    "a number": ("1.50", "1.5"),
    "minus zero": ("-0", "0"),
    "NaN": ("NaN", "null"),
    "an object": ("({ a: [1, { b: 'c' }] })", '{"a":[1,{"b":"c"}]}'),
    "an array": ("[1, 'two', null]", '[1,"two",null]'),
    "a date": ("new Date(0)", '"1970-01-01T00:00:00.000Z"'),
    "a bigint": ("10n", "10n"),
    "a symbol": ("Symbol('s')", "Symbol(s)"),
    "a function": ("function hello() {}", "[Function: hello]"),
    "a map": ("new Map([['a', 1]])", 'Map(1) [["a",1]]'),
    "a set": ("new Set([1, 2])", "Set(2) [1,2]"),
    "a cycle": ("(() => { const a = {}; a.a = a; return a })()", "[object Object]"),
    "a value without text": ("Object.create(null, { toJSON: { value() { throw 1 } } })", "[unprintable]"),
    "percent signs": ("'%s %d', 1", "%s %d 1"),
    "several lines": ("'a\\nb'", "a\nb"),
    "a lone surrogate": ("'a\\ud800'", "a\ufffd"),
    "NUL and U+2028": ("'\\0\\u2028'", "\0\u2028"),
}


@pytest.mark.parametrize(("arguments", "line"), FORMS.values(), ids=FORMS.keys())
async def test_arguments_are_formatted_readably(run: Run, arguments: str, line: str) -> None:
    result = await run(f"console.log({arguments}); return 1")
    assert result.error is None
    assert result.logs == [line]
    assert not result.logs_truncated


async def test_error_is_logged_with_its_name_and_message(run: Run) -> None:
    result = await run("console.log(new TypeError('why'))")
    assert result.logs[0].startswith("TypeError: why")


ERRORS = {
    "an error": ("new Error('err')", "Error: err"),
    "message with lines that look like frames": (
        "new RangeError('a\\n    at b (prelude.js:1:2)')",
        "RangeError: a\n    at b (prelude.js:1:2)",
    ),
    "renamed after its stack was read": (
        "((e) => (e.stack, Object.assign(e, { name: 'B', message: 'c' })))(new Error('a'))",
        "B: c",
    ),
    "thrown by the platform": (
        "(() => { try { new URL('::') } catch (e) { return e } })()",
        "TypeError: Invalid URL: '::'",
    ),
    "created in a built-in's callback": ("[1].map(() => new Error('err'))[0]", "Error: err"),
    "created in a timer": (
        "await new Promise((r) => setTimeout(() => r(new Error('late')), 1))",
        "Error: late",
    ),
}


@pytest.mark.parametrize(("error", "text"), ERRORS.values(), ids=ERRORS.keys())
async def test_error_is_logged_once_with_only_the_guests_own_frames(run: Run, error: str, text: str) -> None:
    [line] = (await run(f"console.log({error})")).logs
    assert line.startswith(f"{text}\n")
    frames = line.removeprefix(f"{text}\n").split("\n")
    assert frames
    assert all(frame.startswith("    at ") and "guest.js" in frame for frame in frames)


async def test_error_is_logged_with_its_frames_even_if_built_ins_were_replaced(run: Run) -> None:
    code = """
        const no = () => { throw 1 };
        const error = new Error('still');
        Object.assign(String.prototype, { slice: no, indexOf: no, startsWith: no });
        Object.assign(RegExp.prototype, { exec: no, test: no });
        Reflect.apply = no;
        console.log(error);
    """
    [line] = (await run(code)).logs
    assert line.startswith("Error: still\n    at ")


STACKS = {
    "getter that throws": "{ get() { throw 1 } }",
    "not a string": "{ value: 5 }",
    "undefined": "{ value: undefined }",
    "string without frames": "{ value: 'own' }",
}


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS.keys())
async def test_error_without_a_usable_stack_is_logged_without_frames(run: Run, stack: str) -> None:
    result = await run(f"console.log(Object.defineProperty(new Error('q'), 'stack', {stack}))")
    assert result.logs == ["Error: q"]


async def test_all_methods_log_in_order(run: Run) -> None:
    code = "for (const m of ['log', 'info', 'warn', 'error', 'debug']) console[m](m)"
    assert (await run(code)).logs == ["log", "info", "warn", "error", "debug"]


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (
            "console.dir({ a: 1 }, { depth: null }); console.table([{ b: 2 }], ['b'])",
            ['{"a":1}', '[{"b":2}]'],
        ),
        ("console.group('outer'); console.log(1); console.groupEnd(); console.log(2)", ["outer", "  1", "2"]),
        ("console.groupCollapsed(); console.groupEnd(); console.groupEnd(); console.clear()", []),
        ("console.assert(true, 'no'); console.assert(0, 'not', [1])", ["Assertion failed not [1]"]),
        ("console.count(); console.count('a'); console.count()", ["default: 1", "a: 1", "default: 2"]),
        ("console.count(); console.countReset(); console.count()", ["default: 1", "default: 1"]),
        ("console.timeEnd('never')", ["Timer 'never' does not exist"]),
    ],
)
async def test_other_console_methods_log_what_browsers_show(run: Run, code: str, lines: list[str]) -> None:
    result = await run(code)
    assert (result.error, result.logs) == (None, lines)


async def test_console_methods_return_undefined(run: Run) -> None:
    names = "assert clear count countReset dir group groupCollapsed groupEnd log table time timeLog timeEnd"
    result = await run(f"return '{names}'.split(' ').filter((name) => console[name](1) !== undefined)")
    assert result.result == []


async def test_values_beyond_the_log_limit_are_not_formatted(run: Run) -> None:
    counts = "let n = 0; const counts = { toJSON() { n++; return 1 } };"
    code = f"{counts} for (let i = 0; i < 9; i++) console.log(counts); return n"
    result = await run(code, max_log_lines=3)
    assert (len(result.logs), result.logs_truncated) == (3, True)
    assert result.result <= 4


async def test_console_measures_time(run: Run) -> None:
    result = await run("console.time('t'); console.timeLog('t', 'so far'); console.timeEnd('t')")
    assert [re.sub(r"\d+", "0", line) for line in result.logs] == ["t: 0 ms so far", "t: 0 ms"]


async def test_number_of_lines_is_limited(run: Run) -> None:
    result = await run("for (let i = 0; i < 10; i++) console.log(i)", max_log_lines=3)
    assert (result.logs, result.logs_truncated) == (["0", "1", "2"], True)


async def test_total_number_of_characters_is_limited_and_the_last_line_is_clipped(run: Run) -> None:
    code = "console.log('abcd'); console.log('efgh'); console.log('ijkl'); console.log('mnop')"
    result = await run(code, max_log_chars=10)
    assert (result.logs, result.logs_truncated) == (["abcd", "efgh", "ij"], True)


async def test_logs_exactly_at_the_limit_are_not_truncated(run: Run) -> None:
    result = await run("console.log('abcd'); console.log('efgh')", max_log_chars=8, max_log_lines=2)
    assert (result.logs, result.logs_truncated) == (["abcd", "efgh"], False)


@pytest.mark.parametrize("limits", [{"max_log_lines": 0}, {"max_log_chars": 0}], ids=["lines", "characters"])
async def test_limit_of_zero_disables_logs(run: Run, limits: dict[str, int]) -> None:
    result = await run("console.log('a'); return 1", **limits)
    assert (result.result, result.logs, result.logs_truncated) == (1, [], True)


async def test_default_limits_apply(run: Run) -> None:
    lines = await run("for (let i = 0; i < 200; i++) console.log('x')")
    assert (len(lines.logs), lines.logs_truncated) == (100, True)
    characters = await run("for (let i = 0; i < 90; i++) console.log('x'.repeat(1000))")
    assert (sum(map(len, characters.logs)), characters.logs_truncated) == (64_000, True)


ENDS = {
    "an error": ("throw new Error('no')", "runtime_error"),
    "a timeout": ("for (;;);", "timeout"),
    "a timeout in an await": ("await new Promise(() => {})", "timeout"),
    "a result that is not JSON": ("NaN", "serialization_error"),
}


@pytest.mark.parametrize(("end", "code"), ENDS.values(), ids=ENDS.keys())
async def test_logs_are_kept_when_the_execution_fails(run: Run, end: str, code: str) -> None:
    result = await run(
        f"console.log('before');\nreturn await (async () => {{ return {_as_async_call(end)} }})()",
        timeout_ms=700,
    )
    assert result.error is not None
    assert result.error.code == code
    assert result.logs == ["before"]


TRUNCATED = {
    "whole line": ({"max_log_lines": 2}, ["abc", "def"]),
    "part of a line": ({"max_log_chars": 5}, ["abc", "de"]),
    "all": ({"max_log_lines": 0}, []),
}


@pytest.mark.parametrize(("limits", "logs"), TRUNCATED.values(), ids=TRUNCATED.keys())
async def test_truncation_is_reported_for_a_guest_that_had_to_be_killed(
    run: Run, limits: dict[str, int], logs: list[str]
) -> None:
    code = "for (const line of ['abc', 'def', 'ghi']) console.log(line); for (;;);"
    result = await run(code, timeout_ms=300, **limits)
    assert (result.logs, result.logs_truncated) == (logs, True)


async def test_killed_guests_logs_exactly_at_the_limit_are_not_truncated(run: Run) -> None:
    result = await run("console.log('abc'); for (;;);", timeout_ms=300, max_log_lines=1, max_log_chars=3)
    assert (result.logs, result.logs_truncated) == (["abc"], False)


@pytest.mark.parametrize("engine", ["deno"])
@pytest.mark.parametrize(
    ("end", "logs"), [("", ["a", "b", "part", "line"]), ("for (;;);", ["part", "a", "b", "line"])]
)
async def test_lines_sent_over_both_the_session_and_stdout_appear_once(
    run: Run, end: str, logs: list[str]
) -> None:
    code = f"""
        const print = (text) => Deno.stdout.writeSync(new TextEncoder().encode(text));
        print('part'); console.log('a'); console.log('b'); print('line\\n'); {end}
    """
    assert (await run(code, timeout_ms=300)).logs == logs


def _as_async_call(end: str) -> str:
    return f"(async () => {{ {end if end.startswith(('throw', 'for')) else 'return ' + end} }})()"


async def test_guest_may_replace_its_console_methods(run: Run) -> None:
    result = await run("console.log('a'); console.log = () => {}; console.log('b'); console.info('c')")
    assert result.logs == ["a", "c"]


async def test_value_that_throws_while_it_is_formatted_does_not_end_the_execution(run: Run) -> None:
    result = await run("console.log({ get a() { throw new Error('no') } }); return 'continued'")
    assert result.result == "continued"
    assert result.logs == ["[object Object]"]
