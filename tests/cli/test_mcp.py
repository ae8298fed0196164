"""Hints that `hutch mcp` and similar commands print when they are started at a terminal, and a `hutch mcp`
that another Hutch starts.
"""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path

import pytest
from tests.support.processes import TIMEOUT_SECONDS, hutch, start_hutch


@pytest.mark.parametrize(
    ("command", "hint"),
    [
        ("mcp", "is an MCP server"),
        ("runner", "runs code for another program"),
        ("runtime serve", "runs flows for another program"),
    ],
)
def test_command_that_waits_for_a_program_says_so_at_a_terminal(
    command: str, hint: str, tmp_path: Path
) -> None:
    our_end, their_end = pty.openpty()
    with start_hutch(command.split(), cwd=tmp_path, stdin=their_end, stderr=subprocess.PIPE) as process:
        try:
            os.close(their_end)
            assert process.stderr is not None
            line = process.stderr.readline().decode()
            assert hint in line
            assert "Ctrl-C to stop it" in line
        finally:
            process.terminate()
            process.wait(TIMEOUT_SECONDS)
            os.close(our_end)


def test_hutch_is_not_started_as_a_server_of_hutch(tmp_path: Path) -> None:
    done = hutch("mcp", env={"INSIDE_HUTCH": "1"}, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "`hutch mcp` was started as an MCP server of Hutch" in done.stderr
    assert "Remove its entry" in done.stderr
