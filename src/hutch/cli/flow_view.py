"""A run as people see it: in place on a terminal, else line by line. All of it on stderr."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO

from hutch.cli.flow_board import OVER, Board, State, Step

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.doors.rep.outcome import RunEnd

TICK_SECONDS = 0.1
_DRAW_SECONDS = 0.05
# What a runtime's stderr may add to ours: less than a pipe holds that nobody reads.
MOST_STDERR_BYTES = 48 * 1024
_BAR = 20
_LEVELS = {"warning": "warning: ", "error": "error: "}
_SIGNS: dict[State, str] = {
    "waiting": "·",
    "running": "…",
    "succeeded": "✓",
    "failed": "✗",
    "skipped": "-",
}
_ASCII: dict[State, str] = {"waiting": ".", "running": "*", "succeeded": "+", "failed": "x", "skipped": "-"}
_COLOURS: dict[State, str] = {
    "waiting": "2",
    "running": "36",
    "succeeded": "32",
    "failed": "31",
    "skipped": "2",
}
# The most telling first, where not all fit.
_ORDER: tuple[State, ...] = ("failed", "running", "waiting", "succeeded", "skipped")


def is_live(stream: TextIO) -> bool:
    """Whether it is a terminal that lines can be taken back on."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def plain(text: str) -> str:
    """On one line, and nothing that a terminal would obey."""
    return "".join(
        each if each.isprintable() else " " if each in "\t\n\r" else "\N{REPLACEMENT CHARACTER}"
        for each in text
    )


class View:
    """What both ways have in common: the board, what a runtime says besides, and the last word."""

    seconds: float | None = None
    """How often `tick` is to be called, if at all."""

    def __init__(self, flow: Flow, stream: TextIO) -> None:
        self.on_approval: Callable[[str, str], None] = lambda step_id, message: None
        self.board = Board(flow)
        self._stream = stream
        self._stderr_room = MOST_STDERR_BYTES
        self._rest = b""
        self._cancelling = False

    def event(self, event: dict[str, Any]) -> None:
        step = self.board.hear(event)
        if step is not None:
            self.changed(step)
            return
        message, step_id = event.get("message"), event.get("step_id")
        told = message if isinstance(message, str) else ""
        if event["type"] == "log":
            level = event.get("level")
            if level == "debug":
                return  # for `hutch flow logs` and --json
            text = f"{_LEVELS.get(level, '') if isinstance(level, str) else ''}{told}"
            self.say(f"{step_id}: {text}" if isinstance(step_id, str) else text)
        elif event["type"] == "approval" and isinstance(step_id, str):
            self.on_approval(step_id, told)

    def stderr(self, data: bytes) -> None:
        """What the runtime writes there, line by line, until it is too much."""
        if self._stderr_room <= 0:
            return
        some = data[: self._stderr_room]
        self._stderr_room -= len(data)
        *lines, self._rest = (self._rest + some).split(b"\n")
        if self._stderr_room <= 0:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self.write(plain(line.decode(errors="replace")))
        if self._stderr_room <= 0:
            self.say("the runtime writes too much to stderr; the rest of it is left out")

    def cancelling(self) -> None:
        self.say("ending it at once" if self._cancelling else "cancelling; once more ends it at once")
        self._cancelling = True

    def end(self, end: RunEnd) -> None:
        """The last word on it."""
        if self._rest:
            self.stderr(b"\n")
        steps = f"{self.board.count('succeeded')} of {len(self.board.own)} steps"
        if end.status == "completed":
            self.say(f"{end.flow} completed in {end.seconds:.2f} s")
            return
        if end.cancelled:
            self.say(f"{end.flow} was cancelled after {end.seconds:.2f} s, {steps} done")
            return
        error = end.error or {}
        data = error.get("data") or {}
        at = f" at step {data['step_id']}" if data.get("step_id") else ""
        tries = data.get("attempt")
        tried = f" (attempt {tries + 1})" if isinstance(tries, int) and tries > 0 else ""
        message = str(error.get("message"))
        problems = _problems(data)
        if problems and all(each in message for each in problems):
            message = "the runtime refuses it"
        self.say(f"{end.flow} failed{at}{tried} after {end.seconds:.2f} s, {steps} done: {message}")
        for problem in problems:
            self.say(problem)

    # --- the two ways ---

    def changed(self, step: Step) -> None:
        """A step has another state."""

    def tick(self) -> None:
        """Time has gone by."""

    def hold(self) -> None:
        """Somebody is asked something: nothing is to come in between."""

    def release(self) -> None: ...

    def say(self, text: str) -> None:
        self.write(f"hutch: {plain(text)}")

    def write(self, line: str) -> None:
        # Whoever closed stderr does not want to know.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(f"{line}\n".encode(self._encoding, "replace").decode(self._encoding))
            self._stream.flush()

    @property
    def _encoding(self) -> str:
        return self._stream.encoding or "ascii"


