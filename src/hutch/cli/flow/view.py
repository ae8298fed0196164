"""Shows the progress of a run on stderr, in place on a terminal and otherwise line by line."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, TextIO

from hutch.problems import Problem
from hutch.streams.lines import LineSplitter
from hutch.text import printable

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.orchestrator.options import RunOutcome

StepState = Literal["waiting", "running", "succeeded", "failed", "skipped"]
FINISHED_STATES: tuple[StepState, ...] = ("succeeded", "failed", "skipped")

TICK_SECONDS = 0.1
_DRAW_SECONDS = 0.05
# Maximum number of bytes that are shown of the runtime's stderr. It is smaller than the buffer of a pipe, so
# writing them does not block if nothing reads the stderr of this process.
MAX_STDERR_BYTES = 48 * 1024
_BAR_WIDTH = 20
_LEVELS = {"warning": "warning: ", "error": "error: "}
_SYMBOLS: dict[StepState, str] = {
    "waiting": "·",
    "running": "…",
    "succeeded": "✓",
    "failed": "✗",
    "skipped": "-",
}
_ASCII_SYMBOLS: dict[StepState, str] = {
    "waiting": ".",
    "running": "*",
    "succeeded": "+",
    "failed": "x",
    "skipped": "-",
}
_COLOR_CODES: dict[StepState, str] = {
    "waiting": "2",
    "running": "36",
    "succeeded": "32",
    "failed": "31",
    "skipped": "2",
}
# If there is not enough space for all steps, steps in earlier states of this list are shown first.
_DISPLAY_PRIORITY: tuple[StepState, ...] = ("failed", "running", "waiting", "succeeded", "skipped")
_BREAKS_TO_SPACES = str.maketrans("\t\n\r", "   ")


def supports_live_view(stream: TextIO) -> bool:
    """Returns True if the stream is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def one_line(text: str) -> str:
    """Returns `text` on one line, without control characters."""
    return printable(text.translate(_BREAKS_TO_SPACES), replacement="\N{REPLACEMENT CHARACTER}")


