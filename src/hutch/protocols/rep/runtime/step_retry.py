"""Retries failed steps of a flow after their backoff."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from hutch.protocols.rep.runtime.step import AttemptFailed, AttemptSucceeded

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import FlowNode


class StepRetries:
    """Decides which steps of a run are retried, and starts the retries."""

    def __init__(
        self, start: Callable[[FlowNode, int], None], emit: Callable[..., None], prefix: str = ""
    ) -> None:
        """`start` is called with a step and the number of its next attempt. `prefix` is prepended to step ids
        in events.
        """
        self._start = start
        self._emit = emit
        self._prefix = prefix
        self._timers: set[asyncio.TimerHandle] = set()

    def should_retry(self, node: FlowNode, attempt: int, outcome: AttemptSucceeded | AttemptFailed) -> bool:
        return isinstance(outcome, AttemptFailed) and outcome.retriable and attempt < node.retry_max

    def schedule(self, node: FlowNode, attempt: int) -> None:
        """Starts the attempt after the step's backoff."""

        def start() -> None:
            self._timers.discard(timer)
            self._start(node, attempt)

        seconds = node.backoff_ms / 1000
        message = f"trying again in {seconds:g} s" if seconds else "trying again"
        self._emit("log", level="warning", message=message, step_id=self._prefix + node.id, attempt=attempt)
        timer = asyncio.get_running_loop().call_later(seconds, start)
        self._timers.add(timer)

    def cancel(self) -> None:
        """Cancels the retries that wait for their backoff."""
        for timer in self._timers:
            timer.cancel()
