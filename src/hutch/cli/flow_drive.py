"""The run of `hutch flow run`: shown as it goes on, asked about, interrupted, and told of at its end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import TYPE_CHECKING, Any

from hutch.cli.flow_advice import advice, approval_route
from hutch.cli.flow_run import print_value
from hutch.cli.flow_view import Lines, Live, View, is_live
from hutch.doors.rep.codes import RpcError
from hutch.doors.rep.executor import TransportBroken
from hutch.doors.rep.orchestrator import FlowDrive

if TYPE_CHECKING:
    from hutch.cli.asking import Person
    from hutch.doors.rep.choice import RuntimeChoice
    from hutch.doors.rep.flow import Flow
    from hutch.doors.rep.launch import Launched
    from hutch.doors.rep.outcome import RunEnd, RunOptions

# Of the events that `--json` tells of.
MOST_EVENT_BYTES = 16 * 1024 * 1024


def drive(
    flow: Flow,
    inputs: dict[str, Any],
    choice: RuntimeChoice,
    options: RunOptions,
    launched: Launched,
    *,
    as_json: bool,
) -> int:
    """The exit code."""
    kept = Kept()
    view = Live(flow, sys.stderr) if is_live(sys.stderr) else Lines(flow, sys.stderr, quiet=as_json)

    async def main() -> RunEnd:
        return await _Session(FlowDrive(flow, inputs, choice, options, **hearing), view).run(launched)

    def hear(event: dict[str, Any]) -> None:
        view.event(event)
        if as_json:
            kept.add(event)

    hearing: dict[str, Any] = {"on_event": hear, "on_stderr": view.stderr}
    end = asyncio.run(main())
    view.end(end)
    if (told := advice(end, options)) is not None:
        view.say(told)
    if as_json:
        print_value({**end.wire, "events": kept.events, "events_left_out": kept.left_out})
    elif end.status == "completed" and end.outputs is not None:
        print_value(end.outputs, indent=2)
    return end.exit_code


class Kept:
    """The events of a run, as many as there is room for."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.left_out = 0
        self._room = MOST_EVENT_BYTES

    def add(self, event: dict[str, Any]) -> None:
        self._room -= len(str(event))
        if self._room >= 0:
            self.events.append(event)
        else:
            self.left_out += 1


class _Session:
    """A run, and who sits before it."""

    def __init__(self, run: FlowDrive, view: View) -> None:
        self._run = run
        self._view = view
        self._asking: set[asyncio.Task[None]] = set()
        self._person: Person | None = None
        self._view.on_approval = self._ask

    async def run(self, launched: Launched) -> RunEnd:
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(each, self._interrupt)
        ticking = asyncio.create_task(self._tick())
        try:
            return await self._run.run(launched)
        finally:
            for task in (ticking, *self._asking):
                task.cancel()
            await asyncio.wait((ticking, *self._asking))

    def _interrupt(self) -> None:
        self._view.cancelling()
        self._run.cancel()

    async def _tick(self) -> None:
        while self._view.seconds is not None:
            self._view.tick()
            await asyncio.sleep(self._view.seconds)

    def _ask(self, step_id: str, message: str) -> None:
        task = asyncio.create_task(self._asked(step_id, message))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _asked(self, step_id: str, message: str) -> None:
        from hutch.cli import asking

        if not asking.is_possible():
            route = approval_route(self._run.options.run_id, step_id)
            self._view.say(f"step {step_id} asks, and there is no terminal to answer at: {message}")
            self._view.say(f"`hutch serve` with the same home takes the answer: {route}")
            return
        self._person = self._person or asking.Person()
        self._view.hold()
        try:
            asked = asking.printable(f"Step {step_id} asks: {message}")
            word = await self._person.answer(asked, "Approve it? [y]es, [n]o: ")
        finally:
            self._view.release()
        with contextlib.suppress(RpcError, TransportBroken):
            await self._run.approve(step_id, word in ("y", "yes"), by="the person at the terminal")
