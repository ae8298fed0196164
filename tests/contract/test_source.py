"""Accepted forms of guest source, in JavaScript and TypeScript, and the positions of errors."""

from __future__ import annotations

import textwrap

import pytest
from tests.conftest import Run

from hutch.session.messages import WireError

FORMS = {
    "an expression": ("1 + 1", 2),
    "an expression with a semicolon": ("1 + 1;", 2),
    "an expression with semicolons": ("1 + 1;;\n;", 2),
    "an expression with a line comment": ("1 + 1 // two", 2),
    "an expression, a semicolon and a comment": ("1 + 1; /* two */ // really", 2),
    "a comment before an expression": ("/* two */\n// really\n1 + 1", 2),
    "an expression over lines": ("[1, 2, 3]\n  .map((n) => n * 2)\n  .join('-')", "2-4-6"),
    "a string that looks like a comment": ("'// no'", "// no"),
    "a template": ("`a${1}b`", "a1b"),
    "a sequence": ("1, 2, 3", 3),
    "an assignment": ("x = 5", 5),
    "an await": ("await Promise.resolve(4)", 4),
    "a promise": ("new Promise((resolve) => resolve(4))", 4),
    "a thenable": ("({ then(resolve) { resolve(4) } })", 4),
    "statements that end in an expression": ("const a = 1;\nlet b = 2;\na + b", 3),
    "statements that end in an await": ("const a = Promise.resolve(1);\nawait a;", 1),
    "statements that end in a call": ("function f(n) { return n * 2 }\nf(4)", 8),
    "statements that end in a declaration": ("1;\nconst a = 2;", None),
    "a body with return": ("const a = 1;\nreturn a + 1;", 2),
    "an early return": ("if (true) { return 'early' }\n'late'", "early"),
    "a body with return and await": ("const a = await Promise.resolve(1);\nreturn a + 1", 2),
    "a loop with await": (
        "let sum = 0;\nfor await (const n of [Promise.resolve(1), 2]) sum += n;\nreturn sum",
        3,
    ),
    "a lone return": ("return", None),
    "a named function": ("function main() { return 7 }", 7),
    "a named async function": ("async function main() {\n  return await Promise.resolve(7);\n}\n", 7),
    "a named function and a comment": ("// what it does\nfunction main() { return 7 } // done", 7),
    "an async arrow": ("async () => { return await Promise.resolve(8) }", 8),
    "an async arrow with a semicolon": ("async () => 8;", 8),
    "an async arrow in parentheses": ("(async () => 8)", 8),
    "a plain arrow": ("() => 9", 9),
    "a plain arrow in parentheses": ("(() => 9)", 9),
    "a function expression": ("(function () { return 9 })", 9),
    "a function that is called immediately": ("(async () => 10)()", 10),
    "a fence": ("```js\n1 + 1\n```", 2),
    "a fence without a language": ("```\nreturn 2\n```", 2),
    "a fence around an arrow": ("```javascript\nasync () => {\n  return 2\n}\n```\n", 2),
    "a fence with space around it": ("\n\n  ```ts\nconst a: number = 2;\nreturn a\n  ```  \n", 2),
    "a fence of typescript": ("```typescript\nconst n: number = 2; n\n```", 2),
    "backticks that are not a fence": ("const fence = '```';\nfence.length", 3),
    "nothing": ("", None),
    "space": (" \n\t ", None),
    "a comment": ("// nothing here", None),
    "a semicolon": (";", None),
    "a block": ("{a: 1}", None),
    "an object in parentheses": ("({a: 1})", {"a": 1}),
    "null": ("null", None),
    "a class": ("class A { static b = 1 }\nA.b", 1),
    "a regular expression": ("/a\\/b/.test('a/b')", True),
    "windows line ends": ("const a = 1;\r\nreturn a;\r\n", 1),
    "a byte order mark": ("\ufeff1 + 1", 2),
    "a line separator in a string": ("'a\u2028b'.length", 3),
    "astral characters": ("'\U0001f407'.length", 2),
    "optional chaining": ("const a = { b: null };\na.b?.c ?? 'none'", "none"),
    "labels": ("outer: for (;;) { for (;;) break outer }\n'out'", "out"),
}


@pytest.mark.parametrize(("code", "expected"), FORMS.values(), ids=FORMS.keys())
async def test_every_form_of_source_returns_its_value(run: Run, code: str, expected: object) -> None:
    result = await run(code)
    assert result.error is None
    assert result.result == expected