class FlowView:
    """Base class of both views, with step states, the runtime's stderr, and the summary at the end."""

    tick_seconds: float | None = None
    """Interval at which `tick` must be called. None if it need not be called."""

    def __init__(self, flow: Flow, stream: TextIO) -> None:
        self.on_approval: Callable[[str, str], None] = lambda step_id, message: None
        self.table = StepTable(flow)
        self._locate = flow.locate
        self._stream = stream
        self._free_stderr_bytes = MAX_STDERR_BYTES
        self._stderr_lines = LineSplitter(MAX_STDERR_BYTES)
        self._is_cancelling = False

    def handle_event(self, event: dict[str, Any]) -> None:
        step = self.table.apply_event(event)
        if step is not None:
            self.step_changed(step)
            return
        message, step_id = event.get("message"), event.get("step_id")
        text = message if isinstance(message, str) else ""
        if event["type"] == "log":
            level = event.get("level")
            if level == "debug":
                # Drop debug messages. `hutch flow logs` and --json show them.
                return
            text = f"{_LEVELS.get(level, '') if isinstance(level, str) else ''}{text}"
            self.print_message(f"{step_id}: {text}" if isinstance(step_id, str) else text)
        elif event["type"] == "approval" and isinstance(step_id, str):
            self.on_approval(step_id, text)
        elif event["type"] == "items" and isinstance(step_id, str):
            self.items_known(step_id, event)

    def handle_stderr(self, data: bytes) -> None:
        """Prints the runtime's stderr line by line, up to `MAX_STDERR_BYTES`."""
        if self._free_stderr_bytes <= 0:
            return
        accepted = data[: self._free_stderr_bytes]
        self._free_stderr_bytes -= len(data)
        lines = self._stderr_lines.feed(accepted)
        if self._free_stderr_bytes <= 0:
            lines += self._stderr_lines.feed(b"\n")
        for line in lines:
            self.write_line(line.decode(errors="replace"))
        if self._free_stderr_bytes <= 0:
            self.print_message("the runtime writes too much to stderr; the rest is omitted")

    def show_cancelling(self) -> None:
        if self._is_cancelling:
            self.print_message("stopping at once")
        else:
            self.print_message("cancelling; press Ctrl-C again to stop at once")
        self._is_cancelling = True

    def show_outcome(self, outcome: RunOutcome) -> None:
        if self._stderr_lines.pending_bytes:
            self.handle_stderr(b"\n")
        steps = f"{self.table.count('succeeded')} of {len(self.table.top_level_steps)} steps"
        if outcome.status == "completed":
            self.print_message(f"{outcome.flow} completed in {outcome.seconds:.2f} s")
            return
        if outcome.cancelled:
            self.print_message(f"{outcome.flow} was cancelled after {outcome.seconds:.2f} s, {steps} done")
            return
        error = outcome.error or {}
        data = error.get("data") or {}
        step = f" at step {data['step_id']}" if data.get("step_id") else ""
        attempt = data.get("attempt")
        attempts = f" (attempt {attempt + 1})" if isinstance(attempt, int) and attempt > 0 else ""
        message = str(error.get("message"))
        problems = [str(self._locate(problem)) for problem in _problems(data)]
        if problems and all(str(problem) in message for problem in _problems(data)):
            message = "the runtime rejected it"
        self.print_message(
            f"{outcome.flow} failed{step}{attempts} after {outcome.seconds:.2f} s, {steps} done: {message}"
        )
        for problem in problems:
            self.print_message(problem)

    def step_changed(self, step: StepProgress) -> None:
        """Shows the new state of a step."""

    def items_known(self, step_id: str, event: dict[str, Any]) -> None:
        """Shows how many items a `for_each` has."""

    def tick(self) -> None:
        """Updates the displayed times."""

    def pause(self) -> None:
        """Holds back output while a question is on the screen."""

    def resume(self) -> None: ...

    def print_message(self, text: str) -> None:
        self.write_line(f"hutch: {text}")

    def write_line(self, line: str) -> None:
        self._write(f"{one_line(line)}\n")

    def _write(self, text: str) -> None:
        # stderr may be closed.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text.encode(self._encoding, "replace").decode(self._encoding))
            self._stream.flush()

    @property
    def _encoding(self) -> str:
        return self._stream.encoding or "ascii"


def _problems(data: dict[str, Any]) -> list[Problem]:
    details = data.get("details")
    problems = details.get("problems") if isinstance(details, dict) else None
    if not isinstance(problems, list):
        return []
    return [
        Problem(str(problem["path"]), str(problem.get("message")))
        for problem in problems[:50]
        if isinstance(problem, dict) and problem.get("path")
    ]


def items_text(event: dict[str, Any]) -> str:
    """Describes the event `items` of a `for_each`."""
    count = event.get("count")
    return f"{count} item{'' if count == 1 else 's'}, at most {event.get('max_parallel')} at a time"


class LineView(FlowView):
    """Prints a line for each change. With `quiet`, prints only the runtime's stderr."""

    def __init__(self, flow: Flow, stream: TextIO, *, quiet: bool = False) -> None:
        super().__init__(flow, stream)
        self._quiet = quiet

    def step_changed(self, step: StepProgress) -> None:
        duration = f" ({step.seconds:.2f} s)" if step.state in ("succeeded", "failed") else ""
        if step.is_restored:
            duration = " earlier"
        attempt = f", attempt {step.attempt + 1}" if step.state == "running" and step.attempt else ""
        state = "started" if step.state == "running" else step.state
        self.print_message(f"{step.id} {state}{attempt}{duration}")

    def items_known(self, step_id: str, event: dict[str, Any]) -> None:
        self.print_message(f"{step_id}: {items_text(event)}")

    def print_message(self, text: str) -> None:
        if not self._quiet:
            super().print_message(text)


