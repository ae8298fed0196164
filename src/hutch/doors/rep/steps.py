"""How a step ended, and where that is written down before anything follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec


class StepResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step that is over, its retries included."""

    state: Literal["succeeded", "failed"]
    output: Any = None
    error: dict[str, Any] | None = None
    """As in the run's summary: code, message, data."""
    attempts: int = 1

    @property
    def seen(self) -> Any:
        """What references find: the output or, for a step after a failure, why."""
        return self.output if self.error is None else {"error": _told(self.error)}


def _told(error: Mapping[str, Any]) -> dict[str, Any]:
    data = error["data"]
    return {
        "code": error["code"],
        "message": error["message"],
        "details": data["details"],
        "attempt": data["attempt"],
    }


class Journal(Protocol):
    """Where a run is written down, so that it can be gone on with after a crash."""

    async def step_finished(self, run_id: str, step_id: str, result: StepResult) -> None:
        """Returns when it is safe; what follows from the step begins only then."""

    def event(self, run_id: str, event: Mapping[str, Any]) -> None:
        """One more event. Does not wait."""

    async def finished(self, run_id: str, summary: Summary) -> None:
        """The run is over. Raises HutchError if that cannot be written."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run is, or how it ended."""

    completed_steps: int
    failed_steps: int
    skipped_steps: int
    total_steps: int
    outputs: Any = None
    error: dict[str, Any] | None = None
    cancelled: bool = False

    @property
    def wire(self) -> dict[str, Any]:
        """While it runs, and without outputs and error: the counts alone."""
        told: dict[str, Any] = {
            "completed_steps": self.completed_steps,
            "failed_steps": self.failed_steps,
            "skipped_steps": self.skipped_steps,
            "total_steps": self.total_steps,
        }
        if self.outputs is not None:
            told["outputs"] = self.outputs
        if self.error is not None:
            told["error"] = self.error
        if self.cancelled:
            told["cancelled"] = True
        return told
