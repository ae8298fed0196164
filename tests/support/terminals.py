"""Runs commands at a terminal, and finds characters that a terminal would interpret."""

from __future__ import annotations

import os
import pty
import re
import select
from collections.abc import Callable
from pathlib import Path

from tests.support.processes import TIMEOUT_SECONDS, start_hutch

# Text that controls a terminal: sets the title, clears the screen, reverses text, starts an escape sequence
# with a C1 control, and starts new lines.
HOSTILE = "\x1b]0;owned\x07\x1b[2Ja\u202eb\u2066c\x9b31md\u2028e\u2029f\x85g\rh\u200ei\x7fj"
_INTERPRETED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def interpreted_characters(text: str) -> list[str]:
    """Returns the characters other than line breaks and tabs that a terminal would interpret."""
    return [repr(character) for character in _INTERPRETED.findall(text)]


def at_terminal(
    *arguments: str,
    answer: str = "",
    before_answer: Callable[[], object] = lambda: None,
    cwd: Path,
    **env: str,
) -> tuple[int, str]:
    """Runs a command at a terminal without colours. Types `answer` when the command asks. Returns the exit
    code and the text on the screen, with plain line breaks.
    """
    env = {"NO_COLOR": "1", **env}
    ours, theirs = pty.openpty()
    shown = ""
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    with start_hutch(arguments, env=env, cwd=cwd, start_new_session=True, **streams) as process:
        os.close(theirs)
        try:
            while True:
                assert select.select([ours], [], [], TIMEOUT_SECONDS)[0], shown
                try:
                    shown += os.read(ours, 65536).decode(errors="replace")
                except OSError:
                    break
                if answer and shown.endswith("[y/N]: "):
                    before_answer()
                    os.write(ours, f"{answer}\n".encode())
                    answer = ""
            return process.wait(TIMEOUT_SECONDS), shown.replace("\r\n", "\n")
        finally:
            process.kill()
            os.close(ours)
