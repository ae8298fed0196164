"""How a run is to be, and how it ended, as its orchestrator tells it. Needs no event loop."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

TIMEOUT_SECONDS = 120.0


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a run is to be."""

    run_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
    trace_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
    timeout: float | None = TIMEOUT_SECONDS
    """Seconds for all of it, the runtime's start included. None is without a limit."""
    allow_shell: bool = False
    log_json: bool = False
    more: Mapping[str, Any] = {}
    """Options of `StartRun` beyond the specification's three."""


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    run_id: str
    flow: str
    engine: str
    status: Literal["completed", "failed"]
    exit_code: int
    summary: dict[str, Any] = {}
    error: dict[str, Any] | None = None
    cancelled: bool = False
    runtime_version: str | None = None
    seconds: float = 0.0

    @property
    def outputs(self) -> Any:
        return self.summary.get("outputs")

    @property
    def wire(self) -> dict[str, Any]:
        """For other programs."""
        return {
            "run_id": self.run_id,
            "flow": self.flow,
            "runtime": {"engine": self.engine, "version": self.runtime_version},
            "status": self.status,
            "exit_code": self.exit_code,
            "cancelled": self.cancelled,
            "duration_ms": round(self.seconds * 1000),
            "summary": self.summary,
            "error": self.error,
        }
