"""Preparation of scripts: the outlines that both backends make, rewriting, and rewritten scripts that run in
Deno.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.protocols.toolscript.checkers import IMPORT, prepare

from hutch.protocols.toolscript.checker.checker import Checker
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.checker.rewrite import PreparedScript, rewrite
from hutch.protocols.toolscript.checker.source_text import Outline, SourceText
from hutch.sandbox import deno_binary

FLAGS = ("--no-prompt", "--quiet", "--no-config", "--no-lock", "--no-remote", "--no-npm", "--no-check")
RUN = """
import * as script from "./script.ts";
console.log(JSON.stringify(script.default));
"""


async def outline(checker: Checker, text: str, name: str = "script.ts") -> Outline:
    return (await checker.outlines({name: text}))[name]


def original_position(source: PreparedScript, line: int, column: int) -> tuple[int, int]:
    return source.original.position(source.original_index(line, column))


# --- outlines ---

RETURNS = {
    "return 1": True,
    "return": True,
    "if (x) { return 1 }": True,
    "for (const x of [1]) return x;": True,
    "try { return 1 } finally {}": True,
    "label: { return }": True,
    "switch (1) { case 1: return }": True,
    "#!/usr/bin/env hutch\n// é😀\nreturn 1": True,
    "function f() { return 1 }": False,
    "const f = () => { return 1 }; const g = function () { return 1 };": False,
    "class A { m() { return 1 } get x() { return 1 } constructor() { return } }": False,
    "class A { static m() { return 1 } x = () => { return 1 } }": False,
    "const o = { m() { return 1 }, get x() { return 1 } };": False,
    "async function* f() { return 1 }": False,
    "const s = 'return 1'; // return 1\n/* return */ const t = `return ${1}`; const r = /return/;": False,
    "const o = { return: 1 }; o.return; class A { return() {} }": False,
    "function f() {}\nreturn f;": True,
    "const f = (): number => { return 1 };\nif (f()) return f() as any satisfies unknown;": True,
    "type T = { return: string }; interface I { return(): void } let x: T<I>;": False,
    "await (async () => { return 1 })(); for await (const x of y) { if (x) return x }": True,
    "@d class A { @d accessor x = 1; static { } } return <any> new A();": True,
    "using x = f(); await using y = g(); return x!;": True,
    "enum E { A } return E.A;": True,
}


async def test_top_level_returns_are_found(checker: Checker) -> None:
    """One call outlines all cases, because Deno is slow to start."""
    files = {f"script{number}.ts": text for number, text in enumerate(RETURNS)}
    found = await checker.outlines(files)
    wrong = [files[name] for name, each in found.items() if bool(each.returns) != RETURNS[files[name]]]
    assert wrong == []


async def test_outline_has_statements_and_imports(checker: Checker) -> None:
    text = """#!/usr/bin/env hutch