TYPESCRIPT = {
    "annotations": ("const a: number = 1; const f = (s: string): string => s; f('x') + a", "x1"),
    "interfaces and aliases": ("interface A { b: number }\ntype C = A | null;\nconst c: C = {b: 2};\nc.b", 2),
    "generics": ("function id<T>(x: T): T { return x }\nid<string>('g')", "g"),
    "as, satisfies and !": ("const a = 3 as unknown as number;\n(a satisfies number)!", 3),
    "an enum": ("enum Color { Red, Green = 5, Blue }\n[Color.Blue, Color[5]]", [6, "Green"]),
    "a const enum": ("const enum E { A = 'x' }\nE.A", "x"),
    "branches and loops": (
        (
            "let n: number = 0;\nif (n === 0) { n = 1 } else { n = 2 }\nwhile (n < 4) { n++ }\n"
            "try { switch (n) { case 4: { return n } } } finally { n = 0 }"
        ),
        4,
    ),
    "overloads and abstract classes": (
        (
            "function f(a: string): string;\nfunction f(a: any) { return a }\n"
            "abstract class A { abstract m(): number }\n"
            "class B extends A { override m(): number { return 1 } }\n"
            "f('x') + new B().m()"
        ),
        "x1",
    ),
    "imports of types": ('import type { X } from "x";\nconst x: X = 1;\nx', 1),
    "parameter properties": ("class P { constructor(readonly n: number) {} }\nnew P(6).n", 6),
    "a lone typed function": ("async function main(): Promise<number> { return 5 }", 5),
    "a lone typed arrow": ("async (): Promise<number> => 5", 5),
    "declare": ("declare const unknown_thing: string;\nreturn 1", 1),
    "a wrong type": ("const n: number = 'not checked';\nreturn n", "not checked"),
    "return with types": ("const xs: Array<number> = [1, 2];\nreturn xs.map((x: number) => x * 2)", [2, 4]),
}


@pytest.mark.parametrize(("code", "expected"), TYPESCRIPT.values(), ids=TYPESCRIPT.keys())
async def test_typescript_runs_without_a_type_check(run: Run, code: str, expected: object) -> None:
    result = await run(code)
    assert result.error is None
    assert result.result == expected


COMPILED = {
    "a namespace": ("namespace N {\n  export const x: number = 1;\n}\nreturn N.x", 1),
    "a namespace merged with an enum": (
        "enum E { A = 2 }\nnamespace E { export const twice = E.A * 2 }\nreturn E.twice",
        4,
    ),
    "a decorated class": (
        (
            "function twice(_: unknown, context: ClassDecoratorContext) {\n"
            "  context.addInitializer(function (this: any) { this.seen = context.kind });\n}\n"
            "@twice class A {}\nreturn (A as any).seen"
        ),
        "class",
    ),
    "a decorated method": (
        (
            "const shout = (method: () => string, _: unknown) => function () { return method() + '!' };\n"
            "class A { @shout hello(): string { return 'hello' } }\nreturn new A().hello()"
        ),
        "hello!",
    ),
    "in a fence, with awaits": (
        "```ts\nnamespace N { export const x = '\u00fc\U0001f407' }\nreturn await Promise.resolve(N.x)\n```",
        "\u00fc\U0001f407",
    ),
    "without a return": ("namespace N { export const x = 1 }\nN.x", None),
}


@pytest.mark.parametrize("engine", ["deno"])
@pytest.mark.parametrize(("code", "expected"), COMPILED.values(), ids=COMPILED.keys())
async def test_typescript_that_needs_a_compiler_runs_in_deno_as_a_body(
    run: Run, code: str, expected: object
) -> None:
    result = await run(code)
    assert result.error is None
    assert result.result == expected


@pytest.mark.parametrize("engine", ["quickjs"])
async def test_typescript_that_needs_a_compiler_is_a_syntax_error_in_quickjs_that_suggests_deno(
    run: Run,
) -> None:
    for code in ("const a = 1;\nnamespace N { export const x = a }\nreturn N.x", "\n@(() => {}) class A {}"):
        result = await run(code)
        assert result.error is not None
        assert (result.error.name, result.error.line) == ("SyntaxError", 2)
        assert "; the deno engine compiles namespaces and decorators (line 2, " in str(result.error)
    other = await run("let a = ;")
    assert other.error is not None
    assert "deno" not in other.error.message


