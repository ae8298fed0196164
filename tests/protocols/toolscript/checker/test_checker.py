"""Type checks with the native compiler and with Deno."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.protocols.toolscript.checkers import (
    DECLARATIONS,
    IMPORT,
    deno_checker,
    find_problems,
    prepare,
    running_checker,
)
from tests.sandbox import jails

from hutch.protocols.toolscript.checker.checker import Checker
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript, ScriptProblem, format_problems
from hutch.protocols.toolscript.checker.tsc import TscPool, TscUnavailable
from hutch.sandbox.jail import cgroup
from hutch.sandbox.jail.memory_meter import process_tree

WRONG = f"""{IMPORT}
const found = await tools.github.listIssues();
await tools.github.createIssue({{ titel: found[0].title }});
"""
SLOW = """
type Deep<T, N extends any[] = []> = N["length"] extends 900 ? T : Deep<[T, T], [...N, 0]>;
type Many = `${Letter}${Letter}${Letter}${Letter}`;
type Letter = "a" | "b" | "c" | "d" | "e" | "f" | "g" | "h" | "i" | "j" | "k" | "l" | "m" | "n" | "o" | "p";
function wrap<T>(x: T): [T, T, T, T] { return [x, x, x, x] }
const deep: Deep<1> = 1, many: Many = 1;
"""
SIGNATURE = (
    '(args: { title: string; body?: string; labels?: ("bug" | "idea")[]; }): Promise<{ number: number; }>'
)


# --- both backends ---


async def test_correct_script_is_unchanged(checker: Checker) -> None:
    script = f"""{IMPORT}
        import {{ join }} from "node:path";
        import data from "./data.json" with {{ type: "json" }};
        import {{ twice }} from "./lib/twice.ts";
        const issue = await tools.github.createIssue({{ title: join("a", "b"), labels: ["bug"] }});
        const counts: number[] = [issue.number, twice(data.count)];
        for await (const each of [Promise.resolve(1)]) counts.push(each);
        console.log(counts, Deno.args, new URL("http://localhost/").host, await fetch("http://localhost/"));
        using held = {{ [Symbol.dispose]() {{}} }};
        process.exit(Buffer.from("x").length);
    """
    files = {
        "data.json": '{"count": 1}',
        "lib/twice.ts": "export function twice(x: number): number { return x + x; }",
    }
    source = await prepare(checker, script, files=files)
    assert source.text == script
    assert not source.returns


async def test_tools_need_no_import(native: Checker) -> None:
    script = """
        const issue = await tools.github.createIssue({ title: "x" });
        try { await tools.github.listIssues(); } catch (e) { if (!(e instanceof ToolError)) throw e; }
        const twice: ToolError[] = [], n: number = issue.number;
    """
    assert await find_problems(native, script) == []
    [found] = await find_problems(native, script.replace("title", "titel"))
    assert (found.line, found.code) == (2, 2561)
    assert (
        await find_problems(native, 'const tools = 1, ToolError = "x"; console.log(tools, ToolError);') == []
    )


async def test_server_without_tools_before_it_is_corrected(native: Checker) -> None:
    declarations = "export interface Tools {\n  github: any;\n}\nexport declare const tools: Tools;\n"
    [found] = await native.check('return await github.createIssue({ title: "x" });', declarations)
    assert found.message == "Cannot find name 'github'. Did you mean tools.github?"
    [found] = await native.check("return gitlab;", declarations)
    assert "tools." not in found.message


async def test_type_error(native: Checker) -> None:
    """Both backends report the file, line, column and length, with TypeScript's message."""
    [found] = await find_problems(native, WRONG)
    assert (found.file, found.line, found.column, found.length) == ("script.ts", 4, 34, 5)
    assert found.code == 2561
    assert "'titel' does not exist" in found.message
    assert found.source_line == "await tools.github.createIssue({ titel: found[0].title });"


async def test_error_in_an_imported_file_names_that_file(native: Checker) -> None:
    files = {"lib/one.ts": "// é😀\nexport const one: number = 'one';\n"}
    [found] = await find_problems(
        native, 'import { one } from "./lib/one.ts"; console.log(one);', files=files
    )
    assert (found.file, found.line, found.column, found.code) == ("lib/one.ts", 2, 14, 2322)