// é😀 import "comment";
import a, { b as c } from "./a.ts"; import * as d from './d.js'
import type { T } from "./types.ts";
import "./effect.ts"; /* 😀 */ import json from "./x.json" with { type: "json" };
const s = 'import "string"', x = import("./dynamic.ts"), y = import(`./template.ts`), z = import(s);
type U = import("./type.ts").U | "./literal.ts";
require("./required.cjs"); f("./argument.ts"); x.import("./method.ts");
export { a } from "./again.ts"; export * from "./star.ts";
export const e = 1; export default 1; export type { T }; export interface I {}
"""
    found = await outline(checker, text)
    assert [text[each.start : each.end] for each in found.statements if each.kind == "import"] == [
        'import a, { b as c } from "./a.ts";',
        "import * as d from './d.js'",
        'import type { T } from "./types.ts";',
        'import "./effect.ts";',
        'import json from "./x.json" with { type: "json" };',
    ]
    assert [text[each.start : each.end] for each in found.statements if each.kind == "export"] == [
        'export { a } from "./again.ts";',
        'export * from "./star.ts";',
        "export const e = 1;",
        "export default 1;",
        "export type { T };",
        "export interface I {}",
    ]
    static = {each.text for each in found.specifiers if not each.dynamic}
    assert static == {
        *("./a.ts", "./d.js", "./types.ts", "./effect.ts", "./x.json", "./type.ts", "./again.ts", "./star.ts")
    }
    assert "./dynamic.ts" in {each.text for each in found.specifiers if each.dynamic}
    for each in found.specifiers:
        assert text[each.start : each.end].strip("\"'`") == each.text


async def test_specifiers_are_unescaped(native: Checker) -> None:
    found = await outline(
        native, r'import "./\u0061\x2ets"; import("./b" + ".ts"); import x = require("./c.ts");'
    )
    assert [each.text for each in found.specifiers] == ["./a.ts", "./c.ts"]


async def test_positions_in_one_function_and_in_a_fence_are_original(native: Checker) -> None:
    source = await prepare(native, "// a\nasync () => {\n  return 1;\n};\n", check=False)
    assert source.text == "// a\nexport default await (async () => {\n  return 1;\n})();\n"
    assert original_position(source, 2, 23) == (2, 1)
    assert (source.shift, source.returns) == ((2, 23, 22), True)
    for text in ("async (x) => 1", "() => 1; 2", "function f() {}\nf()"):
        assert (await prepare(native, text, check=False)).text == text
    assert (await prepare(native, "\n```js\nlet a\n```\n", check=False)).text == "\n\nlet a"


async def test_empty_file_has_an_empty_outline(checker: Checker) -> None:
    for text in ("", "\n", "// nothing\n"):
        assert await outline(checker, text) == Outline((), (), ())


async def test_large_script_is_parsed(native: Checker) -> None:
    text = "".join(f"const x{n}: number = {n}; function f{n}() {{ return '😀' }}\n" for n in range(5_000))
    found = await outline(native, f"{text}return x1;")
    assert len(found.statements) == 10_001
    assert found.returns == (len(text),)


# --- rewriting ---


def run(
    folder: Path, source: PreparedScript, files: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a prepared script in Deno, which prints the value that the script returns."""
    for name, text in {"script.ts": source.text, "main.ts": RUN, **(files or {})}.items():
        (folder / name).write_text(text)
    return subprocess.run(
        [deno_binary.find_deno(), "run", *FLAGS, "main.ts"],
        cwd=folder,
        env={"NO_COLOR": "1", "DENO_DIR": "/dev/null/deno"},
        capture_output=True,
        text=True,
        timeout=30,
    )


@pytest.mark.parametrize(
    ("script", "result"),
    [
        ("return { count: 42 }", {"count": 42}),
        ("return Promise.resolve([1])", [1]),
        ("#!/usr/bin/env hutch\n// first\nreturn 1 // last", 1),
        ("if (Math.random() > 2) return 1;\nelse { return 2 }", 2),
        ("const x: number = await Promise.resolve(3); return x as any;", 3),
        ("return typeof arguments + this;", "undefinedundefined"),
        ('return one; import { one } from "./one.ts"', 1),
        ('/* 😀 */ import { one, /* } from "x"; */\n  two // two\n} from "./one.ts"\nreturn one + two', 3),
        ('const a = f(); import { one\n// one\n} from "./one.ts"; function f() { return one } return a', 1),
        ('import type { T } from "./one.ts"; import { one } from "./one.ts"; const t: T = one; return t', 1),
        (
            "interface A { a: 1 } type B = A; enum E { X = 5 } class C { a = 1 } return [E.X, new C().a]",
            [5, 1],
        ),
        ("for await (const x of [1, 2]) if (x === 2) return x", 2),
        ("return", None),
        ("// @ts-nocheck\nconst x: number = 'x'; return x", "x"),
        ("const a = 1\r\nreturn a\r\n", 1),
    ],
)
async def test_default_export_is_the_returned_value(
    native: Checker, tmp_path: Path, script: str, result: Any
) -> None:
    files = {"one.ts": "export type T = number; export const one = 1, two = 2;"}
    source = await prepare(native, script, files=files, check="this" not in script)
    assert source.returns
    ended = run(tmp_path, source, files)
    assert ended.stderr == ""
    assert json.loads(ended.stdout.replace("undefined\n", "null")) == result


