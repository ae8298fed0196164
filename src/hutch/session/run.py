"""One run from its start to its result: the handle of a run in progress, its events, and the result."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from hutch.errors import ExecutionError
from hutch.session.files.model import File
from hutch.session.json_value import decode_value
from hutch.text import cut, format_unix_time

if TYPE_CHECKING:
    from hutch.session.calls.tool_calls import ToolCalls
    from hutch.session.events.timeline import RecordedPart, RunTimeline
    from hutch.session.host import Session
    from hutch.telemetry.trace_context import TraceContext

# Maximum number of tool calls in a run record, and maximum length of a name in them. Run records are stored
# and logged.
MAX_RECORDED_CALLS = 200
MAX_RECORDED_CHARS = 100

SUSPENDED = "suspended"
"""Error code and outcome of a run that was suspended."""

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
    pending_calls: Sequence[PendingCall] = ()
    """Tool calls that a suspended run waits for. The result of such a run has the error code `suspended`."""
    warnings: Sequence[str] = ()
    """Problems that did not stop the run, such as an MCP server that could not be reached."""
    files: Sequence[File] = ()
    """Files that the guest wrote with `files.write` or `display`."""
    script: ScriptOutput | None = None
    """Output of a toolscript that was suspended."""

    @property
    def stack(self) -> str | None:
        """Call stack of the guest's error, one frame per line; None if not known."""
        return None if self.error is None else self.error.stack

    def raise_for_error(self) -> Self:
        """Raises `error` if the execution failed. Otherwise returns this result."""
        if self.error is not None:
            raise self.error
        return self


class ScriptOutput(msgspec.Struct, frozen=True):
    """Exit code and output of a toolscript, and the message of Hutch about its end."""

    exit_code: int
    stdout: str
    stderr: str
    message: str | None = None


def refused_result(message: str, retry_after: float, run_id: str) -> Result:
    """Returns the result of a run that was refused because its owner has used up a quota."""
    error = ExecutionError("rate_limited", message, retry_after=retry_after)
    return Result(ok=False, error=error, run_id=run_id)


class CallRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool call of a run."""

    provider: str
    tool: str
    ok: bool
    duration_ms: float
    start_ms: float | None = None
    """Start of the call in milliseconds since the guest began to run; None if not known."""
    line: int | None = None
    """Line of the guest's source that made the call; None if not known."""
    code: str | None = None
    """Code of the error that the guest got."""
    span_id: str | None = None
    """Id of the call's span if the run is traced."""

    @classmethod
    def of(
        cls,
        provider: str,
        tool: str,
        ok: bool,
        seconds: float,
        *,
        start_ms: float | None = None,
        line: int | None = None,
        code: str | None = None,
        span_id: str | None = None,
    ) -> CallRecord:
        """Returns the record of a call. Long names are truncated."""
        names = cut(provider, MAX_RECORDED_CHARS), cut(tool, MAX_RECORDED_CHARS)
        return cls(*names, ok, to_milliseconds(seconds), start_ms, line, code, span_id)


class PendingCall(msgspec.Struct, frozen=True, kw_only=True):
    """Tool call of a suspended run whose result comes later."""

    call_id: str
    provider: str
    tool: str
    """Safe name of the tool."""
    input_json: bytes
    message: str = ""
    """Text of the `Suspend` that the tool raised."""
    token: str | None = None
    """Token with which `Hutch.resolve` delivers the result."""
    question: str | None = None
    """JSON text of the question, if the call waits for an approval."""
    started_at: float
    """Unix time of the call."""
    start_ms: float
    line: int | None = None
    in_flight: Literal["once", "repeatable"] | None = None
    """Set if the tool was running when the run was stored. If the process dies, only a `repeatable` call,
    whose tool is idempotent, is made again.
    """

    @property
    def input(self) -> Any:
        return decode_value(self.input_json)


