"""One supervised run of a server: its orchestrator, its state and the pending approvals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING, Any

from hutch.protocols.rep.jsonrpc import RpcError
from hutch.protocols.rep.orchestrator.client import RuntimeTransportError
from hutch.protocols.rep.runtime.context import ApprovalDecision
from hutch.store.tables.journal import JournalEntry
from hutch.streams.lines import LineSplitter

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.orchestrator.options import RunOptions
    from hutch.protocols.rep.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("hutch.rep")

MAX_STDERR_BYTES = 48 * 1024
"""Limit for the stderr output of one runtime that is logged."""
_MAX_LINE_BYTES = 4096
_SLASH = re.compile("/")


class SupervisedRun:
    """A run whose runtime process the server starts, polls, and starts again after a crash."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.orchestrator: Orchestrator | None = None
        self.observer: RunObserver | None = None
        self.decisions: dict[str, ApprovalDecision] = {}
        """Decisions that arrived before the steps asked again, by step id."""
        self.is_reopened = False
        """True if the run has to be supervised again after the current supervision ends."""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_working(self) -> bool:
        return self.orchestrator is not None and not (
            self.observer is not None and self.observer.only_waits_for_approvals
        )

    def on_event(self, event: dict[str, Any]) -> None:
        assert self.observer is not None
        self.observer.on_event(event)
        if (
            event["type"] == "approval"
            and (decision := self.decisions.pop(event["step_id"], None)) is not None
        ):
            task = asyncio.create_task(self._send_decision(event["step_id"], decision))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_decision(self, step_id: str, decision: ApprovalDecision) -> None:
        if self.orchestrator is not None:
            with contextlib.suppress(RpcError, RuntimeTransportError):
                await self.orchestrator.approve(
                    step_id, decision.approved, by=decision.by, reason=decision.reason
                )


class StderrLog:
    """Writes the stderr output of a runtime to the server's log, one record per line."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._bytes_left = MAX_STDERR_BYTES
        self._lines = LineSplitter(_MAX_LINE_BYTES, truncate=True)

    def write(self, data: bytes) -> None:
        self._bytes_left -= len(data)
        for line in self._lines.feed(data) if self._bytes_left > 0 else ():
            logger.warning("run %s: %s", self._run_id, line.decode(errors="replace"))


class RunObserver:
    """Derives the state of a run from its events."""

    def __init__(self, flow: Flow, options: RunOptions) -> None:
        self.questions: dict[str, dict[str, Any]] = {}
        """Questions of steps that wait for an approval, by step id."""
        self._running: set[str] = set()
        self._flow = flow
        self._has_timeout = bool(flow.timeout_ms or options.timeout)
        self._last_event_at = monotonic()

    def on_event(self, event: dict[str, Any]) -> None:
        self._last_event_at = monotonic()
        step_id = str(event.get("step_id"))
        match event["type"], event.get("state"):
            case "approval", _:
                question = {
                    "step_id": step_id,
                    "message": event.get("message"),
                    "asked_at": event["timestamp"],
                }
                self.questions[step_id] = question
            case "approved", _:
                self.questions.pop(step_id, None)
            case "step", "started":
                self._running.add(step_id)
            case "step", _:
                self._running.discard(step_id)
                self.questions.pop(step_id, None)

    @property
    def only_waits_for_approvals(self) -> bool:
        """True if every running step waits for an approval."""
        if not self.questions:
            return False
        # Include the outer steps of a waiting step such as `outer/inner`, because they wait, too.
        asking = {
            step_id[:end]
            for step_id in self.questions
            for end in (*(match.start() for match in _SLASH.finditer(step_id)), len(step_id))
        }
        return asking.issuperset(self._running)

    def can_be_parked(self, seconds: float) -> bool:
        """Returns True if the run has waited only for approvals for at least `seconds`, so that it can be
        stopped now and resumed when a decision arrives.

        All waiting steps must be `approve` steps, because other kinds would repeat work in order to ask
        again. Runs and steps with a timeout cannot be stopped, because the timeout must keep running.
        """
        if (
            self._has_timeout
            or not self.only_waits_for_approvals
            or monotonic() - self._last_event_at < seconds
        ):
            return False
        nodes = [self._flow.nodes.get(step) for step in self._running]
        return all(node is not None and node.kind == "approve" and not node.timeout_ms for node in nodes)


def approval_questions(entries: Iterable[JournalEntry]) -> list[dict[str, Any]]:
    events = [json.loads(entry.body) for entry in entries]
    return [
        {"step_id": event["step_id"], "message": event.get("message"), "asked_at": event["timestamp"]}
        for event in events
    ]