async def test_lines_and_most_columns_are_unchanged(native: Checker) -> None:
    script = f"{IMPORT}\nconst a = 1; /* 😀 */\nimport {{\n  x,\n}} from './x.ts';\nreturn a + x;\n"
    source = await prepare(native, script, check=False)
    before, after = script.split("\n"), source.text.split("\n")
    assert len(after) == len(before) + 2
    assert [line.strip() for line in after[3:6]] == ["", "", ""]
    assert after[2] == before[2]
    assert after[6] == before[6]
    for part in ("a = 1", "return", "x,", "'./x.ts'"):
        new = SourceText(source.text).position(source.text.index(part))
        assert original_position(source, *new) == SourceText(script).position(script.index(part))


async def test_thrown_error_has_the_original_line(native: Checker, tmp_path: Path) -> None:
    script = "const a = 1;\nif (a) {\n  throw new Error('thrown');\n}\nreturn 1;"
    ended = run(tmp_path, await prepare(native, script))
    assert ended.returncode == 1
    assert "script.ts:3:9" in ended.stderr
    first = await prepare(native, "throw new Error('first'); return 1;")
    ended = run(tmp_path, first)
    at = ended.stderr.split("script.ts:1:")[1].partition("\n")[0]
    assert original_position(first, 1, int(at.rstrip(")"))) == (1, 7)


@pytest.mark.parametrize(
    "script",
    [
        "return 1;",
        "\n// 😀\n  /* 😀 */ return 1;",
        "import './x.ts'; return 1;",
        "import './x.ts'\nconst a = 1; import './y.ts'; return a;",
    ],
)
async def test_shift_maps_moved_columns_back(native: Checker, script: str) -> None:
    source = await prepare(native, script, check=False)
    assert source.shift is not None
    line, first, by = source.shift
    for index in range(len(source.text)):
        at, column = SourceText(source.text).position(index)
        if at == line and column >= first:
            assert original_position(source, at, column) == (line, column - by)
        elif at < line or (at > line and at <= script.count("\n") + 1):
            assert original_position(source, at, column) == (at, column)
    assert (await prepare(native, "console.log()")).shift is None


async def test_positions_outside_of_the_text_are_clamped(native: Checker) -> None:
    source = await prepare(native, "return 1;\nconsole.log();")
    assert original_position(source, 1, 1) == (1, 1)
    assert original_position(source, 99, 99) == (2, 15)
    assert original_position(source, -1, -1) == (1, 1)


@pytest.mark.parametrize(
    "export",
    ["export const a = 1;", "export { a };", "export default 1;", 'export * from "x";', "export type T = 1;"],
)
async def test_script_that_returns_and_exports_is_rejected(native: Checker, export: str) -> None:
    with pytest.raises(InvalidScript) as refused:
        await prepare(native, f"const a = 1;\n{export}\nreturn 1;", check=False)
    [found] = refused.value.problems
    assert (found.line, found.column) == (2, 1)
    assert "both return and export, and this one has a return in line 3" in found.message


async def test_script_without_top_level_return_may_export(native: Checker) -> None:
    script = "export const f = () => { return 1 };\nexport default await Promise.resolve(f());\n"
    source = await prepare(native, script)
    assert source.text == script
    assert not source.returns


def test_script_without_return_is_unchanged() -> None:
    assert rewrite("script.ts", "const a = 1;", Outline((), (), ())).text == "const a = 1;"