class LiveView(FlowView):
    """Redraws all steps in place on a terminal. Messages scroll above them."""

    tick_seconds = TICK_SECONDS

    def __init__(self, flow: Flow, stream: TextIO) -> None:
        super().__init__(flow, stream)
        self._drawn_lines = 0
        self._pauses = 0
        self._deferred_lines: list[str] = []
        self._next_draw = 0.0
        self._has_colors = "NO_COLOR" not in os.environ
        self._symbols = _SYMBOLS if self._can_encode("✓█") else _ASCII_SYMBOLS

    def step_changed(self, step: StepProgress) -> None:
        self._draw()

    def items_known(self, step_id: str, event: dict[str, Any]) -> None:
        self.table.set_item_count(step_id, event.get("count"))

    def tick(self) -> None:
        self._draw()

    def pause(self) -> None:
        self._write(self._erase_drawing())
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1
        if not self._pauses:
            deferred, self._deferred_lines = self._deferred_lines, []
            for line in deferred:
                self.write_line(line)

    def write_line(self, line: str) -> None:
        if self._pauses:
            self._deferred_lines.append(line)
            return
        self._write(f"{self._erase_drawing()}{one_line(line)}\n")
        self._draw()

    def show_outcome(self, outcome: RunOutcome) -> None:
        self._pauses = 0
        self._write(self._erase_drawing())
        self._write("".join(f"{line}\n" for line in self.render()[:-1]))
        self._pauses = 1  # prevents further drawing
        deferred, self._deferred_lines = self._deferred_lines, []
        super().show_outcome(outcome)
        for line in (*deferred, *self._deferred_lines):
            self._write(f"{one_line(line)}\n")

    def render(self) -> list[str]:
        """Returns the lines to draw. The last line is the progress bar."""
        columns, rows = shutil.get_terminal_size((80, 24))
        max_lines = max(rows - 3, 3)
        steps = self.table.steps
        shown, more = steps, ""
        if len(steps) > max_lines:
            chosen = sorted(steps, key=lambda step: _DISPLAY_PRIORITY.index(step.state))[: max_lines - 1]
            chosen_ids = {step.id for step in chosen}
            shown = [step for step in steps if step.id in chosen_ids]
            more = f"  and {len(steps) - len(shown)} more"
        width = min(max((len(step.id) for step in shown), default=0), 40)
        lines = [self._render_step(step, width, columns) for step in shown]
        return [*lines, *([more] if more else []), self._render_bar(columns)]

    def _render_step(self, step: StepProgress, width: int, columns: int) -> str:
        duration = f"{step.seconds:8.2f} s" if step.state in ("running", "succeeded", "failed") else ""
        if step.is_restored:
            duration = f"{'earlier':>10}"
        attempt = f"  attempt {step.attempt + 1}" if step.attempt else ""
        items = ""
        if step.item_count is not None:
            items = f"  {sum(each.state == 'succeeded' for each in step.inner)}/{step.item_count} items"
        text = f"{one_line(step.id).ljust(width)}  {one_line(step.kind).ljust(16)}{duration}{attempt}{items}"
        line = f"{self._symbols[step.state]} {text}"[: columns - 1].rstrip()
        return f"\x1b[{_COLOR_CODES[step.state]}m{line}\x1b[0m" if self._has_colors else line

    def _render_bar(self, columns: int) -> str:
        done, total = self.table.count(*FINISHED_STATES), len(self.table.top_level_steps)
        filled = _BAR_WIDTH * done // total if total else _BAR_WIDTH
        full, empty = ("█", "░") if self._symbols is _SYMBOLS else ("#", "-")
        bar = full * filled + empty * (_BAR_WIDTH - filled)
        return f"{one_line(self.table.name)}  {bar}  {done}/{total} steps  {self.table.seconds:.1f} s"[
            : columns - 1
        ]

    def _draw(self) -> None:
        # Draw at most every 50 ms, because drawing short steps would take longer than running them.
        if self._pauses or monotonic() < self._next_draw:
            return
        self._next_draw = monotonic() + _DRAW_SECONDS
        lines = self.render()
        self._write(self._erase_drawing() + "".join(f"{line}\n" for line in lines))
        self._drawn_lines = len(lines)

    def _erase_drawing(self) -> str:
        """Returns the escape sequence that removes the current drawing, and resets the size of the
        drawing.
        """
        drawn, self._drawn_lines = self._drawn_lines, 0
        return f"\x1b[{drawn}A\r\x1b[J" if drawn else ""

    def _can_encode(self, text: str) -> bool:
        try:
            text.encode(self._encoding)
        except (UnicodeEncodeError, LookupError):
            return False
        return True


