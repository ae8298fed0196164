"""Options, result and exit codes of a run on the orchestrator's side. Can be used without an event loop."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

TIMEOUT_SECONDS = 120.0
MAX_ID_CHARS = 200

EXIT_OK = 0
EXIT_STEP_FAILED = 1
EXIT_INVALID_FLOW = 2
"""The flow has an invalid schema or graph. Nothing was started."""
EXIT_REFUSED = 3
"""The runtime refused the flow or lacks capabilities, or the inputs are invalid."""
EXIT_BROKEN = 4
"""The runtime or its transport failed, or the run timed out."""
EXIT_INTERRUPTED = 130

_EXIT_CLASSES = {1: EXIT_REFUSED, 2: EXIT_STEP_FAILED, 3: EXIT_BROKEN}


def is_run_id(value: object) -> bool:
    """Returns True for a valid run id: 1 to MAX_ID_CHARS printable characters, without `/`."""
    return (
        isinstance(value, str) and 0 < len(value) <= MAX_ID_CHARS and value.isprintable() and "/" not in value
    )


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
    trace_id: str = msgspec.field(default_factory=lambda: str(uuid.uuid4()))
    timeout: float | None = TIMEOUT_SECONDS
    """Limit in seconds for the whole run, including the start of the runtime. None means no limit."""
    allow_shell: bool = False
    log_json: bool = False
    extra: Mapping[str, Any] = {}
    """Options of `StartRun` in addition to the three options of the specification."""


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
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
    def state(self) -> str:
        """State of the run as Hutch reports it. REP's status of a cancelled run is `failed`."""
        return "cancelled" if self.cancelled else self.status

    @property
    def outputs(self) -> Any:
        return self.summary.get("outputs")

    @property
    def wire(self) -> dict[str, Any]:
        """JSON object for the `--json` output."""
        return {
            "run_id": self.run_id,
            "flow": self.flow,
            "runtime": {"engine": self.engine, "version": self.runtime_version},
            "state": self.state,
            "status": self.status,  # former name of `state`, until version 0.3
            "exit_code": self.exit_code,
            "cancelled": self.cancelled,
            "duration_ms": round(self.seconds * 1000),
            "summary": self.summary,
            "error": self.error,
        }


def exit_for(code: int) -> int:
    """Maps an error code to the exit code of its class. Unknown classes map to EXIT_BROKEN."""
    return _EXIT_CLASSES.get(code // 1000, EXIT_BROKEN)
