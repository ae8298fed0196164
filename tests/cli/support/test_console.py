"""Output of commands: characters that a terminal would interpret are escaped."""

from __future__ import annotations

import json
import sys

import pytest

from hutch.cli.support.console import print_facts, print_json, print_log, print_note, print_table

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


def test_tables_facts_and_notes_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "TEXT"), [("a\x1b[2J", "b\nc")])
    print_facts([("name", "a\x9b\nb")])
    print_note("a\x1b[2J\nb")
    shown = capsys.readouterr()
    assert shown.out == "NAME        TEXT\na\\u001b[2J  b\\u000ac\nname  a\\u009b\nb\n"
    assert shown.err == "hutch: a\\u001b[2J\nb\n"