@pytest.mark.parametrize("engine", ["deno"])
@pytest.mark.parametrize(
    ("code", "line", "column"),
    [
        ("namespace N { export const x = 1 } N.x.y.z", 1, 42),
        ("namespace N {\n  export function f(): never { throw new Error('here') }\n}\nreturn N.f()", 2, 38),
        ("namespace N { export const x = 1 }\nawait 0;\nthrow new Error('here')", 3, 7),
    ],
)
async def test_error_in_compiled_typescript_names_its_position_as_written(
    run: Run, code: str, line: int, column: int
) -> None:
    result = await run(code)
    assert result.error is not None
    assert (result.error.line, result.error.column) == (line, column)


SYNTAX_ERRORS = {
    "on the first line": ("const = 1", 1, 7),
    "on a later line": ("const a = 1;\nreturn a +;\n", 2, 11),
    "in a fence": ("```js\nconst a = 1;\nreturn a +;\n```", 3, 11),
    "at the end": ("if (true) {", 1, 12),
    "in typescript": ("const a: number = 1;\nconst b: = 2;", 2, 10),
}


@pytest.mark.parametrize(("code", "line", "column"), SYNTAX_ERRORS.values(), ids=SYNTAX_ERRORS.keys())
async def test_syntax_error_names_line_and_column(run: Run, code: str, line: int, column: int) -> None:
    result = await run(code)
    assert not result.ok
    assert result.error is not None
    assert (result.error.code, result.error.name) == ("runtime_error", "SyntaxError")
    assert (result.error.line, result.error.column) == (line, column)
    assert str(result.error) == f"SyntaxError: {result.error.message} (line {line}, column {column})"
    # Hosts that do not know the fields `line` and `column` find the position in the message.
    assert WireError.of(result.error).message == f"{result.error.message} ({line}:{column})"


@pytest.mark.parametrize("engine", ["quickjs"])
@pytest.mark.parametrize(
    ("code", "line", "column"),
    [("import.meta", 1, 8), ("const a: number = 1;\n  return a + import.meta.url", 2, 21)],
)
async def test_syntax_error_that_only_the_engine_detects_has_a_position(
    run: Run, code: str, line: int, column: int
) -> None:
    result = await run(code)
    assert result.error is not None
    assert (result.error.code, result.error.name) == ("runtime_error", "SyntaxError")
    assert result.error.message == "import.meta only valid in module code"
    assert (result.error.line, result.error.column) == (line, column)


async def test_export_is_refused_with_a_hint_to_return(run: Run) -> None:
    result = await run("const a = 1;\nexport default a;")
    assert result.error is not None
    assert "`return`" in result.error.message
    assert result.error.line == 2


RUNTIME_ERRORS = {
    "in an expression": ("null.x", 1),
    "after a static import's line": ("const a = 1;\n\nthrow new Error('here')", 3),
    "in a function": ("function f() {\n  throw new TypeError('here');\n}\n\nf();", 2),
    "after an await": ("await 0;\nawait 0;\nthrow new Error('here');", 3),
    "in a lone arrow": ("async () => {\n  const a = undefined;\n  return a.b;\n}", 3),
    "in a fence": ("```js\n\nthrow new Error('here')\n```", 3),
    "in a callback": ("[1].map((x) => {\n  throw new RangeError('here')\n})", 2),
    "after erased types": ("interface A {\n  b: number\n}\nconst a: A | null = null;\na!.b", 5),
    "after an enum": ("enum A {\n  B,\n  C,\n}\nconst a = A.B;\nthrow new Error('here')", 6),
    "in a last expression": ("const a = 1;\n\nnope(a)", 3),
}


@pytest.mark.parametrize(("code", "line"), RUNTIME_ERRORS.values(), ids=RUNTIME_ERRORS.keys())
async def test_error_names_the_line_of_the_guests_own_source(run: Run, code: str, line: int) -> None:
    result = await run(code)
    assert result.error is not None
    assert result.error.code == "runtime_error"
    assert result.error.line == line


COLUMNS = {
    "of a last expression": ("      missing.thing", 1, 7),
    "of a statement": ("let a;  missing.thing;\nreturn a", 1, 9),
    "after erased types": ("const a: Array<number> = [1]; missing(a as unknown);\nreturn a", 1, 31),
    "in an expression after erased types": (
        "const a: number = 1;\nconst b = (a as number) + missing;",
        2,
        27,
    ),
}


@pytest.mark.parametrize(("code", "line", "column"), COLUMNS.values(), ids=COLUMNS.keys())
async def test_columns_are_those_of_the_source_as_written(
    run: Run, code: str, line: int, column: int
) -> None:
    result = await run(code)
    assert result.error is not None
    assert (result.error.line, result.error.column) == (line, column)


