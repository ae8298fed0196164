"""Output Handling and Error Handling, as seen from a shell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.support.processes import hutch
from tests.support.toolscripts import IMPORT, ScriptEnvironment, start_command


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("return { count: 42 }", '{"count":42}\n'),
        ("return Promise.resolve(['é', null])", '["é",null]\n'),
        ("return undefined", ""),
        ("console.log('x'); return 0", "x\n0\n"),
    ],
)
def test_return_value_to_stdout(code: str, printed: str, tmp_path: Path) -> None:
    done = hutch("exec", code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


def test_console_log_to_stdout(tmp_path: Path) -> None:
    """The command prints exactly what the script writes, and prints it immediately."""
    code = "console.log('x', { a: 1 });\nawait new Promise((go) => setTimeout(go, 60_000));"
    with start_command("exec", "--timeout", "60", code, cwd=tmp_path) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"x { a: 1 }\n"
        running.terminate()
        assert running.communicate(timeout=60) == (b"", b"hutch: Terminated by a signal.\n")


def test_console_error_to_stderr(tmp_path: Path) -> None:
    done = hutch("exec", "console.error('bad'); console.warn('hm'); console.log('good')", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "good\n", "bad\nhm\n")


async def test_runtime_error(scripts: ScriptEnvironment) -> None:
    code = (
        "console.log('before');\nfunction inner(): never {\n  throw new TypeError('no such luck');\n}\n"
        "inner();\n"
    )
    ran = await scripts.run(code)
    assert (ran.exit_code, ran.stdout) == (1, "before\n")
    assert ran.stderr == (
        "error: Uncaught TypeError: no such luck\n    at inner (script.ts:3:9)\n    at script.ts:5:1\n"
    )


async def test_run_record_says_whether_the_script_failed(
    scripts: ScriptEnvironment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO", "hutch.runs")
    monkeypatch.setattr("hutch.logs.shows_error_messages", lambda: True)
    for code in ("Deno.exit(0)", "Deno.exit(7)", "throw new Error('no')", "return 1"):
        await scripts.run(code)
    await asyncio.sleep(0)  # the log line is written after the caller has the result
    logged = [record.__dict__ for record in caplog.records if record.name == "hutch.runs"]
    outcomes = [each["fields"]["outcome"] for each in logged]
    assert outcomes == ["ok", "script_failed", "script_failed", "ok"]
    assert [each["error_message"] for each in logged] == [
        None,
        "The script ended with exit code 7",
        "Error: no\n    at script.ts:1:7",
        None,
    ]


async def test_runtime_error_in_a_rewritten_script_has_original_lines(scripts: ScriptEnvironment) -> None:
    code = f"{IMPORT}const nothing: any = undefined;\nif (nothing) return 1;\nnothing.x;\n"
    ran = await scripts.run(code)
    assert ran.exit_code == 1
    assert ran.stderr.startswith(
        "error: Uncaught TypeError: Cannot read properties of undefined (reading 'x')"
    )
    assert ran.stderr.endswith("    at script.ts:4:9\n")
    assert "/tmp" not in ran.stderr


async def test_caught_errors_have_only_frames_of_the_script(scripts: ScriptEnvironment) -> None:
    code = """const nothing: any = undefined; if (nothing) return 0;
async function call() {
  await tools.every.fail({ city: "Atlantis" });
}
const stacks: string[] = [];
for (const f of [call, () => nothing.x, () => fetch("http://example.com")]) {
  try { await f(); } catch (e) { stacks.push(e.stack); }
}
return stacks;"""
    tool, own, refused = (await scripts.run(code)).value
    assert tool.split("\n") == [
        "ToolError: no such city: Atlantis",
        "    at async call (script.ts:3:3)",
        "    at async script.ts:7:9",
    ]
    assert own.split("\n")[1:] == ["    at script.ts:6:38", "    at script.ts:7:15"]
    assert "; scripts have no permissions, only tools\n" in refused


async def test_syntax_error(scripts: ScriptEnvironment) -> None:
    ran = await scripts.run("console.log('began');\nconst = 1;\n")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "script.ts:2:7\n    2 | const = 1;\n      |       ^" in ran.stderr
    unchecked = await scripts.run("console.log('began');\nconst = 1;\n", check=False)
    assert (unchecked.exit_code, unchecked.stdout) == (1, "")
    assert "script.ts:2:7" in unchecked.stderr


async def test_type_error(scripts: ScriptEnvironment) -> None:
    ran = await scripts.run("console.log('began');\nconst count: number = 'many';\n")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error TS2322: Type 'string' is not assignable to type 'number'.\n")
    assert ran.error is not None
    [problem] = ran.error.problems
    assert (problem.file, problem.line, problem.column, problem.code) == ("script.ts", 2, 7, 2322)


def test_type_error_exits_1_and_is_json_on_request(tmp_path: Path) -> None:
    done = hutch("exec", "--json", "const n: number = 'x'", cwd=tmp_path)
    output = json.loads(done.stdout)
    assert (done.returncode, done.stderr, output["ok"], output["exitCode"]) == (1, "", False, 1)
    assert [(each["line"], each["code"]) for each in output["error"]["problems"]] == [(1, 2322)]


async def test_uncaught_promise_rejection(scripts: ScriptEnvironment) -> None:
    code = (
        "Promise.reject(new Error('lost'));\nawait new Promise((go) => setTimeout(go, 5_000));\n"
        "console.log('never');"
    )
    ran = await scripts.run(code)
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr == "error: Uncaught Error: lost\n    at script.ts:1:16\n"
    later = await scripts.run("setTimeout(() => { Promise.reject({ code: 5 }) }, 10)")
    assert (later.exit_code, later.stderr) == (1, "error: Uncaught { code: 5 }\n")