def _problems(data: dict[str, Any]) -> list[str]:
    details = data.get("details")
    problems = details.get("problems") if isinstance(details, dict) else None
    if not isinstance(problems, list):
        return []
    return [
        f"{each.get('path')}: {each.get('message')}"
        for each in problems[:50]
        if isinstance(each, dict) and each.get("path")
    ]


class Lines(View):
    """For what is no terminal: a line for everything that happens, unless it is to be quiet."""

    def __init__(self, flow: Flow, stream: TextIO, *, quiet: bool = False) -> None:
        super().__init__(flow, stream)
        self._quiet = quiet

    def changed(self, step: Step) -> None:
        took = f" ({step.seconds:.2f} s)" if step.state in ("succeeded", "failed") else ""
        if step.is_restored:
            took = " before"
        again = f", attempt {step.attempt + 1}" if step.state == "running" and step.attempt else ""
        word = "started" if step.state == "running" else step.state
        self.say(f"{step.id} {word}{again}{took}")

    def say(self, text: str) -> None:
        if not self._quiet:
            super().say(text)


class Live(View):
    """For a terminal: all steps, their states and times, in place; whatever else is said stays above."""

    seconds = TICK_SECONDS

    def __init__(self, flow: Flow, stream: TextIO) -> None:
        super().__init__(flow, stream)
        self._drawn = 0
        self._held = 0
        self._later: list[str] = []
        self._next_draw = 0.0
        self._colours = "NO_COLOR" not in os.environ
        self._signs = _SIGNS if self._can_show("✓█") else _ASCII

    def changed(self, step: Step) -> None:
        self._draw()

    def tick(self) -> None:
        self._draw()

    def hold(self) -> None:
        self._put(self._taken_back())
        self._held += 1

    def release(self) -> None:
        self._held -= 1
        if not self._held:
            later, self._later = self._later, []
            for line in later:
                self.write(line)

    def write(self, line: str) -> None:
        if self._held:
            self._later.append(line)
            return
        self._put(f"{self._taken_back()}{line}\n")
        self._draw()

    def end(self, end: RunEnd) -> None:
        self._held = 0
        self._put(self._taken_back())
        self._put("".join(f"{line}\n" for line in self.lines()[:-1]))
        self._held = 1  # nothing is drawn any more
        later, self._later = self._later, []
        super().end(end)
        for line in (*later, *self._later):
            self._put(f"{line}\n")

    def lines(self) -> list[str]:
        """What is shown now, the bar last."""
        columns, rows = shutil.get_terminal_size((80, 24))
        room = max(rows - 3, 3)
        steps = list(self.board.steps.values())
        shown, more = steps, ""
        if len(steps) > room:
            telling = sorted(steps, key=lambda each: _ORDER.index(each.state))[: room - 1]
            shown = [each for each in steps if each in telling]
            more = f"  and {len(steps) - len(shown)} more"
        width = min(max((len(each.id) for each in shown), default=0), 40)
        drawn = [self._row(each, width, columns) for each in shown]
        return [*drawn, *([more] if more else []), self._bar(columns)]

    def _row(self, step: Step, width: int, columns: int) -> str:
        took = f"{step.seconds:8.2f} s" if step.state in ("running", "succeeded", "failed") else ""
        if step.is_restored:
            took = f"{'before':>10}"
        again = f"  attempt {step.attempt + 1}" if step.attempt else ""
        text = f"{step.id.ljust(width)}  {plain(step.kind).ljust(16)}{took}{again}"
        return self._coloured(step.state, f"{self._signs[step.state]} {text}"[: columns - 1].rstrip())

    def _bar(self, columns: int) -> str:
        done, total = self.board.count(*OVER), len(self.board.own)
        filled = _BAR * done // total if total else _BAR
        full, empty = ("█", "░") if self._signs is _SIGNS else ("#", "-")
        bar = full * filled + empty * (_BAR - filled)
        return f"{self.board.name}  {bar}  {done}/{total} steps  {self.board.seconds:.1f} s"[: columns - 1]

    def _draw(self) -> None:
        """Not more often than anybody could see: a step may take less than its drawing."""
        if self._held or monotonic() < self._next_draw:
            return
        self._next_draw = monotonic() + _DRAW_SECONDS
        lines = self.lines()
        self._put(self._taken_back() + "".join(f"{line}\n" for line in lines))
        self._drawn = len(lines)

    def _taken_back(self) -> str:
        drawn, self._drawn = self._drawn, 0
        return f"\x1b[{drawn}A\r\x1b[J" if drawn else ""

    def _put(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text.encode(self._encoding, "replace").decode(self._encoding))
            self._stream.flush()

    def _coloured(self, state: State, text: str) -> str:
        return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m" if self._colours else text

    def _can_show(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True
