"""Outputs and logs of tools."""

from __future__ import annotations

from typing import Any

from tests.contract.tpmjs.harness import ToolServer, tool

OUTPUTS: dict[str, tuple[str, Any]] = {
    "undefined": ("return undefined", None),
    "nothing": ("", None),
    "null": ("return null", None),
    "false": ("return false", False),
    "text": ("return 'é\\u2028\\n\"'", 'é\u2028\n"'),
    "text that looks like a response": ("return '{\"success\":false}'", '{"success":false}'),
    "nested undefined": ("return { a: undefined, b: [undefined], c: 1 }", {"b": [None], "c": 1}),
    "nested functions": ("return { a() {}, b: [() => 1], c: 1 }", {"b": [None], "c": 1}),
    "NaN and Infinity": ("return [NaN, Infinity, -0]", [None, None, 0]),
    "a date": ("return { at: new Date(0) }", {"at": "1970-01-01T00:00:00.000Z"}),
    "toJSON": ("return { toJSON: (key) => ({ key }) }", {"key": ""}),
    "toJSON inside": ("return { a: { toJSON: (key) => key } }", {"a": "a"}),
    "a map": ("return new Map([[1, 2]])", {}),
    "an error": ("return { error: new Error('x'), success: false }", {"error": {}, "success": False}),
    "inherited properties": (
        "return Object.create({ no: 1 }, { yes: { value: 1, enumerable: true } })",
        {"yes": 1},
    ),
    "__proto__": ('return JSON.parse(\'{"__proto__": {"x": 1}}\')', {"__proto__": {"x": 1}}),
    "a promise": ("return Promise.resolve([1])", [1]),
    "a thenable": ("return { then(resolve) { resolve('late') } }", "late"),
    "a big number": ("return 2 ** 53", 2**53),
    "a class": ("return new (class { a = 1; #b = 2; get c() { return 3 } })()", {"a": 1}),
    "holes in an array": ("return [, 1]", [None, 1]),
    "bytes": ("return new Uint8Array([1, 2])", {"0": 1, "1": 2}),
    "a buffer": ("return Buffer.from('a')", {"type": "Buffer", "data": [97]}),
    "an async generator": ("return (async function* () { yield 1; yield { a: undefined } })()", [1, {}]),
    "a generator": ("return (function* () { yield* 'ab' })()", ["a", "b"]),
    "generator without values": ("return (async function* () {})()", []),
}

NOT_JSON = {
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


async def test_output_is_the_result_of_json_stringify(tool_server: ToolServer) -> None:
    answers = await tool_server.run_all({name: tool(source) for name, (source, _) in OUTPUTS.items()})
    assert {name: answer.get("output", answer) for name, answer in answers.items()} == {
        name: output for name, (_, output) in OUTPUTS.items()
    }


async def test_output_that_is_not_json_is_an_error_with_its_path(tool_server: ToolServer) -> None:
    answers = await tool_server.run_all({name: tool(source) for name, (source, _) in NOT_JSON.items()})
    assert {name: answer.get("error") for name, answer in answers.items()} == {
        name: {"code": "TOOL_EXECUTION_ERROR", "message": message} for name, (_, message) in NOT_JSON.items()
    }
    assert [name for name, answer in answers.items() if "output" in answer] == []


async def test_printed_text_is_in_the_logs_only(tool_server: ToolServer) -> None:
    answers = await tool_server.run_all(
        {source: tool(f"{source}; return 'the output'") for source in PRINTED}
    )
    assert {source: (answer.get("output"), answer.get("logs")) for source, answer in answers.items()} == {
        source: ("the output", lines) for source, lines in PRINTED.items()
    }


async def test_text_printed_during_import_is_in_the_logs_of_every_call(spare_server: ToolServer) -> None:
    package = spare_server.publish(tool("console.log('executing')", "console.log('importing');"))
    for _ in range(3):
        assert (await spare_server.execute(package))["logs"] == ["importing", "executing"]


async def test_failure_has_its_logs(tool_server: ToolServer) -> None:
    answer = await tool_server.run(tool("console.log('before'); throw new Error('no')"))
    assert (answer["error"]["message"], answer["logs"]) == ("no", ["before"])


async def test_params_are_passed_unchanged(tool_server: ToolServer) -> None:
    params = {"a": [1, None, {"é": "\u2028"}], "__proto__": {"x": 1}, "constructor": 2, "n": 2**53}
    answer = await tool_server.run(tool("return [params, Object.keys(params), {}.x]"), params=params)
    assert answer["output"] == [params, [*params], None]


async def test_missing_params_are_an_empty_object(tool_server: ToolServer) -> None:
    assert (await tool_server.run(tool("return params")))["output"] == {}


async def test_second_argument_has_the_options_of_the_ai_sdk(tool_server: ToolServer) -> None:
    answer = await tool_server.run(
        tool(
            "const { abortSignal, messages, toolCallId } = options;"
            "return [abortSignal instanceof AbortSignal, abortSignal.aborted, messages, toolCallId]"
        )
    )
    assert answer["output"] == [True, False, [], answer["runId"]]
