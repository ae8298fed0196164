"""Log lines: texts from clients and guests cannot forge them."""

from __future__ import annotations

import json
import logging
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