async def test_syntax_error(checker: Checker) -> None:
    [found] = await find_problems(checker, "const a = 1;\nconst b = ;\nconst c: number = 'x';")
    assert (found.file, found.line, found.column) == ("script.ts", 2, 11)
    assert found.message.startswith("Expression expected")


async def test_errors_of_a_rewritten_script_have_original_positions(native: Checker) -> None:
    script = (
        "/* 😀 */ const first: number = 'x';\n"
        f"{IMPORT}"
        "if (first) return tools.github.createIssue({});\n"
        "import { two } from './two.ts';\n"
        "return two.toFixed();\n"
    )
    found = await find_problems(native, script, files={"two.ts": "export const one = 1;"})
    assert [(each.line, each.column) for each in found] == [(1, 16), (3, 44), (4, 10)]
    assert [each.source_line for each in found] == [script.split("\n")[at] for at in (0, 2, 3)]


async def test_deno_reports_the_same_problems_as_the_compiler(native: Checker, deno_only: Checker) -> None:
    """One script contains all kinds of problems, because Deno takes seconds for each script."""
    script = """
        import compiler from "./tsconfig.json" with { type: "json" };
        import deno from "./deno.json" with { type: "json" };
        /* 😀 */ const first: number = 'x', all: [string, number] = [compiler.files, deno.imports];
        const strict: number = null;
        const issue = await tools.github.createIssue({ titel: "x" });
        try { await tools.github.listIssues(); } catch (e) { if (!(e instanceof ToolError)) throw e; }
        if (first) return tools.github.createIssue({});
        import { one, two } from "./lib/one.ts";
        return [one, two, issue.number, all, strict];
    """
    files = {
        "lib/one.ts": "// é😀\nexport const one: number = 'one';\n",
        "tsconfig.json": '{"files": "x", "compilerOptions": {"strict": false}}',
        "deno.json": '{"imports": 1, "compilerOptions": {"strict": false}}',
        "package.json": '{"name": "y", "dependencies": {"zod": "1"}}',
    }
    found = await find_problems(deno_only, script, files=files)
    assert sorted((each.file, each.line) for each in found) == [
        ("lib/one.ts", 2),
        *(("script.ts", line) for line in (4, 5, 6, 8, 9)),
    ]
    expected = await find_problems(native, script, files=files)
    assert _places(found) == _places(expected)


def _places(problems: list[ScriptProblem]) -> list[tuple[object, ...]]:
    return sorted((each.file, each.line, each.column, each.length, each.source_line) for each in problems)


@pytest.mark.parametrize("module", ["npm:zod", "https://example.com/x.ts", "zod", "/etc/hostname"])
async def test_remote_modules_are_rejected_with_our_message(native: Checker, module: str) -> None:
    for script in (f'import x from "{module}"; console.log(x);', f"import '{module}';"):
        [found] = await find_problems(native, script)
        assert "toolscript" in found.message
        assert (found.line, found.length) == (1, len(module) + 2)


async def test_npm_modules_are_rejected_with_our_message_by_deno_too(deno_only: Checker) -> None:
    [found] = await find_problems(deno_only, 'import x from "npm:zod"; console.log(x);')
    assert found.message.startswith("npm: imports are not available in toolscripts")


# --- formatting ---


async def test_error_shows_source_line_mark_and_tool_signature(native: Checker) -> None:
    [found] = await find_problems(native, f'{IMPORT}await tools.github.createIssue({{ titel: "x" }});')
    head, *rest = str(found).split("\n")
    assert head.startswith("error TS2561: Object literal may only specify known properties, but 'titel'")
    assert rest == [
        "  script.ts:2:34",
        '    2 | await tools.github.createIssue({ titel: "x" });',
        "      |                                  ^^^^^",
        f"  tools.github.createIssue{SIGNATURE}",
    ]


