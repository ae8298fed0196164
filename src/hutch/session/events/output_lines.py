"""Output of a guest program, as log lines of its run."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Literal

from hutch.session.run import RunLog

if TYPE_CHECKING:
    from hutch.session.run import OnOutput, RunHandle

MAX_OUTPUT_LINES = 1_000
"""Maximum number of reported lines. The record contains fewer if the lines are long."""
MAX_LINE_CHARS = 10_000
"""An unfinished line is reported when it reaches this length."""


class OutputLines:
    """Reports each line of stdout and stderr as an event of the run, and passes the output on."""

    def __init__(self, run: RunHandle, forward: OnOutput | None) -> None:
        self._run = run
        self._forward = forward
        self._lines_left = MAX_OUTPUT_LINES
        new_decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: new_decoder("replace") for name in ("stdout", "stderr")}
        self._partial = {"stdout": "", "stderr": ""}

    def __call__(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if self._forward is not None:
            self._forward(stream, data)
        if not self._lines_left or not self._run.listeners:
            return
        *lines, rest = (self._partial[stream] + self._decoders[stream].decode(data)).split("\n")
        self._partial[stream] = "" if len(rest) > MAX_LINE_CHARS else rest
        for line in [*lines, rest] if len(rest) > MAX_LINE_CHARS else lines:
            self._report(line)

    def end(self) -> None:
        """Reports the last line of each stream if it has no line break."""
        for stream, line in self._partial.items():
            self._partial[stream] = ""
            if line:
                self._report(line)

    def _report(self, line: str) -> None:
        if self._lines_left:
            self._lines_left -= 1
            self._run.emit(RunLog(line=line[:MAX_LINE_CHARS].removesuffix("\r")))