class Wait(msgspec.Struct, frozen=True, omit_defaults=True):
    """A period in which a run waited."""

    kind: Literal["queue", "install", "start", "approval"]
    start_ms: float
    """Start in milliseconds since the guest began to run; negative for waits before that."""
    duration_ms: float
    subject: str | None = None
    """Cause of the wait, such as the name of the tool whose call needs an approval."""


class RunClock(msgspec.Struct, eq=False):
    """Times of a run, in seconds since it was created. They come from a monotonic clock, so that a jump of
    the system's clock does not change durations.
    """

    created: float = msgspec.field(default_factory=time.monotonic)
    """Time at which the run was created, on the monotonic clock."""
    leased: float | None = None
    """Time at which the run got its first runner."""
    started: float | None = None
    """Time at which the guest began to run."""
    ended: float | None = None

    def now(self) -> float:
        return time.monotonic() - self.created

    def since_start_ms(self) -> float:
        """Returns the milliseconds since the guest began to run."""
        return to_milliseconds(time.monotonic() - self.created - (self.started or 0.0))


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Something that happened in a run."""

    at: float = msgspec.field(default_factory=time.time)
    """Unix time in seconds."""


class RunQueued(_Event, frozen=True, tag="queued"):
    """The run waits for a runner. It may be the first event of a run that never starts."""


class RunStarted(_Event, frozen=True, tag="started"):
    """The guest starts running."""

    run_id: str
    """Id of the run; with `hutch.connect`, the id on the server."""


class RunLog(_Event, frozen=True, tag="log"):
    line: str


class _EventWithJson(_Event, frozen=True):
    def __repr__(self) -> str:
        """Shows up to 200 characters of JSON texts instead of `Raw` objects."""
        fields = []
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, Raw):
                text = bytes(memoryview(value)[:800]).decode(errors="replace")
                fields.append(f"{name.removesuffix('_json')}={cut(text, 200)}")
            elif value is not UNSET and value is not None:
                fields.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(fields)})"


class ToolCallStarted(_EventWithJson, frozen=True, tag="tool_call_started"):
    call_id: str = msgspec.field(name="call")
    provider: str
    tool: str
    line: int | None = None
    """Line of the guest's source that makes the call, if known."""
    input_json: Raw | UnsetType = msgspec.field(name="input", default=UNSET)

    @property
    def input(self) -> Any:
        return _decode(self.input_json)


class ToolProgress(_EventWithJson, frozen=True, tag="progress"):
    """A value that a tool passed to `ToolContext.progress`."""

    call_id: str = msgspec.field(name="call")
    value_json: Raw = msgspec.field(name="value")

    @property
    def value(self) -> Any:
        return _decode(self.value_json)


class ToolCallEnded(_EventWithJson, frozen=True, tag="tool_call_ended"):
    call_id: str = msgspec.field(name="call")
    ok: bool
    duration_ms: float
    code: str | UnsetType = UNSET
    """Code of the error that the guest gets."""
    message: str | UnsetType = UNSET
    """Message of that error."""
    output_json: Raw | UnsetType = msgspec.field(name="output", default=UNSET)

    @property
    def output(self) -> Any:
        return _decode(self.output_json)


class RunSuspended(_Event, frozen=True, tag="suspended"):
    """The run was stored and waits. `RunEnded` with the outcome `suspended` follows if the run does not
    continue in this process.
    """

    calls: list[str]
    """Ids of the pending calls."""


class RunEnded(_Event, frozen=True, tag="end"):
    """The last event of every run."""

    outcome: str
    """`ok` or the error code."""
    result: Result | None = None
    """None if the execution could not be started."""


RunEvent: TypeAlias = (
    RunQueued | RunStarted | RunLog | ToolCallStarted | ToolProgress | ToolCallEnded | RunSuspended | RunEnded
)
Listener: TypeAlias = Callable[[RunEvent], None]
"""Receives the events of a run in order. It must not raise."""


def _decode(json: Raw | UnsetType) -> Any:
    return None if json is UNSET else decode_value(bytes(json))


