"""A run as a server looks on: which steps are under way, and which of them only wait for somebody's word."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.doors.rep.outcome import RunOptions


class Watch:
    """Hears a run's events as they come."""

    def __init__(self, flow: Flow, options: RunOptions) -> None:
        self.questions: dict[str, dict[str, Any]] = {}
        """What steps ask, by step."""
        self._running: set[str] = set()
        self._flow = flow
        self._is_timed = bool(flow.timeout_ms or options.timeout)
        self._still_since = monotonic()

    def hear(self, event: dict[str, Any]) -> None:
        self._still_since = monotonic()
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
    def only_waits(self) -> bool:
        """Whether nothing is done until somebody says something."""
        return bool(self.questions) and all(
            any(asks == step or asks.startswith(f"{step}/") for asks in self.questions)
            for step in self._running
        )

    def may_be_put_aside(self, seconds: float) -> bool:
        """Whether it only waited for so long, in steps that can ask anew without doing anything twice.

        Whatever has a time limit goes on, so that its time runs.
        """
        if self._is_timed or not self.only_waits or monotonic() - self._still_since < seconds:
            return False
        nodes = [self._flow.nodes.get(step) for step in self._running]
        return all(node is not None and node.kind == "approve" and not node.timeout_ms for node in nodes)