@pytest.mark.parametrize(
    "call",
    [
        "tools.github.createIssue(1)",
        "tools.github.createIssue()",
        "tools.github.createIssue({ title: 1 })",
        'tools["github"]["createIssue"]({})',
        "const { github } = tools; github.createIssue({})",
        "const { github: { createIssue } } = tools; createIssue({})",
        'await Promise.all([tools.github.createIssue({ title: "x", labels: ["x"] })])',
        "tools.github\n  .createIssue({ body: JSON.stringify(1) })",
    ],
)
async def test_signature_is_shown_for_every_form_of_call(native: Checker, call: str) -> None:
    [found] = await find_problems(native, IMPORT + call)
    assert found.signature is not None
    assert found.signature.endswith(f"createIssue{SIGNATURE}") or found.signature.endswith(f'"]{SIGNATURE}')


@pytest.mark.parametrize(
    "call",
    [
        "console.log(1).x",
        'tools.github.createIssue({ title: "x".repeat("y") })',
        "const n: number = await tools.github.listIssues()",
        "tools.github.nothing({})",
        "function createIssue(x: number) {} createIssue('x')",
    ],
)
async def test_other_errors_show_no_signature(native: Checker, call: str) -> None:
    [found] = await find_problems(native, IMPORT + call, strict=True)
    assert found.signature is None


async def test_messages_contain_no_host_paths(native: Checker) -> None:
    script = 'import { x } from "./x.ts";\nimport y from "./y.json";\nx; y; import { z } from "toolscript"; z'
    shown = format_problems(
        await find_problems(native, script, files={"x.ts": "const x = 1;", "y.json": "{"})
    )
    assert """Module '"toolscript"' has no exported member 'z'""" in shown
    # The messages contain no paths of the compiler's virtual file system.
    assert not [word for word in shown.split() if word.strip("'\"").startswith("/")]


async def test_control_characters_are_replaced(native: Checker) -> None:
    [found] = await find_problems(native, 'const n: number = "\x1b[2J"; // \x07')
    assert "\x1b" not in str(found)
    assert "\x07" not in str(found)


async def test_long_lines_and_many_errors_are_cut(native: Checker) -> None:
    many = "".join(f"const x{number}: number = 'x'; " for number in range(1_500))
    shown = format_problems(await find_problems(native, f"{many}// 漢字"))
    assert shown.endswith("… and 980 more.")
    assert max(map(len, shown.split("\n"))) < 250


async def test_mark_is_aligned_after_wide_characters(native: Checker) -> None:
    [found] = await find_problems(native, '/* 漢字 😀 e\u0301 */ const n: number = "x";')
    _, _, source, mark = str(found).split("\n")
    # On a terminal, three characters of the line take two columns each, and one character takes none.
    assert mark.index("^") == source.index("n: number") + 3 - 1


# --- type errors ---


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("const n: number = null;", 2322),
        ("function f(x) { return x } f(1);", 7006),
        ("try { } catch (e) { e.message }", 18046),
        ("class A { m() {} } class B extends A { m() {} } new B();", 4114),
        ("Deno.nothing", 2339),
        ("document.title", 2584),
        ("console.log(unknownName)", 2304),
        ("require('fs')", 2591),
    ],
)
async def test_strict_checks_know_denos_globals(native: Checker, script: str, code: int) -> None:
    assert [each.code for each in await find_problems(native, script, strict=True)] == [code]


@pytest.mark.parametrize(
    "script",
    [
        "const bytes = new Uint8Array(1).toBase64(); console.log(bytes);",
        "const s = new Set([1]).union(new Set([2])); console.log([...s.values().map((x) => x + 1)]);",
        "setTimeout(() => {}, 1); queueMicrotask(() => {}); structuredClone(1); crypto.randomUUID();",
        "const r: Response = new Response('x'); await r.json(); new AbortController().signal; atob('x');",
        "await Deno.readTextFile('x').catch(() => {}); Deno.exit(3);",
        "import fs, { readFile } from 'node:fs/promises'; fs.x; readFile;",
        "import { type Socket, connect } from 'node:net'; let s: Socket = connect(1);",
        "import * as net from 'node:net'; import type fs from 'node:fs'; let s: net.Socket, t: fs.Stats;",
        "const t = setTimeout(() => {}, 1); t.unref(); clearTimeout(t);",
        "const n: number = setInterval((x: string) => x, 1, 'x');",
        "enum E { A } console.log(E.A); namespace N { export const x = 1 } N.x;",
        "// @ts-expect-error - on purpose\nconst n: number = 'x';",
        "console.log(import.meta.url, import.meta.main);",
        "return 1; console.log('never');",
    ],
)
async def test_valid_deno_code_passes(native: Checker, script: str) -> None:
    assert await find_problems(native, script) == []


