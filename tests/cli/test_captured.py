"""`hutch exec --json`: what a script prints is kept in memory, and so not without end."""

from __future__ import annotations

import json

import pytest

from hutch.cli import script
from hutch.doors.toolscript.execute import Ending


def test_output_beyond_its_bound_is_left_out_and_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(script, "MOST_CAPTURED_BYTES", 10)
    output = script.Captured()
    for _ in range(3):
        output("stdout", b"1234567")
    output("stderr", b"1234567890")
    output.show(Ending(exit_code=0))
    told = json.loads(capfdbinary.readouterr().out)
    assert (told["stdout"], told["stderr"], told["outputTruncated"]) == ("1234567123", "1234567890", True)
