"""Runs a flow in the foreground: shows progress, asks for approvals, and cancels the run on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
from typing import TYPE_CHECKING, Any

from hutch.cli.flow.view import FlowView, LineView, LiveView, supports_live_view
from hutch.cli.support.console import print_json_value
from hutch.protocols.rep.jsonrpc import RpcError
from hutch.protocols.rep.orchestrator.client import RuntimeTransportError
from hutch.protocols.rep.orchestrator.orchestrator import Orchestrator

if TYPE_CHECKING:
    from hutch.child_process.process import ChildProcess
    from hutch.cli.support.prompts import TerminalPrompt
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.orchestrator.options import RunOptions, RunOutcome
    from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice

# Maximum size of the events that --json collects and prints at the end.
MAX_EVENT_BYTES = 16 * 1024 * 1024

_PERMANENT_CAUSES = ("CannotStart", "ProtocolMismatch", "VaultError")


def run_live(
    flow: Flow,
    inputs: dict[str, Any],
    choice: RuntimeChoice,
    options: RunOptions,
    process: ChildProcess,
    *,
    as_json: bool,
) -> int:
    """Runs a flow and prints its result. Returns the exit code."""
    collector = EventCollector()
    view: FlowView
    if supports_live_view(sys.stderr):
        view = LiveView(flow, sys.stderr)
    else:
        view = LineView(flow, sys.stderr, quiet=as_json)

    def on_event(event: dict[str, Any]) -> None:
        view.handle_event(event)
        if as_json:
            collector.add(event)

    async def main() -> RunOutcome:
        orchestrator = Orchestrator(
            flow, inputs, choice, options, on_event=on_event, on_stderr=view.handle_stderr
        )
        return await _LiveRun(orchestrator, view).run(process)

    outcome = asyncio.run(main())
    view.show_outcome(outcome)
    if (hint := next_step_hint(outcome, options)) is not None:
        view.print_message(hint)
    if as_json:
        print_json_value({**outcome.wire, "events": collector.events, "events_left_out": collector.omitted})
    elif outcome.status == "completed" and outcome.outputs is not None:
        print_json_value(outcome.outputs, indent=2)
    return outcome.exit_code


class EventCollector:
    """Collects a run's events up to `MAX_EVENT_BYTES`."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.omitted = 0
        self._free_bytes = MAX_EVENT_BYTES

    def add(self, event: dict[str, Any]) -> None:
        self._free_bytes -= len(str(event))
        if self._free_bytes >= 0:
            self.events.append(event)
        else:
            self.omitted += 1


class _LiveRun:
    """Connects a run with its view, with signals and with approval prompts."""

    def __init__(self, orchestrator: Orchestrator, view: FlowView) -> None:
        self._orchestrator = orchestrator
        self._view = view
        self._approval_tasks: set[asyncio.Task[None]] = set()
        self._prompt: TerminalPrompt | None = None
        self._view.on_approval = self._start_approval

    async def run(self, process: ChildProcess) -> RunOutcome:
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(signal_number, self._interrupt)
        ticking = asyncio.create_task(self._tick())
        try:
            return await self._orchestrator.run(process)
        finally:
            for task in (ticking, *self._approval_tasks):
                task.cancel()
            await asyncio.wait((ticking, *self._approval_tasks))

    def _interrupt(self) -> None:
        self._view.show_cancelling()
        self._orchestrator.cancel()

    async def _tick(self) -> None:
        while self._view.tick_seconds is not None:
            self._view.tick()
            await asyncio.sleep(self._view.tick_seconds)

    def _start_approval(self, step_id: str, message: str) -> None:
        task = asyncio.create_task(self._approve(step_id, message))
        self._approval_tasks.add(task)
        task.add_done_callback(self._approval_tasks.discard)

    async def _approve(self, step_id: str, message: str) -> None:
        from hutch.cli.support import prompts

        if not prompts.can_prompt():
            arguments = shlex.join((self._orchestrator.options.run_id, step_id))
            self._view.print_message(f"step {step_id} asks for approval, but there is no terminal: {message}")
            self._view.print_message(f"`hutch flow approve {arguments}` approves it, `deny` refuses it")
            return
        self._prompt = self._prompt or prompts.TerminalPrompt()
        self._view.pause()
        try:
            question = f"Step {step_id} asks: {message}"
            answer = await self._prompt.prompt(question, "Approve it? [y]es, [n]o: ")
        finally:
            self._view.resume()
        with contextlib.suppress(RpcError, RuntimeTransportError):
            approved = answer in ("y", "yes")
            await self._orchestrator.approve(step_id, approved, by="the person at the terminal")


# --- hints ---


def next_step_hint(outcome: RunOutcome, options: RunOptions) -> str | None:
    """Returns one line with a command or option that helps after this outcome, or None."""
    if outcome.status == "completed":
        return None
    error = outcome.error or {}
    data = error.get("data") or {}
    details = data.get("details")
    details = details if isinstance(details, dict) else {}
    missing = details.get("missing")
    if isinstance(missing, list) and "shell.run" in missing and not options.allow_shell:
        return "--allow-shell lets steps run programs, in the jail"
    if "journal" not in options.extra:
        return None
    if details.get("held"):
        return f"`hutch flow logs {outcome.run_id} --follow` shows its progress"
    if "egress_allow" in str(error.get("message")):
        return "--egress-allow HOST:PORT allows this address for one run"
    # Suggest to resume the run only after these errors. A resumed run uses the same flow and options, so any
    # other error would occur again.
    lost_runtime = error.get("code", 0) >= 3000 and data.get("cause") not in _PERMANENT_CAUSES
    if outcome.cancelled or data.get("retriable") or lost_runtime:
        return f"`hutch flow resume {outcome.run_id}` resumes it"
    if 2000 <= error.get("code", 0) < 3000:
        return f"`hutch flow logs {outcome.run_id} --values` shows what its steps got and returned"
    return None
