"""The host's side of one execution: says execute, answers tool calls, keeps the time, and judges the end.

A state machine over callbacks: whoever owns the channel hands it the runner's messages. It believes
nothing that it cannot check: every code in a runner's `done` is accepted only where our own clock
or our own tool results bear it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import anyio
import msgspec
from msgspec import UNSET, Raw

from hutch.errors import ToolError, wire_code
from hutch.session.jsonvalue import NotJsonSafe, decode_value, encode_value, is_broken
from hutch.session.messages import (
    Cancel,
    Done,
    Job,
    Options,
    RunnerMessage,
    ToolCall,
    ToolResult,
    WireError,
    encode,
    execute_line,
    tool_result_line,
)
from hutch.session.providers import MAX_MESSAGE, Provider
from hutch.session.tools import ToolContext

BACKSTOP = 0.1
START_TIMEOUT = 60.0
LOOK_SECONDS = 0.01
MAX_RECORDED_CALLS = 1_000
MAX_OPEN_BYTES = 64 * 1024 * 1024
MAX_WASTED = 32 * 1024 * 1024
# What a guest that forges calls could make us keep for as long as it runs.
MAX_CALL_ID = 128
MAX_NAME = 1_024

TIMED_OUT = WireError(code="timeout", message="Execution timed out")

# Codes that we take a runner's word for; `timeout` is checked against our clock.
GUEST_CODES = frozenset({"runtime_error", "serialization_error", "result_too_large"})
"""Where the guest shares the runner's realm and could speak for it: what only harms itself."""
RUNNER_CODES = GUEST_CODES | {"memory_limit", "internal_error"}


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one execution."""

    timeout_ms: float = 5_000
    memory_limit_bytes: int = 67_108_864
    max_log_lines: int = 100
    max_log_chars: int = 64_000
    max_result_bytes: int = 8_388_608
    max_calls: int = 100_000
    max_outstanding_calls: int = 256
    cancel_grace_ms: int = 25
    """How long the runner may take to answer a cancel with the execution's logs."""
    engine: str | None = None
    """Which engine a runner that has several is to use."""

    def options(self) -> Options:
        return Options(
            timeout_ms=self.timeout_ms,
            memory_limit_bytes=self.memory_limit_bytes,
            max_log_lines=self.max_log_lines,
            max_log_chars=self.max_log_chars,
            max_result_bytes=self.max_result_bytes,
            engine=self.engine or UNSET,
        )


class CallRecord(msgspec.Struct, frozen=True):
    """One tool call, for the run's record."""

    provider: str
    tool: str
    ok: bool
    duration_ms: float