def event_json(event: RunEvent, run_id: str, *, values: bool) -> bytes:
    """Encodes an event for another process. Without `values`, omits the inputs and outputs of tool calls.
    Always omits the result of the run.
    """
    fields: dict[str, Any] = {"type": event.__struct_config__.tag, "run_id": run_id}
    encoded_names = zip(event.__struct_fields__, event.__struct_encode_fields__, strict=True)
    for name, encoded in encoded_names:
        value = getattr(event, name)
        is_value = name in ("input_json", "output_json", "message")
        if value is None or value is UNSET or name == "result" or (is_value and not values):
            continue
        fields[encoded] = format_unix_time(value) if name == "at" else value
    return msgspec.json.encode(fields)


def log_listener(on_log: Callable[[str], object]) -> Listener:
    """Returns a listener that calls `on_log` with each log line."""

    def listen(event: RunEvent) -> None:
        if isinstance(event, RunLog):
            on_log(event.line)

    return listen


class CallLog:
    """Log of tool calls that bypass the session of a run. Counts all calls and stores the first ones."""

    def __init__(self) -> None:
        self.count = 0
        self.records: list[CallRecord] = []
        self.run: RunHandle | None = None
        """The run of these calls. None until it is known."""

    def since_start_ms(self, at: float) -> float | None:
        """Converts a time of the monotonic clock to milliseconds since the guest began to run."""
        if self.run is None:
            return None
        clock = self.run.clock
        return to_milliseconds(at - clock.created - (clock.started or 0.0))

    def add(self, call: CallRecord) -> None:
        self.count += 1
        if len(self.records) < MAX_RECORDED_CALLS:
            self.records.append(call)


def to_milliseconds(seconds: float) -> float:
    """Returns milliseconds, rounded to microseconds."""
    # The same as `round(seconds * 1000, 3)`, which takes four times as long.
    return round(seconds * 1e6) / 1000


def new_run_id() -> str:
    return os.urandom(16).hex()


class TextRedactor(Protocol):
    """Replaces secrets in text."""

    def text(self, text: str) -> str: ...

    async def long_text(self, text: str) -> str:
        """Like `text`, but lets other tasks run meanwhile."""