async def test_javascript_files_are_checked_only_with_ts_check(native: Checker) -> None:
    untyped = {"a.js": "export const a = 1; a.toFixed('x').y"}
    typed = {"a.js": "// @ts-check\nexport const a = 1; a.y"}
    assert await find_problems(native, 'import { a } from "./a.js"; a;', files=untyped) == []
    assert [
        each.file for each in await find_problems(native, 'import { a } from "./a.js"; a;', files=typed)
    ] == ["a.js"]
    assert await find_problems(native, "const a = 1; a.y", name="script.js") == []


async def test_compiler_configuration_files_are_ignored(native: Checker) -> None:
    script = """
        import compiler from "./tsconfig.json" with { type: "json" };
        import deno from "./deno.json" with { type: "json" };
        import node from "./package.json" with { type: "json" };
        const all: [string, number, string] = [compiler.files, deno.imports, node.name];
        const n: number = null;
    """
    files = {
        "tsconfig.json": '{"files": "x", "compilerOptions": {"strict": false}}',
        "deno.json": '{"imports": 1, "compilerOptions": {"strict": false}}',
        "package.json": '{"name": "y", "dependencies": {"zod": "1"}}',
    }
    assert [(each.line, each.code) for each in await find_problems(native, script, files=files)] == [
        (6, 2322)
    ]


async def test_checks_do_not_affect_each_other(native: Checker) -> None:
    declares = "declare global { var shared: number }\nexport const x = 1;"
    assert await find_problems(native, declares, files={"other.ts": "export {}"}) == []
    assert [each.code for each in await find_problems(native, "shared")] == [2304]
    [found] = await find_problems(native, 'import "./other.ts"')
    assert found.code == 2882


async def test_changed_declarations_apply_immediately(native: Checker) -> None:
    script = f"{IMPORT}await tools.github.listIssues({{ state: 'all' }});"
    assert [each.code for each in await find_problems(native, script)] == [2322]
    assert await native.check(script, DECLARATIONS.replace('"closed"', '"closed" | "all"')) == []
    assert [each.code for each in await native.check(script, "export declare const tools: {};")] == [2339]


# --- without type checks ---


async def test_unchecked_script_is_only_parsed(native: Checker) -> None:
    source = await prepare(native, "const n: number = 'x'; return n;", check=False)
    assert source.returns
    with pytest.raises(InvalidScript, match="Expression expected"):
        await prepare(native, "return ;;; const a = ;", check=False)


async def test_invalid_unicode_is_rejected(native: Checker) -> None:
    [found] = await find_problems(native, "const a = '\udc80'")
    assert found.message == "The script cannot be checked: it is not UTF-8 text."


# --- speed ---


