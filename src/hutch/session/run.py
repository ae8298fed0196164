"""One run from its start to its result: the handle of a run in progress, and the result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from hutch.errors import ExecutionError
from hutch.text import cut

if TYPE_CHECKING:
    from hutch.session.host import Session

# Limits of the calls in a run record, which is stored and logged.
MAX_RECORDED_CALLS = 200
MAX_RECORDED_CHARS = 100

OnOutput = Callable[[Literal["stdout", "stderr"], bytes], None]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a run. `error` is None if and only if `ok` is True."""

    ok: bool
    result: Any = None
    error: ExecutionError | None = None
    logs: list[str] = []
    logs_truncated: bool = False
    duration_ms: float = 0.0
    run_id: str = ""
    result_json: bytes | None = None
    calls: Sequence[CallRecord] = ()
    """The first tool calls, in the order in which they ended; at most MAX_RECORDED_CALLS."""

    @property
    def stack(self) -> str | None:
        """Call stack of the guest's error, one frame per line; None if not known."""
        return None if self.error is None else self.error.stack

    def raise_for_error(self) -> Self:
        """Raises `error` if the execution failed. Otherwise returns this result."""
        if self.error is not None:
            raise self.error
        return self


class CallRecord(msgspec.Struct, frozen=True):
    """One tool call of a run."""

    provider: str
    tool: str
    ok: bool
    duration_ms: float

    @classmethod
    def of(cls, provider: str, tool: str, ok: bool, seconds: float) -> CallRecord:
        """Returns the record of a call. Long names are truncated."""
        names = cut(provider, MAX_RECORDED_CHARS), cut(tool, MAX_RECORDED_CHARS)
        return cls(*names, ok, round(seconds * 1000, 3))


class CallLog:
    """Log of tool calls that bypass the session of a run. Counts all calls and stores the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.records: list[CallRecord] = []

    def add(self, call: CallRecord) -> None:
        self.count += 1
        if len(self.records) < MAX_RECORDED_CALLS:
            self.records.append(call)


def new_run_id() -> str:
    return os.urandom(16).hex()


class RunHandle(msgspec.Struct, eq=False):
    """A run in progress: its id, its controls, and the data for its run record besides the result.

    A caller of `Kernel.run` passes a handle if it needs more than the result. A protocol whose guests report
    failures in their results overrides `failure_code`.
    """

    id: str = msgspec.field(default_factory=new_run_id)
    started_at: float = msgspec.field(default_factory=time.time)
    on_started: Callable[[], None] | None = None
    """Called when the guest starts running."""
    on_output: OnOutput | None = None
    """Receives the output of a guest program while it runs."""
    on_log: Callable[[str], None] | None = None
    """Called with each log line as it comes. It must not raise."""
    call_log: CallLog | None = None
    """Log of tool calls that bypass the session, filled during the run."""
    requests: Sequence[Any] = ()
    """Outgoing requests, filled during the run."""
    session: Session | None = None
    """Session of the current attempt; None while the run waits for a runner."""
    retries: int = 0
    """Number of retries on another runner, because the earlier runners were lost."""
    outcome: str = ""
    """`ok` or the error code. Empty until the run has ended."""

    def failure_code(self, value: Any) -> str | None:
        """Returns the error code if the result reports a failure, otherwise None. Called once per run."""
        return None

    def report_started(self) -> None:
        """Calls `on_started`, but only once, because a retried run has already started."""
        action, self.on_started = self.on_started, None
        if action is not None:
            action()

    def stop(self) -> bool:
        """Stops the guest. The run still gets a result with its logs. Returns False if no guest runs yet."""
        if self.session is None:
            return False
        self.session.cancel()
        return True

    def end(self, result: Result) -> None:
        error = result.error
        self.outcome = (self.failure_code(result.result) or "ok") if error is None else error.code

    @property
    def lost_runner(self) -> bool:
        """True if the runner of the last attempt was lost, apparently not because of this run."""
        return self.session is not None and self.session.lost

    @property
    def calls(self) -> list[CallRecord]:
        """Records of the first tool calls."""
        if self.call_log is not None:
            return self.call_log.records
        return [] if self.session is None else self.session.calls

    @property
    def call_count(self) -> int:
        if self.call_log is not None:
            return self.call_log.count
        return 0 if self.session is None else self.session.call_count
