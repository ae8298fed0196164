"""TypeScript Support and Top-Level Await."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import hutch
from tests.support.toolscripts import IMPORT, ScriptEnvironment


async def test_typescript_compilation(scripts: ScriptEnvironment) -> None:
    code = """
        enum Level { Low = 1, High }
        interface Named { readonly name: string }
        type Pair<T> = [T, T];
        abstract class Animal implements Named {
          constructor(public readonly name: string, private level: Level = Level.High) {}
          abstract sound(): string;
          get about(): string { return `${this.name} ${this.sound()} ${Level[this.level]}`; }
        }
        class Dog extends Animal { override sound() { return "barks" } }
        namespace Numbers { export const double = (n: number): number => n * 2 }
        const pair = [1, 2] as const satisfies Pair<number>;
        function first<T>(list: readonly T[]): T | undefined { return list[0] }
        console.log(new Dog("Rex").about, Numbers.double(first(pair)!), <unknown> "cast");
    """
    ran = await scripts.run(code)
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "Rex barks High 2 cast\n", "")


async def test_type_checking(scripts: ScriptEnvironment) -> None:
    """Type errors are reported before the script runs."""
    code = IMPORT + 'console.log("began");\nawait tools.github.createIssue({ titel: "a typo" });\n'
    ran = await scripts.run(code)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "script.ts:3:" in ran.stderr
    assert "'titel' does not exist" in ran.stderr
    # The report shows the source line, a mark below it, and the tool's signature.
    assert '    3 | await tools.github.createIssue({ titel: "a typo" });\n' in ran.stderr
    assert "^^^^^\n" in ran.stderr
    assert "tools.github.createIssue(args: { title: string; labels?: " in ran.stderr
    assert scripts.requests == []
    assert (await scripts.run(code, check=False)).stdout == "began\n"


async def test_es_modules(scripts: ScriptEnvironment, tmp_path: Path) -> None:
    """A script can import files of its own folder and of subfolders, but no other files."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "main.ts").write_text(
        'import { double } from "./lib/double.ts";\nimport data from "./data.json" with { type: "json" };\n'
        'import { join } from "node:path";\nexport const doubled: number = double(data.count);\n'
        'console.log(doubled, join("a", "b"), (await import("./lib/late.js")).late);\n'
        'try { await import(`./${"not"}-imported.ts`) } catch (error) { console.log("not there") }\n'
    )
    (tmp_path / "lib/double.ts").write_text("export const double = (n: number): number => n * 2;\n")
    (tmp_path / "lib/late.js").write_text('export const late = "late";\n')
    (tmp_path / "data.json").write_text('{"count": 21}')
    (tmp_path / "not-imported.ts").write_text("console.log('who asked for me?')")
    script = await scripts.app.scripts.checker.read(tmp_path / "main.ts")
    assert sorted(script.files) == ["data.json", "lib/double.ts", "lib/late.js"]
    done = hutch("exec", "-f", str(tmp_path / "main.ts"), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42 a/b late\nnot there\n", "")


async def test_top_level_await(scripts: ScriptEnvironment) -> None:
    code = IMPORT + (
        "const issue = await tools.github.createIssue({ title: await Promise.resolve('x') });\n"
        "for await (const each of [Promise.resolve(1), 2]) console.log(each);\nconsole.log(issue.title);\n"
    )
    assert (await scripts.run(code)).stdout == "1\n2\nx\n"


async def test_promise_handling(scripts: ScriptEnvironment) -> None:
    """The run waits for a returned promise, and for other pending work of the script."""
    assert (await scripts.run(f"{IMPORT}return tools.every.add({{ a: 1, b: 2 }})")).value == {"sum": 3}
    late = "return new Promise((resolve) => setTimeout(resolve, 20, { late: true }))"
    assert (await scripts.run(late)).value == {"late": True}
    rejected = await scripts.run("return Promise.reject(new RangeError('too far'))")
    assert (rejected.exit_code, rejected.value) == (1, None)
    assert rejected.stderr.startswith("error: Uncaught RangeError: too far\n")
    unawaited = (
        f"{IMPORT}async function main() {{ console.log(await tools.every.echo({{ value: 'hi' }})) }}\nmain();"
    )
    assert (await scripts.run(unawaited)).stdout == "hi\n"
    assert (await scripts.run("setTimeout(() => console.log('later'), 20)")).stdout == "later\n"