class Charge(Protocol):
    """Counts the bytes of an execution's state in the host; see `kernel.state_memory`."""

    def add(self, size: int) -> bool:
        """Returns False, and adds nothing, if a limit would be exceeded."""

    def set(self, size: int) -> None: ...

    def release(self) -> None: ...


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
    listeners: list[Listener] = []
    """Receive the events of the run. A listener that is added before the guest starts gets log lines while
    the guest runs; otherwise log lines arrive at the end.
    """
    call_log: CallLog | None = None
    """Log of tool calls that bypass the session, filled during the run."""
    requests: Sequence[Any] = ()
    """Outgoing requests, filled during the run."""
    session: Session | None = None
    """Session of the current attempt; None while the run waits for a runner."""
    open_calls: ToolCalls | None = None
    """Calls of a run that was suspended while tools ran. Its next session continues with them."""
    retries: int = 0
    """Number of retries on another runner, because the earlier runners were lost."""
    has_started: bool = False
    is_cancelled: bool = False
    """True if the run was cancelled, or its caller disconnected."""
    outcome: str = ""
    """`ok` or the error code. Empty until the run has ended."""
    clock: RunClock = msgspec.field(default_factory=RunClock)
    install_ms: float = 0.0
    """Time that the installation of the run's package took, before the run was created."""
    waits: list[Wait] = []
    cpu_seconds: float = 0.0
    """CPU time that the runner's process spent on this run."""
    record_level: str | None = None
    """Level with which the run is recorded. None for the level of the settings."""
    timeline: RunTimeline | None = None
    """Collects log lines and tool calls, if runs are recorded."""
    recorded_before: RecordedPart | None = None
    """Part of the record that was written before the run was suspended."""
    redactor: TextRedactor | None = None
    """Replaces the run's secrets in text that is recorded."""
    trace: TraceContext | None = None
    """Context of the run's span. None if the run is not traced."""
    generation: int = 0
    """Number of suspensions of the run before it was continued with this handle."""
    before_call: Callable[[bool], Awaitable[None]] | None = None
    """Awaited before each tool call, with True if its tool is idempotent. If it raises a HutchError, the call
    fails.
    """
    is_stored: bool = False
    """True if this process holds the run in the store: it was resumed, or stored while it waited for tools.
    """
    charge: Charge | None = None
    """Counts the memory that the execution's suspended state uses in the host."""
    must_suspend: bool = False
    """True if the run has to be suspended when it next waits, and must not be continued here; see `suspend`.
    """
    is_abandoned: bool = False
    """True if the client that has the run's tools was lost. A stored run then stays suspended."""
    on_suspend_refused: Callable[[str], None] | None = None
    """Called with the reason if the run cannot be suspended, although `suspend` was called."""

    @property
    def failure_message(self) -> str | None:
        """Message of a failure that the result reports; see `failure_code`."""
        return None

    def redacted(self, text: str) -> str:
        return text if self.redactor is None else self.redactor.text(text)

    def failure_code(self, value: Any) -> str | None:
        """Returns the error code if the value of a successful run reports a failure, otherwise None. Called
        once per run.
        """
        return None

    @property
    def is_followed(self) -> bool:
        """True if the run has listeners besides its timeline, which needs only log lines and tool calls."""
        return len(self.listeners) > (self.timeline is not None)

    def emit(self, event: RunEvent) -> None:
        for listener in self.listeners:
            listener(event)

    def report_started(self) -> None:
        """Reports the start, but only once, because a retried run has already started."""
        if self.has_started:
            return
        self.has_started = True
        self.clock.started = self.clock.now()
        if self.on_started is not None:
            self.on_started()
        if self.is_followed:
            self.emit(RunStarted(run_id=self.id if self.session is None else self.session.run_id))

    def stop(self) -> bool:
        """Stops the guest. The run still gets a result with its logs, and its outcome is `cancelled`. Returns
        False if no guest is running yet. In that case the run ends when it gets a runner.
        """
        self.is_cancelled = True
        if self.session is None:
            return False
        self.session.cancel()
        return True

    def suspend(self) -> None:
        """Suspends the run when it next waits for tools or timers. The run is not continued in this process,
        even if all its calls have results.
        """
        self.must_suspend = True
        if self.session is not None:
            self.session.suspend(self.on_suspend_refused)

    def abandon(self) -> bool:
        """Called when the client that has the run's tools was lost. Returns False if the run is not stored,
        so that it has to end.
        """
        session = self.session
        if not self.is_stored and (session is None or session.saved is None):
            return False
        self.is_abandoned = True
        return True

    def outcome_of(self, result: Result) -> str:
        """Returns `ok` or the error code."""
        if result.error is None:
            return self.failure_code(result.result) or "ok"
        return "cancelled" if self.is_cancelled else result.error.code

    def end(self, result: Result) -> None:
        self.clock.ended = self.clock.now()
        self.outcome = self.outcome_of(result)
        if self.listeners:
            # Emit the log lines that were not sent while the guest ran, for example because its process was
            # killed.
            sent = 0 if self.session is None else self.session.log_lines
            for line in result.logs[sent:]:
                self.emit(RunLog(line=line))
        if self.is_followed:
            self.emit(RunEnded(outcome=self.outcome, result=result))

    def fail(self, code: str) -> None:
        """Ends the run without a result, because it could not be started or its caller disconnected."""
        self.clock.ended = self.clock.now()
        self.outcome = code
        if self.is_followed:
            self.emit(RunEnded(outcome=code))

    @property
    def lost_runner(self) -> bool:
        """True if the runner of the last attempt was lost, and this run was apparently not the cause."""
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