class Calls:
    """The calls of a run that go past its session, for its record: all are counted, the first are kept."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[CallRecord] = []

    def add(self, call: CallRecord) -> None:
        self.count += 1
        if len(self.first) < MAX_RECORDED_CALLS:
            self.first.append(call)


class Outcome(msgspec.Struct, kw_only=True):
    """How a session ended."""

    ok: bool
    result: Any = None
    result_json: bytes | None = None
    error: WireError | None = None
    logs: list[str] = []
    logs_truncated: bool = False
    duration_ms: float = 0.0
    calls: list[CallRecord] = []
    call_count: int = 0
    begun_again: int = 0
    """How often it was tried before, on runners that were lost."""
    lost: bool = False
    """The runner went away through no known fault of this execution."""
    unresponsive: bool = False
    """The runner did not answer a cancel within its grace."""


class Session:
    """One execution, as the host sees it."""

    def __init__(
        self,
        id: str,
        code: str,
        limits: Limits,
        providers: Sequence[Provider],
        send: Callable[[bytes], None],
        *,
        send_answer: Callable[[bytes], None] | None = None,
        writable: Callable[[], Any] | None = None,
        full_manifests: bool = True,
        trusted: bool = False,
        codes: frozenset[str] = RUNNER_CODES,
        start_seconds: float | None = None,
        backstop_seconds: float = BACKSTOP,
        on_started: Callable[[], None] | None = None,
        job: Job | None = None,
    ) -> None:
        """`send_answer`: says what a guest waits for, if there is a quicker way than `send`.

        `trusted`: the other side is a host itself, which has judged its runner as we would.

        `start_seconds`: how long the runner may take to start, beyond the execution's own time; with 0,
        one that does not start it has used up that time. `backstop_seconds`: how much more than its time
        it may take before we cancel it; none, if the runner leaves the time to us.
        """
        self.id = id
        self.limits = limits
        self.outcome: Outcome | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[None] | None = None
        self._code = code
        self._providers: Mapping[str, Provider] = {each.name: each for each in providers}
        self._send = send
        self._answer = send_answer or send
        self._writable = writable
        self._full_manifests = full_manifests
        self._trusted = trusted
        self._codes = codes
        self._start_seconds = START_TIMEOUT if start_seconds is None else start_seconds
        self._most_seconds = limits.timeout_ms / 1000 + backstop_seconds
        self._on_started = on_started
        self._job = job
        self.answered = False
        self._began_at, self._sent_at = self._loop.time(), monotonic()
        self._open_bytes = self._wasted = 0
        self._started_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._holds, self._held, self._held_since = 0, 0.0, 0.0
        self._cancelling = self._was_late = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._seen: set[str] = set()
        self._calls: list[CallRecord] = []
        self._reported: set[tuple[str, str]] = set()
        self._refused = 0
        self._cancelled: anyio.Event | None = None

    @property
    def started(self) -> bool:
        return self._started_at is not None

    @property
    def may_be_answered(self) -> bool:
        """Whether the runner may still say something of it: its last word, or that to a cancel."""
        return not self.answered or self._cancelling

    @property
    def called_tools(self) -> bool:
        return bool(self._seen)

    def begin(self) -> None:
        """Sends `execute`."""
        # The loop's own clock, which tools know, may count in whole milliseconds.
        self._began_at, self._sent_at = self._loop.time(), monotonic()
        # One timer for both deadlines: most executions are over before it is looked at.
        first = min(self._start_seconds or START_TIMEOUT, self._most_seconds)
        self._timer = self._loop.call_later(first, self._watch)
        manifests = [each.manifest_json(full=self._full_manifests) for each in self._providers.values()]
        self._send(execute_line(self.id, self._code, self.limits.options(), manifests, self._job))

    async def wait(self) -> Outcome:
        """The outcome. Cancelling the wait leaves the execution as it is."""
        while self.outcome is None:
            self._waiting = self._loop.create_future()
            await self._waiting
        return self.outcome

    def receive(self, message: RunnerMessage) -> bool:
        """Whether it was of use."""
        self.answered = self.answered or (isinstance(message, Done) and message.id == self.id)
        if self.outcome is not None:
            return False
        if isinstance(message, ToolCall):
            return self._tool_call(message)
        if message.id != self.id:
            return False
        if isinstance(message, Done):
            self._done(message)
            return True
        # Only the first counts: whoever could say it again could put off its own end.
        if self._started_at is not None:
            return False
        self._started_at = monotonic()
        if self._on_started is not None:
            self._on_started()
        return True

    def cancel(self) -> None:
        """Asks the runner to stop, stops our own tools now, and waits no longer than the grace."""
        if self._cancelling or self.outcome is not None:
            return
        self._cancelling = True
        self._abandon_tools()
        self._send(encode(Cancel(self.id)))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self.limits.cancel_grace_ms / 1000, self._give_up)

    def lose(self, reason: str) -> None:
        """The channel closed, or the runner failed, before `done`."""
        if self.outcome is not None:
            return
        if self._cancelling:
            self._settle(Outcome(ok=False, error=TIMED_OUT, unresponsive=True))
        else:
            message = f"The runner was lost: {reason}"
            self._settle(
                Outcome(ok=False, error=WireError(code="internal_error", message=message), lost=True)
            )

    def fail(self, error: WireError) -> None:
        """Something that we saw ourselves ends the execution, such as its memory limit."""
        if self.outcome is None:
            self._settle(Outcome(ok=False, error=TIMED_OUT if self._cancelling else error))

    def conclude(self, result: Any) -> None:
        """It ended by itself in a way that counts as a result, such as a program's own exit."""
        if self.outcome is None:
            ended = Outcome(ok=True, result=result, result_json=encode_value(result))
            self._settle(Outcome(ok=False, error=TIMED_OUT) if self._cancelling else ended)

    def _give_up(self) -> None:
        self._settle(Outcome(ok=False, error=TIMED_OUT, unresponsive=True))

    # --- tool calls ---

    def _tool_call(self, call: ToolCall) -> bool:
        if self._cancelling or call.call_id in self._seen or _oversized(call):
            return False
        size = memoryview(call.input).nbytes
        if size > self.limits.max_result_bytes:
            message = f"The input has {size} bytes of JSON; the limit is {self.limits.max_result_bytes}"
            self._answer_error(call.call_id, "serialization_error", message)
            return False
        if len(self._seen) >= self.limits.max_calls:
            self._refuse(call, f"More than {self.limits.max_calls} tool calls in one execution")
        elif len(self._tasks) >= self.limits.max_outstanding_calls:
            self._refuse(call, f"More than {self.limits.max_outstanding_calls} tool calls at once")
        elif self._open_bytes + size > MAX_OPEN_BYTES:
            self._refuse(call, f"More than {MAX_OPEN_BYTES} bytes of input in open tool calls")
        else:
            self._open_bytes += size
            self._seen.add(call.call_id)
            task = self._loop.create_task(self._dispatch(call))
            # In a loop whose tasks begin at once it may be over by now.
            if not task.done():
                self._tasks[call.call_id] = task
        return True

    def _refuse(self, call: ToolCall, message: str) -> None:
        self._refused += 1
        if self._refused > self.limits.max_calls:
            self.lose("it floods us with tool calls")
            return
        self._answer_error(call.call_id, wire_code("call_limit"), message)

    async def _dispatch(self, call: ToolCall) -> None:
        began = monotonic()
        ok = False
        try:
            if self._writable is not None:
                await self._writable()
            result = await self._invoke(call)
            if len(result) > self.limits.max_result_bytes:
                raise ToolError(
                    f"Tool {call.safe_tool_name} returned {len(result)} bytes of JSON;"
                    f" the limit is {self.limits.max_result_bytes}",
                    "serialization_error",
                )
            ok = True
            self._send_answer(tool_result_line(call.call_id, result))
        except ToolError as error:
            self._answer_error(call.call_id, error.tool_code, error.message)
        except asyncio.CancelledError:
            # Nobody is there to hear it, unless the tool itself raised this.
            self._answer_error(call.call_id, "tool_error", f"Tool {call.safe_tool_name} was cancelled")
            raise
        finally:
            # Not by a callback of the task: that would be another turn of the loop for every call.
            self._tasks.pop(call.call_id, None)
            self._open_bytes -= memoryview(call.input).nbytes
            if len(self._calls) < MAX_RECORDED_CALLS:
                elapsed = round((monotonic() - began) * 1000, 3)
                self._calls.append(CallRecord(call.provider_name, call.safe_tool_name, ok, elapsed))

    async def _invoke(self, call: ToolCall) -> bytes:
        provider = self._providers.get(call.provider_name)
        if provider is None:
            raise ToolError(f"Unknown tool {call.provider_name}.{call.safe_tool_name}", "internal_error")
        try:
            value = decode_value(bytes(call.input))
        except NotJsonSafe as error:
            self._waste(len(bytes(call.input)))
            raise ToolError(f"The input is not JSON: {error}", "serialization_error") from None
        if self._cancelled is None:
            self._cancelled = anyio.Event()
        context = ToolContext(
            run_id=self.id,
            provider=call.provider_name,
            tool=provider.original_name(call.safe_tool_name),
            deadline=self._began_at + self.limits.timeout_ms / 1000,
            cancelled=self._cancelled,
        )
        return await provider.dispatch(call.safe_tool_name, value, context)

    def _waste(self, size: int) -> None:
        """Our runners look at inputs before they send them: whoever sends such as these is none any more."""
        self._wasted += size
        if self._wasted > MAX_WASTED:
            self.lose("it sends inputs that are not JSON")

    def _answer_error(self, call_id: str, code: str, message: str) -> None:
        if len(self._reported) < MAX_RECORDED_CALLS:
            self._reported.add((code, message))
        error = WireError(code=code, message=message)
        self._send_answer(encode(ToolResult(call_id=call_id, ok=False, error=error)))

    def _send_answer(self, line: bytes) -> None:
        if not self._cancelling and self.outcome is None:
            self._answer(line)

    def _abandon_tools(self) -> None:
        if self._cancelled is not None:
            self._cancelled.set()
        for task in self._tasks.values():
            task.cancel()

    # --- the end ---

    def _done(self, done: Done) -> None:
        logs, clipped = clip_logs(done.logs, self.limits)
        duration = min(max(0.0, done.duration_ms), self._elapsed_ms())
        outcome = Outcome(ok=False, logs=logs, duration_ms=duration)
        outcome.logs_truncated = clipped or done.logs_truncated is True
        if self._cancelling:
            outcome.error = TIMED_OUT
        elif done.ok:
            self._accept(outcome, done.result)
        else:
            assert done.error is not UNSET
            outcome.error = self._judge(done.error)
        self._settle(outcome)

    def _accept(self, outcome: Outcome, result: Raw | msgspec.UnsetType) -> None:
        raw = b"" if result is UNSET else bytes(result)
        if len(raw) > self.limits.max_result_bytes:
            message = f"The result has {len(raw)} bytes of JSON; the limit is {self.limits.max_result_bytes}"
            outcome.error = WireError(code="result_too_large", message=message)
            return
        try:
            outcome.result = decode_value(raw) if raw else None
        except NotJsonSafe as error:
            outcome.error = WireError(code="serialization_error", message=f"The result is not JSON: {error}")
            return
        outcome.ok = True
        # It goes on as a part of other lines: JSON's own white space must not end one.
        outcome.result_json = (encode_value(outcome.result) if is_broken(raw) else raw) or None

    def _judge(self, error: WireError) -> WireError:
        """Accepts a code that we can bear out; anything else is the guest's own error."""
        if self._trusted or (error.code, error.message) in self._reported:
            return error
        # Only a host knows when it has a place.
        error = msgspec.structs.replace(error, retry_after=None)
        if len(error.message) > MAX_MESSAGE or len(error.name or "") > MAX_NAME:
            name, message = error.name and error.name[:MAX_NAME], f"{error.message[:MAX_MESSAGE]}…"
            error = msgspec.structs.replace(error, name=name, message=message)
        if error.code in self._codes:
            return error
        if error.code == "timeout" and self._elapsed_ms() + 1 >= self.limits.timeout_ms:
            return TIMED_OUT
        return msgspec.structs.replace(error, code="runtime_error")

    def _settle(self, outcome: Outcome) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._abandon_tools()
        if not outcome.duration_ms:
            outcome.duration_ms = self._elapsed_ms()
        outcome.calls = self._calls
        outcome.call_count = len(self._seen)
        self.outcome = outcome
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _elapsed_ms(self) -> float:
        return round((monotonic() - self._sent_at) * 1000, 3)

    # --- the clock ---

    def _deadline(self) -> float:
        """When the runner must have answered: the execution's time counts from `started` on."""
        if self._started_at is None:
            return self._sent_at + max(self._start_seconds, self._most_seconds)
        return self._started_at + self._most_seconds + self._held_seconds()

    def hold(self) -> None:
        """Until `go_on`, time does not count: a person is being asked. Only where the host alone keeps it."""
        if self._holds == 0:
            self._held_since = monotonic()
        self._holds += 1

    def go_on(self) -> None:
        self._holds -= 1
        if self._holds == 0:
            self._held += monotonic() - self._held_since

    def _held_seconds(self) -> float:
        return self._held + (monotonic() - self._held_since if self._holds else 0.0)

    def _watch(self) -> None:
        left = self._deadline() - monotonic()
        if left > 0:
            # It may start in the meantime, and then has no more than its time.
            most = left if self.started else min(left, max(self._most_seconds, LOOK_SECONDS))
            self._timer = self._loop.call_later(most, self._watch)
        elif -left > LOOK_SECONDS and not self._was_late:
            # We are late ourselves: what came in the meantime is to be read first.
            self._was_late = True
            self._timer = self._loop.call_later(min(-left, BACKSTOP), self._watch)
        elif self._started_at is None and self._start_seconds:
            self._miss_start()
        else:
            self.cancel()

    def _miss_start(self) -> None:
        """Another one of its kind would do no better: this is no loss by somebody else's fault."""
        message = f"The runner did not start the execution within {monotonic() - self._sent_at:.3g} s"
        error = WireError(code="internal_error", message=message)
        self._send(encode(Cancel(self.id)))
        self._settle(Outcome(ok=False, error=error, unresponsive=True))


def clip_logs(lines: list[str], limits: Limits) -> tuple[list[str], bool]:
    """Log lines within the limits, and whether there were more."""
    if len(lines) <= limits.max_log_lines and sum(map(len, lines)) <= limits.max_log_chars:
        return lines, False
    kept: list[str] = []
    left = limits.max_log_chars
    for line in lines[: limits.max_log_lines]:
        if left <= 0:
            break
        kept.append(line[:left])
        left -= len(line)
    return kept, True


def _oversized(call: ToolCall) -> bool:
    return len(call.call_id) > MAX_CALL_ID or len(call.provider_name) + len(call.safe_tool_name) > MAX_NAME