async def test_unchanged_script_is_not_checked_again(
    native: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await prepare(native, "return 1; // unchanged")
    monkeypatch.setattr(native, "_backend", None)
    assert await prepare(native, "return 1; // unchanged") is first


async def test_fifty_concurrent_checks_succeed(native: Checker) -> None:
    scripts = [
        f"{IMPORT}const n{number}: {'number' if number % 2 else 'string'} = {number};" for number in range(50)
    ]
    found = await asyncio.gather(*(find_problems(native, script) for script in scripts))
    assert [bool(each) for each in found] == [number % 2 == 0 for number in range(50)]


async def test_changed_script_with_500_tools_is_checked_quickly(native: Checker) -> None:
    """The target is 0.1 s. The limit here is higher, because the machine may be busy."""
    tools = "".join(
        f"  tool{number}(args: {{ a: string; b?: number[]; c: 'x' | 'y' }}): Promise<{{ d: string }}>;\n"
        for number in range(500)
    )
    declarations = f"export declare const tools: {{ server: {{\n{tools}}} }};"
    script = f"{IMPORT}console.log((await tools.server.tool499({{ a: 'x', c: 'x' }})).d);"
    assert await native.check(script, declarations) == []
    seconds = []
    for number in range(3):
        began = time.monotonic()
        assert await native.check(f"{script} // changed {number}", declarations) == []
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 1.0


# --- failures ---


def _processes() -> set[int]:
    return {pid for pid in process_tree(os.getpid()) if _command(pid).endswith("/tsc")}


def _groups(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
    except OSError:
        return ""


@pytest.mark.parametrize("where", [jails.container, jails.process])
async def test_slow_check_times_out_and_leaves_no_process(where: Callable[[], jails.Jail]) -> None:
    before = _processes()
    async with running_checker(where(), seconds=0.3) as checker:
        [found] = await find_problems(checker, SLOW * 2 + "return 1;")
        assert found.message == "The script cannot be checked: the check takes longer than 0.3 s."
        assert _processes() == before
        # Try several times. On a busy machine, 0.3 s may be too short for the first check of a compiler
        # process.
        attempts = [await find_problems(checker, f"return {number};") for number in range(5)]
        assert [] in attempts
        assert _processes() > before
    assert _processes() == before


async def _kill_busy(checks: asyncio.Task[list[ScriptProblem]], times: int) -> list[ScriptProblem]:
    """Kills the first `times` compiler processes that are busy. Returns the problems that are found."""
    while not checks.done():
        for pid in _processes():
            if times > 0 and _busy(pid):
                os.kill(pid, signal.SIGKILL)
                times -= 1
        await asyncio.sleep(0.01)
    return checks.result()


async def test_killed_compiler_is_replaced(native: Checker) -> None:
    found = await _kill_busy(asyncio.create_task(find_problems(native, SLOW)), 1)
    assert [each.code for each in found] == [2322, 2322]
    for pid in _processes():
        os.kill(pid, signal.SIGKILL)
    assert await find_problems(native, "// killed while it did nothing") == []


async def test_script_that_kills_the_compiler_twice_is_rejected(native: Checker) -> None:
    [found] = await _kill_busy(asyncio.create_task(find_problems(native, f"{SLOW} // dies")), 1_000)
    assert found.message.startswith(
        "The script cannot be checked: it is nested too deeply, or the check takes"
    )
    assert await find_problems(native, "// another script") == []


def _busy(pid: int) -> bool:
    """Returns whether a process has used more CPU time than a start needs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[11]) + int(fields[12]) > 40


async def test_checker_works_after_a_cancelled_check(native: Checker) -> None:
    task = asyncio.create_task(find_problems(native, f"{SLOW} // cancelled"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await find_problems(native, "// still works") == []


@pytest.mark.skipif(cgroup.find_controller() is None, reason="no control groups here")
async def test_compiler_memory_is_limited() -> None:
    controller = cgroup.find_controller()
    assert controller is not None
    async with running_checker(jails.container(controller=controller)) as checker:
        assert await find_problems(checker, "// bounded") == []
        assert any("/hutch-" in _groups(pid) for pid in _processes())


async def test_deno_checks_if_the_compiler_does_not_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    messages: list[str] = []
    async with running_checker() as checker:
        checker._on_message = messages.append
        monkeypatch.setattr(TscPool, "_start_process", _does_not_start)
        assert [each.code for each in await find_problems(checker, "const n: number = 'x';")] == [2322]
        assert (await prepare(checker, "return 1; // again", check=False)).returns
    assert len(messages) == 1
    assert "`deno check`" in messages[0]


async def test_deno_checks_and_leaves_no_files_if_home_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, elsewhere = tmp_path / "a file", tmp_path / "elsewhere"
    home.write_text("")
    elsewhere.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(elsewhere))
    async with deno_checker(home) as checker:
        assert [each.code for each in await find_problems(checker, "const n: number = 'x';")] == [2322]
    assert not [*elsewhere.iterdir()]


async def _does_not_start(_: object) -> None:
    raise TscUnavailable("it was built for another machine")