# --- steps ---


class StepProgress:
    """State and timing of one step."""

    def __init__(self, step_id: str, kind: str) -> None:
        self.id = step_id
        self.kind = kind
        self.state: StepState = "waiting"
        self.attempt = 0
        self.is_restored = False
        """True if the step had finished before the run was resumed."""
        self.inner: list[StepProgress] = []
        """Steps of the subflow, or items, of this step."""
        self.item_count: int | None = None
        """Number of items of a `for_each`, when it is known."""
        self._started_at = 0.0
        self._duration = 0.0

    def start(self, attempt: int) -> None:
        self.state = "running"
        self.attempt = attempt
        self._started_at = monotonic()

    def finish(self, state: StepState, duration: float | None) -> None:
        self.state = state
        if duration is None:
            duration = monotonic() - self._started_at if self._started_at else 0.0
        self._duration = duration

    @property
    def seconds(self) -> float:
        """Duration of the current or last attempt."""
        return monotonic() - self._started_at if self.state == "running" else self._duration


class StepTable:
    """Steps of a flow in order. Steps of a subflow and items of a `for_each` follow the step that runs
    them.
    """

    def __init__(self, flow: Flow) -> None:
        self.name = flow.name
        self.top_level_steps = [StepProgress(step_id, flow.nodes[step_id].kind) for step_id in flow.order()]
        """Steps that are not in subflows or items."""
        self._by_id = {step.id: step for step in self.top_level_steps}
        self._started_at = monotonic()

    @property
    def seconds(self) -> float:
        return monotonic() - self._started_at

    @property
    def steps(self) -> list[StepProgress]:
        """All steps in order."""
        ordered: list[StepProgress] = []
        pending = self.top_level_steps[::-1]
        while pending:
            step = pending.pop()
            ordered.append(step)
            pending += reversed(step.inner)
        return ordered

    def count(self, *states: StepState) -> int:
        return sum(step.state in states for step in self.top_level_steps)

    def apply_event(self, event: dict[str, Any]) -> StepProgress | None:
        """Updates the step that an event is about, and returns the step. Returns None if the event is not
        about a step.
        """
        kind, step_id = event.get("type"), event.get("step_id")
        if kind not in ("step", "skipped") or not isinstance(step_id, str):
            return None
        step = self._by_id.get(step_id) or self._add_inner_step(step_id, event)
        if step is None:
            return None
        if kind == "skipped":
            step.finish("skipped", 0.0)
            return step
        attempt = event.get("attempt")
        step.is_restored = event.get("restored") is True
        match event.get("state"):
            case "started":
                step.start(attempt if isinstance(attempt, int) else 0)
            case "succeeded":
                step.finish("succeeded", _duration(event))
            case "failed":
                step.finish("failed", _duration(event))
            case _:
                return None
        return step

    def set_item_count(self, step_id: str, count: object) -> None:
        step = self._by_id.get(step_id)
        if step is not None and isinstance(count, int):
            step.item_count = count

    def _add_inner_step(self, step_id: str, event: dict[str, Any]) -> StepProgress | None:
        parent = self._by_id.get(step_id.rpartition("/")[0])
        if parent is None:
            return None
        kind = event.get("kind")
        step = self._by_id[step_id] = StepProgress(step_id, kind if isinstance(kind, str) else "")
        parent.inner.append(step)
        return step


def _duration(event: dict[str, Any]) -> float | None:
    milliseconds = event.get("duration_ms")
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    return milliseconds / 1000
