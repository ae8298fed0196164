"""Limit on how much output `hutch exec --json` holds in memory."""

from __future__ import annotations

import json

import pytest

from hutch.cli import toolscript
from hutch.protocols.toolscript.execute import ScriptResult


def test_output_beyond_the_limit_is_truncated_and_marked(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(toolscript, "MAX_CAPTURED_BYTES", 10)
    output = toolscript.JsonOutput()
    for _ in range(3):
        output("stdout", b"1234567")
    output("stderr", b"1234567890")
    output.print_result(ScriptResult(exit_code=0))
    printed = json.loads(capfdbinary.readouterr().out)
    assert (printed["stdout"], printed["stderr"]) == ("1234567123", "1234567890")
    assert printed["outputTruncated"] is True
