"""Tests of `hutch eval` as a process."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
from pathlib import Path

import pytest
from tests.support.processes import (
    TIMEOUT_SECONDS,
    Traces,
    descendants,
    hutch,
    start_hutch,
    temporary_files,
    wait_until,
)


def test_result_goes_to_stdout_as_json_and_logs_to_stderr() -> None:
    done = hutch("eval", "console.log('one'); console.error('zwei é'); ({a: ['é', null, 1.5]})")
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"a":["é",null,1.5]}\n', "one\nzwei é\n")


def test_log_lines_are_printed_while_the_code_runs() -> None:
    code = "console.log('first'); await new Promise(() => {})"
    with start_hutch(["eval", "--timeout", "60", code], text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "first\n"
        assert process.poll() is None
        process.terminate()


def test_undefined_prints_nothing() -> None:
    done = hutch("eval", "undefined")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_error_is_printed_with_its_code_and_line() -> None:
    done = hutch("eval", "console.log('before')\n\nthrow new TypeError('no such luck')")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("before\nhutch: runtime_error: TypeError: no such luck (line 3, column ")


def test_position_of_a_syntax_error_is_printed_once() -> None:
    done = hutch("eval", "let a = 1;\nlet b = ;")
    assert done.returncode == 1
    assert "hutch: runtime_error: SyntaxError" in done.stderr
    assert done.stderr.endswith("Unexpected token (line 2, column 9)\n")


@pytest.mark.parametrize("code", ["1 +", "const f = () => {\n", "const a: number = foo("])
def test_unfinished_code_is_named_as_such(code: str) -> None:
    done = hutch("eval", code)
    assert "SyntaxError: Unexpected end of the code" in done.stderr


def test_json_prints_the_result_object_on_one_line() -> None:
    done = hutch("eval", "--json", "console.log('x'); [1, 2]")
    assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    output = json.loads(done.stdout)
    assert output.pop("durationMs") > 0
    assert output == {"ok": True, "result": [1, 2], "logs": ["x"]}


def test_warnings_go_to_stderr_and_into_json() -> None:
    code = "`${Promise.resolve(1)}`"
    done = hutch("eval", code)
    assert (done.returncode, done.stdout) == (0, '"[object Promise]"\n')
    assert "hutch: the result contains [object Promise]" in done.stderr
    (warning,) = json.loads(hutch("eval", "--json", code).stdout)["warnings"]
    assert warning.startswith("the result contains [object Promise]")


def test_json_of_undefined_has_no_result() -> None:
    assert set(json.loads(hutch("eval", "--json", "undefined").stdout)) == {"ok", "logs", "durationMs"}


def test_json_of_a_failure_has_the_error_and_exits_1() -> None:
    done = hutch("eval", "--json", "console.log('x');\nthrow new RangeError('far')")
    output = json.loads(done.stdout)
    assert (done.returncode, done.stderr, output["ok"], output["logs"]) == (1, "", False, ["x"])
    error = output["error"]
    assert (error["code"], error["message"], error["name"], error["line"]) == (
        "runtime_error",
        "far",
        "RangeError",
        2,
    )


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
def test_engine_runs_typescript_from_a_file(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "sum.ts"
    file.write_text("const sum = (a: number, b: number): number => a + b;\nreturn sum(1, 2);\n")
    done = hutch("eval", "-f", str(file), "--engine", engine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@pytest.mark.parametrize("arguments", [["-"], ["-f", "-"]])
def test_dash_reads_stdin(arguments: list[str]) -> None:
    assert hutch("eval", *arguments, input="return 'ünï'").stdout == '"ünï"\n'


def test_code_that_looks_like_an_option_goes_after_two_dashes() -> None:
    assert hutch("eval", "--", "-1 + 3").stdout == "2\n"


def test_timeout_is_in_seconds() -> None:
    # After a timeout, the runner looks for the line that the code had reached. On a busy machine, this search
    # takes longer than the default grace period.
    grace = {"HUTCH_CANCEL_GRACE_MS": "5000"}
    done = hutch("eval", "--timeout", "0.2", "console.log('on'); for (;;);", env=grace)
    assert (done.returncode, done.stdout) == (1, "")
    message = "Execution timed out after 200 ms, near line 1; --timeout SECONDS allows up to 300"
    assert done.stderr == f"on\nhutch: timeout: {message}\n"


def test_memory_is_in_megabytes() -> None:
    done = hutch("eval", "--memory", "8", "const a = []; for (;;) a.push(new Array(1000).fill(1))")
    assert done.returncode == 1
    message = "Execution exceeded its memory limit of 8 MiB; --memory MB allows up to 1024"
    assert done.stderr == f"hutch: memory_limit: {message}\n"


def test_defaults_come_from_the_settings() -> None:
    done = hutch("eval", "for (;;);", env={"HUTCH_TIMEOUT_MS": "150"})
    assert done.stderr.startswith("hutch: timeout: Execution timed out after 150 ms")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "hutch: CODE: expected code, or - for stdin, or -f FILE; got none of them\n"),
        (["1", "-f", "a.js"], 2, "hutch: CODE: expected either code or -f FILE, got both (a.js)\n"),
        (["-f", "/no/such.js"], 2, "hutch: /no/such.js: cannot be read: No such file or directory\n"),
        (["-f", "/"], 2, "hutch: /: cannot be read: Is a directory\n"),
        (["--engine", "v8", "1"], 2, "engine: unknown engine 'v8'; expected one of quickjs, deno\n"),
        (["--timeout", "0", "1"], 2, "--timeout: expected seconds above 0 and up to 300, got 0\n"),
        (["--timeout", "-1", "1"], 2, "--timeout: expected seconds above 0 and up to 300, got -1\n"),
        (["--timeout", "301", "1"], 2, "--timeout: expected seconds above 0 and up to 300, got 301\n"),
        (["--timeout", "nan", "1"], 2, "--timeout: expected seconds above 0 and up to 300, got nan\n"),
        (["--timeout", "soon", "1"], 2, "Invalid value for '--timeout': 'soon' is not a valid float.\n"),
        (["--memory", "0", "1"], 2, "--memory: expected MB above 0 and up to 1024, got 0\n"),
        (["--memory", "inf", "1"], 2, "--memory: expected MB above 0 and up to 1024, got inf\n"),
        (["--session", "a b", "1"], 2, "or '-', got 'a b'\n"),
        (["--session", "a", "--engine", "deno", "1"], 2, "expected quickjs, which sessions need, got deno\n"),
        (["--unknown", "1"], 2, "No such option '--unknown'.\n"),
        (["1", "2"], 2, "Got unexpected extra argument (2)\n"),
    ],
)
def test_invalid_input_is_rejected_with_what_was_expected(
    arguments: list[str], code: int, message: str
) -> None:
    done = hutch("eval", *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.endswith(message)


def test_session_keeps_variables_for_the_next_command(tmp_path: Path) -> None:
    env = {"HUTCH_HOME": str(tmp_path)}
    assert hutch("eval", "--session", "work", "let x: number = 1", env=env).stdout == ""
    assert hutch("eval", "--session", "work", "x + 1", env=env).stdout == "2\n"
    assert "x is not defined" in hutch("eval", "--session", "other", "x", env=env).stderr


def test_input_that_is_not_utf8_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "latin.js"
    file.write_bytes(b"'caf\xe9'")
    done = hutch("eval", "-f", str(file))
    assert (done.returncode, done.stderr) == (2, f"hutch: {file}: expected UTF-8, but byte 4 is 0xe9\n")
    assert hutch("eval", "-", input=b"\xff").stderr == "hutch: stdin: expected UTF-8, but byte 0 is 0xff\n"


def test_unwritable_home_is_reported_and_code_still_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    home = tmp_path / "file" / "home"
    done = hutch("eval", "1 + 1", env={"HUTCH_HOME": str(home)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "2\n", 1)
    assert done.stderr.startswith(f"hutch: {home} cannot be written")
    assert "set HUTCH_HOME" in done.stderr


def test_weak_isolation_is_reported() -> None:
    done = hutch("eval", "1 + 1", env={"HUTCH_ISOLATION": "process"})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "2\n", 1)
    assert done.stderr.startswith("hutch: the isolation is weak (process)")
    assert "HUTCH_BWRAP" not in done.stderr
    done = hutch("eval", "1", env={"HUTCH_BWRAP": "/no/bwrap"})
    assert "HUTCH_BWRAP is '/no/bwrap', which is not a working bwrap program; `hutch doctor`" in done.stderr


def test_configured_bubblewrap_that_does_not_run_is_named() -> None:
    done = hutch("eval", "1", env={"HUTCH_ISOLATION": "container", "HUTCH_BWRAP": "/no/bwrap"})
    assert (done.returncode, done.stdout) == (1, "")
    assert "HUTCH_BWRAP is '/no/bwrap', which is not a working bwrap program." in done.stderr


def test_misspelled_variable_is_reported_with_a_suggestion() -> None:
    done = hutch("eval", "1", env={"HUTCH_TIMOUT_MS": "5"})
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert done.stderr == "hutch: HUTCH_TIMOUT_MS: there is no such setting. Did you mean HUTCH_TIMEOUT_MS?\n"


def test_missing_deno_is_reported_with_a_remedy() -> None:
    done = hutch("eval", "1", env={"HUTCH_DENO": "/no/deno"})
    assert done.returncode == 1
    assert "HUTCH_DENO is '/no/deno', which is not an executable file." in done.stderr
    assert "pip install deno" in done.stderr


def test_invalid_setting_names_the_file_and_the_key(tmp_path: Path) -> None:
    (tmp_path / "hutch.toml").write_text("timeout_ms = -5\n")
    done = hutch("eval", "1", env={"HUTCH_HOME": str(tmp_path)})
    assert done.returncode == 2
    message = f"{tmp_path}/hutch.toml: timeout_ms: expected an integer of at least 1, got -5."
    assert done.stderr == f"hutch: {message}\n"


def test_closed_stdout_is_not_reported_as_an_error() -> None:
    with start_hutch(["eval", "1"]) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_SECONDS) == 1


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [(signal.SIGINT, 130, "\n"), (signal.SIGTERM, 1, "hutch: Terminated by a signal.\n")],
)
def test_signal_leaves_no_process_and_no_file(number: int, code: int, message: str) -> None:
    code_in = "await new Promise(() => {})"
    with start_hutch(["eval", "--timeout", "60", "-"], text=True) as process:
        assert process.stdin is not None
        process.stdin.write(code_in)
        process.stdin.close()
        wait_until(lambda: temporary_files(process.pid) and descendants(process.pid))
        with Traces(process.pid) as traces:
            process.send_signal(number)
            assert process.stderr is not None
            assert process.stderr.read() == message
            assert process.wait(TIMEOUT_SECONDS) == code
            assert traces.remaining() == []


def test_control_characters_are_escaped_for_a_terminal() -> None:
    code = r"""console.log("a\x1b[31mb\tc"); throw new Error("\x1b[2Jgone\u009b1m")"""
    piped = hutch("eval", code)
    message = "hutch: runtime_error: \\u001b[2Jgone\\u009b1m (line 1, column 41)"
    assert piped.stderr == f"a\x1b[31mb\tc\n{message}\n"
    our_end, their_end = pty.openpty()
    with start_hutch(("eval", code), stderr=their_end, env={"NO_COLOR": "1"}) as process:
        os.close(their_end)
        shown = b""
        # When the other end of a pseudo-terminal is closed, reading raises OSError on Linux and returns b""
        # on other systems.
        with contextlib.suppress(OSError):
            while data := os.read(our_end, 4096):
                shown += data
        process.wait(TIMEOUT_SECONDS)
    os.close(our_end)
    assert b"\x1b" not in shown
    assert b"\\u001b[31mb" in shown
    # The output ends with the failing line of the code and a mark below it.
    lines = shown.replace(b"\r\n", b"\n").splitlines()
    assert lines[-2].startswith(b"    1 | console.log(")
    assert lines[-1] == b"      | " + b" " * 40 + b"^"


def test_printable_unicode_is_not_escaped() -> None:
    text = "1\u202f234 \u540d\u3000\u5024 \U0001f469\u200d\U0001f4bb"
    assert hutch("eval", f"throw new Error({json.dumps(text)})").stderr.startswith(
        f"hutch: runtime_error: {text} ("
    )


def test_files_are_read_and_saved_without_replacing_others(tmp_path: Path) -> None:
    source, folder, target = tmp_path / "a.txt", tmp_path / "new/out", tmp_path / "outside.txt"
    source.write_text("hello")
    code = "await files.write('b.txt', (await files.text('a.txt')).toUpperCase())"
    arguments = ["eval", code, "--input-file", str(source), "--save-files", str(folder)]
    done = hutch(*arguments)
    saved = folder / "b.txt"
    assert (done.returncode, saved.read_text()) == (0, "HELLO")
    assert f"saved {saved} (text/plain, 5 bytes)" in done.stderr
    saved.unlink()
    saved.symlink_to(target)
    done = hutch(*arguments)
    assert (done.returncode, target.exists()) == (1, False)
    assert "it exists; --force replaces it" in done.stderr
    assert hutch(*arguments, "--force").returncode == 0
    assert (saved.is_symlink(), saved.read_text(), target.exists()) == (False, "HELLO", False)


def test_files_that_are_not_saved_are_named() -> None:
    done = hutch("eval", "display('x'); 1")
    assert done.stdout == "1\n"
    assert "the code wrote display-1.txt (text/plain, 1 bytes); --save-files DIR" in done.stderr
