"""Results of steps and runs, and the interface of the journal that stores them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from hutch.protocols.rep.jsonrpc import TIMEOUT


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Final result of a step, after all retries."""

    state: Literal["succeeded", "failed"]
    output: Any = None
    error: dict[str, Any] | None = None
    """Object with code, message and data, as in the run's summary."""
    attempts: int = 1

    @property
    def reference_value(self) -> Any:
        """Value that references to this step resolve to: the output, or the error if the step failed."""
        return self.output if self.error is None else {"error": _error_reference(self.error)}


def _error_reference(error: Mapping[str, Any]) -> dict[str, Any]:
    data = error["data"]
    return {
        "code": error["code"],
        "message": error["message"],
        "details": data["details"],
        "attempt": data["attempt"],
    }


class JournalWriter(Protocol):
    """Stores the progress of a run, so that it can be resumed after a crash."""

    async def step_finished(
        self, run_id: str, step_id: str, result: StepResult, record: Mapping[str, Any]
    ) -> None:
        """Stores the result of a step and waits until the result is durable. The next steps start only after
        that.

        `record` describes the step for people, with a bounded copy of its input and output.
        """

    def add_event(self, run_id: str, event: Mapping[str, Any]) -> None:
        """Adds an event without waiting for the write."""

    async def run_finished(self, run_id: str, summary: RunSummary) -> None:
        """Stores the end of the run. Raises HutchError if the write fails."""


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Step counts of a run and, after its end, the outputs or the error."""

    completed_steps: int
    failed_steps: int
    skipped_steps: int
    total_steps: int
    outputs: Any = None
    error: dict[str, Any] | None = None
    cancelled: bool = False

    @property
    def outcome(self) -> str:
        """Outcome of a run that has ended: `ok`, `cancelled`, `timeout` if a timeout caused the error,
        otherwise a name for the class of the error code.
        """
        if self.error is None:
            return "ok"
        if self.cancelled:
            return "cancelled"
        data = self.error.get("data")
        if isinstance(data, dict) and data.get("cause") == TIMEOUT:
            return "timeout"
        return {1: "invalid_flow", 2: "step_failed"}.get(self.error["code"] // 1000, "runtime_failed")

    @property
    def wire(self) -> dict[str, Any]:
        """JSON object of the protocol. Includes `outputs`, `error` and `cancelled` only if they are set."""
        fields: dict[str, Any] = {
            "completed_steps": self.completed_steps,
            "failed_steps": self.failed_steps,
            "skipped_steps": self.skipped_steps,
            "total_steps": self.total_steps,
        }
        if self.outputs is not None:
            fields["outputs"] = self.outputs
        if self.error is not None:
            fields["error"] = self.error
        if self.cancelled:
            fields["cancelled"] = True
        return fields