THROWN = {
    "an error": ("throw new TypeError('why')", "TypeError", "why"),
    "a string": ("throw 'just text'", None, "just text"),
    "an object": ("throw { a: 1 }", None, '{"a":1}'),
    "undefined": ("throw undefined", None, "undefined"),
    "null": ("throw null", None, "null"),
    "a rejection": ("await Promise.reject(new RangeError('late'))", "RangeError", "late"),
    "a custom error class": (
        "class Mine extends Error { name = 'Mine' }\nthrow new Mine('m')",
        "Mine",
        "m",
    ),
    "a symbol": ("throw Symbol('s')", None, "Symbol(s)"),
    "an object without a prototype": ("throw Object.create(null)", None, "{}"),
}


@pytest.mark.parametrize(("code", "name", "message"), THROWN.values(), ids=THROWN.keys())
async def test_thrown_value_is_reported_as_a_runtime_error(
    run: Run, code: str, name: str | None, message: str
) -> None:
    result = await run(code)
    assert result.error is not None
    assert (result.error.code, result.error.name, result.error.message) == ("runtime_error", name, message)


async def test_source_of_a_megabyte_runs(run: Run) -> None:
    result = await run("let n = 0;\n" + "n += 1; // one more\n" * 60_000 + "return n")
    assert result.error is None
    assert result.result == 60_000


async def test_source_that_nests_too_deeply_is_an_error(run: Run) -> None:
    result = await run("(" * 50_000 + "1" + ")" * 50_000)
    assert result.error is not None
    assert result.error.code == "runtime_error"


async def test_typical_model_answer_runs(run: Run) -> None:
    code = textwrap.dedent(
        """
        ```typescript
        // Adds up what is there.
        interface Item { name: string; price: number }

        async function main(): Promise<{ total: number }> {
          const items: Item[] = [{ name: "a", price: 1.5 }, { name: "b", price: 2 }];
          const total = items.reduce((sum, { price }) => sum + price, 0);
          console.log("total", total);
          return { total };
        }
        ```
        """
    )
    result = await run(code)
    assert result.error is None
    assert (result.result, result.logs) == ({"total": 3.5}, ["total 3.5"])


@pytest.mark.parametrize("engine", ["quickjs"])
@pytest.mark.parametrize(
    "code", ['import { join } from "node:path";\njoin("a", "b")', 'await import("node:path")']
)
async def test_failed_import_in_quickjs_suggests_the_deno_engine(run: Run, code: str) -> None:
    result = await run(code)
    assert result.error is not None
    assert result.error.message.startswith("could not load module 'node:path': ")
    assert result.error.message.endswith("the deno engine has those of node:")


@pytest.mark.parametrize("engine", ["deno"])
async def test_denos_advice_about_permission_flags_is_not_shown_to_guests(run: Run) -> None:
    result = await run("await fetch('http://example.com')")
    assert result.error is not None
    assert result.error.message == (
        'Requires net access to "example.com:80"; guests have no permissions, only tools'
    )


@pytest.mark.parametrize("engine", ["deno"])
async def test_static_imports_of_node_modules_work_in_deno(run: Run) -> None:
    code = (
        'import path, { join as joinPaths } from "node:path";\n'
        'import * as all from "node:path";\n\n'
        'return [path.basename("/a/b"), joinPaths("a", "b"), all.dirname("/a/b")];'
    )
    result = await run(code)
    assert result.error is None
    assert result.result == ["b", "a/b", "/a"]


@pytest.mark.parametrize("code", ["def f(x):\n    return x\nf(1)", "x = 5\nprint(x)"])
async def test_python_is_refused_with_the_languages_that_run(run: Run, code: str) -> None:
    error = (await run(code)).error
    assert error is not None
    assert error.message.endswith("; this looks like Python; code has to be JavaScript or TypeScript")


async def test_missing_require_is_explained(run: Run, engine: str) -> None:
    error = (await run('const fs = require("fs");')).error
    assert error is not None
    hint = "require is not defined; guests have no CommonJS modules and no packages, only tools"
    assert error.message.startswith(hint)
    assert ('await import("node:' in error.message) == (engine == "deno")


@pytest.mark.parametrize("engine", ["quickjs"])
async def test_globals_of_node_and_browsers_are_explained(run: Run) -> None:
    for code, hint in {
        "process.env": 'engine "deno" has process',
        "document.title": "guests do not run in a browser",
        "tools.x()": "this run was given no tools",
    }.items():
        error = (await run(code)).error
        assert error is not None
        assert hint in error.message
