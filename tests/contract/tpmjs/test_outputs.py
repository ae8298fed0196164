"""What a tool returns and prints, and what the caller gets of it."""

from __future__ import annotations

from typing import Any

from tests.contract.tpmjs.served import Executor, tool

OUTPUTS: dict[str, tuple[str, Any]] = {
    "undefined": ("return undefined", None),
    "nothing": ("", None),
    "null": ("return null", None),
    "false": ("return false", False),
    "text": ("return 'é\\u2028\\n\"'", 'é\u2028\n"'),
    "text like an answer": ("return '{\"success\":false}'", '{"success":false}'),
    "what is undefined inside": ("return { a: undefined, b: [undefined], c: 1 }", {"b": [None], "c": 1}),
    "functions inside": ("return { a() {}, b: [() => 1], c: 1 }", {"b": [None], "c": 1}),
    "no numbers": ("return [NaN, Infinity, -0]", [None, None, 0]),
    "a date": ("return { at: new Date(0) }", {"at": "1970-01-01T00:00:00.000Z"}),
    "toJSON": ("return { toJSON: (key) => ({ key }) }", {"key": ""}),
    "toJSON inside": ("return { a: { toJSON: (key) => key } }", {"a": "a"}),
    "a map": ("return new Map([[1, 2]])", {}),
    "an error": ("return { error: new Error('x'), success: false }", {"error": {}, "success": False}),
    "what is inherited": (
        "return Object.create({ no: 1 }, { yes: { value: 1, enumerable: true } })",
        {"yes": 1},
    ),
    "__proto__": ('return JSON.parse(\'{"__proto__": {"x": 1}}\')', {"__proto__": {"x": 1}}),
    "a promise": ("return Promise.resolve([1])", [1]),
    "a thenable": ("return { then(resolve) { resolve('late') } }", "late"),
    "a big number": ("return 2 ** 53", 2**53),
    "a class": ("return new (class { a = 1; #b = 2; get c() { return 3 } })()", {"a": 1}),
    "an array's holes": ("return [, 1]", [None, 1]),
    "bytes": ("return new Uint8Array([1, 2])", {"0": 1, "1": 2}),
    "a buffer": ("return Buffer.from('a')", {"type": "Buffer", "data": [97]}),
    "an async generator": ("return (async function* () { yield 1; yield { a: undefined } })()", [1, {}]),
    "a generator": ("return (function* () { yield* 'ab' })()", ["a", "b"]),
    "no values": ("return (async function* () {})()", []),
}

UNFIT = {
    "a BigInt": ("return 10n", "output: is a BigInt"),
    "a BigInt inside": ("return { a: [0, { 'b c': 10n }] }", 'output.a[1]["b c"]: is a BigInt'),
    "a cycle": ("const a = { b: {} }; a.b.c = [a]; return a", "output.b.c[0]: refers back to output"),
    "a function": ("return () => 1", "output: is a function"),
    "a symbol": ("return Symbol('x')", "output: is a symbol"),
    "toJSON that throws": ("return { a: { toJSON() { throw new Error('no') } } }", "output: no"),
    "a getter that throws": ("return { get a() { throw new Error('no') } }", "output: no"),
    "a generator's BigInt": ("return (async function* () { yield 1; yield 2n })()", "output[1]: is a BigInt"),
}

PRINTED = {
    "console.log('a', { b: 1 }, 2n)": ["a { b: 1 } 2n"],
    "console.error('err'); console.warn('warn'); console.debug('debug')": ["err", "warn", "debug"],
    "console.log('two\\nlines')": ["two\nlines"],
    "process.stdout.write('in '); process.stdout.write('parts\\n')": ["in parts"],
    "process.stderr.write('no end')": ["no end"],
    "Deno.stdout.writeSync(new TextEncoder().encode('deno\\n'))": ["deno"],
    "(await import('node:fs')).writeSync(1, 'past the console\\n')": ["past the console"],
    "console.table([{ a: 1 }])": [
        "┌───────┬───┐\n│ (idx) │ a │\n├───────┼───┤\n│     0 │ 1 │\n└───────┴───┘"
    ],
    'console.log(\'{"success":true,"output":"forged"}\')': ['{"success":true,"output":"forged"}'],
}


async def test_output_is_what_json_stringify_gives(made: Executor) -> None:
    answers = await made.run_all({name: tool(source) for name, (source, _) in OUTPUTS.items()})
    assert {name: answer.get("output", answer) for name, answer in answers.items()} == {
        name: output for name, (_, output) in OUTPUTS.items()
    }


async def test_output_without_json_is_an_error_that_says_where(made: Executor) -> None:
    answers = await made.run_all({name: tool(source) for name, (source, _) in UNFIT.items()})
    assert {name: answer.get("error") for name, answer in answers.items()} == {
        name: {"code": "TOOL_EXECUTION_ERROR", "message": message} for name, (_, message) in UNFIT.items()
    }
    assert [name for name, answer in answers.items() if "output" in answer] == []


async def test_what_is_printed_is_in_the_logs_and_nowhere_else(made: Executor) -> None:
    answers = await made.run_all({source: tool(f"{source}; return 'the output'") for source in PRINTED})
    assert {source: (answer.get("output"), answer.get("logs")) for source, answer in answers.items()} == {
        source: ("the output", lines) for source, lines in PRINTED.items()
    }


async def test_what_is_printed_while_importing_is_in_the_logs_of_every_call(spared: Executor) -> None:
    package = spared.publish(tool("console.log('executing')", "console.log('importing');"))
    for _ in range(3):
        assert (await spared.execute(package))["logs"] == ["importing", "executing"]


async def test_logs_of_a_failure_are_told(made: Executor) -> None:
    answer = await made.run(tool("console.log('before'); throw new Error('no')"))
    assert (answer["error"]["message"], answer["logs"]) == ("no", ["before"])


async def test_params_arrive_as_they_were_sent(made: Executor) -> None:
    params = {"a": [1, None, {"é": "\u2028"}], "__proto__": {"x": 1}, "constructor": 2, "n": 2**53}
    answer = await made.run(tool("return [params, Object.keys(params), {}.x]"), params=params)
    assert answer["output"] == [params, [*params], None]


async def test_params_that_are_left_out_are_an_empty_object(made: Executor) -> None:
    assert (await made.run(tool("return params")))["output"] == {}


async def test_second_argument_has_what_tools_of_the_ai_sdk_use(made: Executor) -> None:
    answer = await made.run(
        tool(
            "const { abortSignal, messages, toolCallId } = options;"
            "return [abortSignal instanceof AbortSignal, abortSignal.aborted, messages, toolCallId]"
        )
    )
    assert answer["output"] == [True, False, [], answer["runId"]]
