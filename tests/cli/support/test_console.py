"""Output of commands: characters that a terminal would interpret are escaped."""

from __future__ import annotations

import json
import re
import sys

import pytest

from hutch.cli.support.console import (
    print_error,
    print_facts,
    print_json,
    print_log,
    print_note,
    print_report,
    print_table,
)

HOSTILE = "é \x7f\x80\x9b\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069 \N{GRINNING FACE}"


def test_json_has_no_characters_that_a_terminal_interprets(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    print_json(json.dumps({"text": HOSTILE}, ensure_ascii=False).encode())
    shown = capsysbinary.readouterr().out.decode()
    assert shown.startswith('{"text": "é \\u007f\\u0080\\u009b\\u061c\\u200e')
    assert shown.removesuffix("\n").isprintable()
    assert json.loads(shown) == {"text": HOSTILE}


def test_logs_are_escaped_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_log("\x1b[31mred\u202e\n\tnext")
    assert capsys.readouterr().err == "\x1b[31mred\u202e\n\tnext\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    print_log("\x1b[31mred\u202e\n\tnext")
    assert capsys.readouterr().err == "\\u001b[31mred\\u202e\n\tnext\n"


ROWS = [("a" * 30, "ok", "x" * 80), ("b", "waiting for approval", ""), ("c", "timeout", "y")]


def test_table_on_a_terminal_has_colours_and_fits_its_width(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = ("RUN", "STATE", "WHY")
    print_table(headers, ROWS, states="STATE")
    piped = capsys.readouterr().out
    assert "\x1b" not in piped
    assert "x" * 80 in piped
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("hutch.cli.support.console.terminal_width", lambda: 76)
    for name, value in (("NO_COLOR", ""), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    print_table(headers, ROWS, states="STATE")
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("\x1b[1mRUN ")
    assert [f"\x1b[{code}m" in line for line, code in zip(lines, (32, 33, 31), strict=True)] == [True] * 3
    assert len(re.sub(r"\x1b\[\d*m", "", lines[0])) == 76
    assert lines[0].endswith("x…")
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(headers, ROWS, states="STATE")
    assert "\x1b" not in capsys.readouterr().out


def test_reports_and_errors_are_coloured_only_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_error("no")
    assert capsys.readouterr().err == "hutch: no\n"
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for name, value in (("NO_COLOR", ""), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    print_error("no")
    assert capsys.readouterr().err == "\x1b[31mhutch:\x1b[0m no\n"
    print_report(["missing  deno", "Isolation: none."])
    assert capsys.readouterr().out == "\x1b[31mmissing\x1b[0m  deno\nIsolation: none.\n"


def test_tables_facts_and_notes_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "TEXT"), [("a\x1b[2J", "b\nc")])
    print_facts([("name", "a\x9b\nb")])
    print_note("a\x1b[2J\nb")
    shown = capsys.readouterr()
    assert shown.out == "NAME        TEXT\na\\u001b[2J  b\\u000ac\nname  a\\u009b\nb\n"
    assert shown.err == "hutch: a\\u001b[2J\nb\n"
