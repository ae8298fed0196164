"""Log lines. Text from clients and guests cannot forge a log line."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator

import pytest

from hutch import logs
from hutch.settings import Settings

FORGED = "x\n2031-01-01T00:00:00Z [info     ] forged\x1b[2J\r\u2028\u202e"


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def log_hostile_texts() -> None:
    logger = logging.getLogger("hutch.test")
    logger.warning("message %s", FORGED)
    logger.warning("fields", extra={"fields": {"label": FORGED, "calls": [{"tool": FORGED}]}})
    try:
        raise ValueError(FORGED)
    except ValueError:
        logger.exception("failed")


def test_readable_lines_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings())
    log_hostile_texts()
    lines = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    entries = [line for line in lines if not line.startswith("  ")]
    assert [text in line for text, line in zip(("message", "fields", "failed"), entries, strict=True)]
    assert "  ValueError: x" in lines


def test_json_lines_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings(log_json=True))
    log_hostile_texts()
    lines = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert [json.loads(line)["event"] for line in lines] == [f"message {FORGED}", "fields", "failed"]
    assert all(line.isprintable() for line in lines)


def run_fields(**changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "run_id": "8f3a12bc" * 4,
        "protocol": "execbox",
        "owner": "b6d1",
        "engine": "quickjs",
        "duration_ms": 3.14,
        "outcome": "ok",
    }
    return {**fields, **changes}


def log_run(message: str | None = None, **changes: object) -> None:
    extra = {
        "event": "run",
        "fields": run_fields(**changes),
        "owner_name": "anna",
        "error_message": message,
    }
    logging.getLogger("hutch.runs").info("run", extra=extra)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Replaces `sys.stderr` by a fake terminal. This function is not a fixture, because pytest replaces
    `sys.stderr` after the fixtures.
    """
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_run_on_a_terminal_is_one_short_line_with_the_name_of_its_owner(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = open_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure(Settings())
    log_run(label="pkg@1.0.0#add")
    line = terminal.getvalue()
    shown = r"\d\d:\d\d:\d\d  ok     execbox    quickjs     3\.1 ms  anna      pkg@1\.0\.0#add  8f3a12bc…\n"
    assert re.fullmatch(shown, line)


def test_failure_on_a_terminal_stands_out_with_its_message_and_whole_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = open_terminal(monkeypatch)
    logs.configure(Settings())
    log_run(f"TypeError: {FORGED}", outcome="runtime_error", line=3)
    line = terminal.getvalue().removesuffix("\n")
    assert "\x1b[1;31mFAIL \x1b[0m" in line
    assert "8f3a12bc" * 4 in line
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line)
    assert "runtime_error, line 3: TypeError: x 2031-01-01T00:00:00Z" in plain
    assert plain.isprintable()


def test_suspended_run_is_not_shown_as_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings())
    log_run("waits for an approval", outcome="suspended")
    assert "  wait   execbox " in capsys.readouterr().err


def test_only_lines_on_a_terminal_show_error_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not logs.shows_error_messages(), "a program that uses Hutch as a library has its own formatter"
    logs.configure(Settings())
    assert not logs.shows_error_messages()
    open_terminal(monkeypatch)
    logs.configure(Settings(log_json=True))
    assert not logs.shows_error_messages()
    logs.configure(Settings())
    assert logs.shows_error_messages()


def test_messages_of_runs_are_not_written_to_files(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Settings())
    log_run("TypeError: secret", outcome="runtime_error", line=3)
    line = capsys.readouterr().err
    assert re.match(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ  FAIL   execbox ", line)
    assert line.endswith(f"runtime_error, line 3  {'8f3a12bc' * 4}\n")
    logs.configure(Settings(log_json=True))
    log_run("TypeError: secret", outcome="runtime_error", line=3)
    logged = json.loads(capsys.readouterr().err)
    assert run_fields(outcome="runtime_error", line=3).items() <= logged.items()
    assert {"owner_name", "error_message"} & logged.keys() == set()
