"""Tool calls of one session: checks each call, runs its tool, sends the result and records the call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Raw

from hutch.errors import Suspend, ToolError, wire_code
from hutch.session.calls.call_events import report_end, report_start
from hutch.session.calls.description import (
    deferred_call,
    is_idempotent,
    is_oversized,
    line_of,
    repeated_call,
    run_call_id,
    running_call,
    shown,
    shown_name,
    suspended_line,
    unended_warning,
)
from hutch.session.calls.file_tasks import FileCallTasks
from hutch.session.calls.link import SessionLink
from hutch.session.calls.reports import CallReports
from hutch.session.calls.suspension_replies import SuspensionReplies
from hutch.session.files import calls as file_calls
from hutch.session.files.calls import FileCalls
from hutch.session.json_value import NotJsonSafe, decode_value
from hutch.session.large_json import LARGE_TEXT_BYTES, decode_large_value
from hutch.session.messages import ToolCall, ToolResult, WireError, encode, tool_item_line, tool_result_line
from hutch.session.run import (
    MAX_RECORDED_CALLS,
    CallRecord,
    Listener,
    PendingCall,
    RunEvent,
    ToolProgress,
    to_milliseconds,
)
from hutch.session.suspension import Answer, SavedSession
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import ToolContext
from hutch.tasks import start_now
from hutch.telemetry.trace_context import TraceContext, current

if TYPE_CHECKING:
    import anyio

    from hutch.session.limits import Limits

MAX_OPEN_INPUT_BYTES = 64 * 1024 * 1024
MAX_INVALID_INPUT_BYTES = 32 * 1024 * 1024
MAX_REMEMBERED_ERRORS = 1_000


class _RunningCall(NamedTuple):
    """A call whose tool is running."""

    task: asyncio.Task[None]
    call: ToolCall
    began: float
    """Start of the call on the monotonic clock."""
    trace: TraceContext | None


class ToolCalls:
    """Tool calls of one session."""

    def __init__(
        self,
        run_id: str,
        limits: Limits,
        providers: Mapping[str, Provider],
        link: SessionLink,
        listeners: Sequence[Listener],
        *,
        loop: asyncio.AbstractEventLoop,
        trace: TraceContext | None = None,
    ) -> None:
        """`trace`: span of the run."""
        self.run_id = run_id
        self.deadline = 0.0
        """End of the execution's time limit, on the event loop's clock."""
        self.started_at = 0.0
        """Time at which the guest began to run, on the monotonic clock."""
        self.count = 0
        """Number of accepted calls."""
        self.records: list[CallRecord] = []
        """Records of ended calls, at most MAX_RECORDED_CALLS."""
        self.errors: set[tuple[str, str]] = set()
        """Codes and messages of at most MAX_REMEMBERED_ERRORS errors that the guest has received."""
        self.pending: dict[str, PendingCall] = {}
        """Open calls whose results will arrive later, by id."""
        self._link = link
        self._suspension: SuspensionReplies | None = None
        """None until the runner is asked to suspend the run."""
        self._is_suspended = False
        self._active_at = 0.0
        self._wait_timer: asyncio.TimerHandle | None = None
        self._limits = limits
        self._providers = providers
        self._listeners = listeners
        self._trace = trace
        self._loop, self._thread = loop, threading.get_ident()
        self._ids: set[str] = set()
        self._file_tasks: FileCallTasks | None = None
        self._tasks: dict[str, _RunningCall] = {}
        """Running tools by call id."""
        self._open_bytes = self._invalid_input_bytes = self._refused = 0
        self._is_cancelled = self._has_ended = False
        self._cancelled: anyio.Event | None = None

    def receive(self, call: ToolCall) -> bool:
        """Starts the tool of a call, or refuses the call. Returns True if the call was expected."""
        if self._is_cancelled or call.call_id in self._ids or is_oversized(call):
            return False
        if self._link.files is not None and call.provider_name == file_calls.PROVIDER:
            return self._receive_file_call(call, self._link.files)
        provider = self._providers.get(call.provider_name)
        if provider is None or call.safe_tool_name not in provider.tools:
            self._refuse(call, f"Unknown tool {shown_name(call)}", "internal_error")
            return False
        limits, size = self._limits, memoryview(call.input).nbytes
        if size > limits.max_result_bytes:
            message = f"The input has {size} bytes of JSON; the limit is {limits.max_result_bytes}"
            self._reply_error(call.call_id, "serialization_error", message)
            return False
        if self.count >= limits.max_calls:
            self._refuse(call, f"More than {limits.max_calls} tool calls in one execution")
        elif len(self._tasks) + len(self.pending) >= limits.max_outstanding_calls:
            self._refuse(call, f"More than {limits.max_outstanding_calls} tool calls at once")
        elif self._open_bytes + size > MAX_OPEN_INPUT_BYTES:
            self._refuse(call, f"More than {MAX_OPEN_INPUT_BYTES} bytes of input in open tool calls")
        else:
            self.count += 1
            self._open_bytes += size
            self._ids.add(call.call_id)
            self._start(call, provider)
        return True

    def _start(self, call: ToolCall, provider: Provider, *, is_repeated: bool = False) -> None:
        trace = self._trace
        if trace is not None and not provider.is_internal:
            trace = trace.child()
        # Emit the event here and not in the task: if the run ends before the task begins, the call must
        # nevertheless be recorded.
        if self._listeners and not is_repeated:
            report_start(self._listeners, call)
        began = monotonic()
        task = start_now(self._dispatch(call, provider, trace, is_repeated=is_repeated), self._loop)
        if not task.done():
            self._tasks[call.call_id] = _RunningCall(task, call, began, trace)
            self._watch_wait()

    def _receive_file_call(self, call: ToolCall, files: FileCalls) -> bool:
        if self._file_tasks is None:
            self._file_tasks = FileCallTasks(self._reply, self._reply_error, self._loop)
        problem = self._file_tasks.problem(files, self._limits)
        if problem is not None:
            self._refuse(call, problem)
        else:
            self._ids.add(call.call_id)
            self._file_tasks.start(call, files, self._link.writable)
        return True

    def _watch_wait(self) -> None:
        """Starts the timer for `on_long_wait`."""
        if not self._link.max_wait_seconds:
            return
        self._active_at = self._loop.time()
        if self._wait_timer is None:
            self._wait_timer = self._loop.call_later(self._link.max_wait_seconds, self._check_wait)

    def _check_wait(self) -> None:
        self._wait_timer = None
        if not self._tasks or self._is_suspended or self._is_cancelled or self._link.on_long_wait is None:
            return
        seconds_left = self._active_at + self._link.max_wait_seconds - self._loop.time()
        if seconds_left > 0:
            self._wait_timer = self._loop.call_later(seconds_left, self._check_wait)
        else:
            self._link.on_long_wait()

    def open_tools(self) -> list[str]:
        """Returns the names of the tools whose results the guest waits for."""
        running = [shown_name(running.call) for running in self._tasks.values()]
        return running + [shown(call.provider, call.tool) for call in self.pending.values()]

    # --- suspension ---

    def restore(self, saved: SavedSession) -> None:
        """Continues with the calls of a suspended session."""
        self.count = saved.call_count
        self.records = list(saved.calls)
        self.errors = set(saved.errors)
        self.pending = {call.call_id: call for call in (*saved.pending, *saved.in_flight)}
        self._open_bytes = sum(len(call.input_json) for call in self.pending.values())
        # Use the runner's state rather than `pending`, because it also has the calls that were answered
        # during the suspension.
        self._ids = {call_id for call_id, _, _, _ in saved.state.calls}

    def attach(self, link: SessionLink) -> None:
        """Continues in another session of the same run while tools are still running."""
        self._link = link
        self._is_suspended = False

    def take_held(self) -> list[bytes]:
        """Returns the replies that the guest has not received. The caller sends them to the runner in which
        the guest continues.
        """
        if self._tasks:
            self._watch_wait()
        return [] if self._suspension is None else self._suspension.take()

    def repeat(self, call: PendingCall) -> None:
        """Repeats a call that was in progress in another process when that process died."""
        provider = self._providers.get(call.provider)
        if provider is None or call.tool not in provider.tools:
            reason = f"The process died while it called {call.tool}, and the tool is not available now"
            self.answer(call.call_id, Answer(code="tool_error", message=reason))
            return
        self.pending.pop(call.call_id)
        self._start(repeated_call(call), provider, is_repeated=True)

    def expect_suspension(self) -> None:
        """Stores replies from now on, because the runner was asked to suspend the run."""
        if self._suspension is None:
            self._suspension = SuspensionReplies()
        else:
            self._suspension.begin()

    def forget_replies(self) -> None:
        """Drops the stored replies, because the run was not suspended."""
        if self._suspension is not None:
            self._suspension.forget()

    def in_flight(self) -> list[PendingCall]:
        """Returns the calls of a suspended run whose tools still run, or ended after the suspension."""
        running = [self._running_call(tool.call, tool.began) for tool in self._tasks.values()]
        return running if self._suspension is None else running + self._suspension.finished_calls()

    def running(self) -> list[CallRecord]:
        """Returns `interrupted` records of the running calls. They are stored in case the process dies."""
        return self._running_records("interrupted")

    def _running_records(self, code: str) -> list[CallRecord]:
        return [
            CallRecord.of(
                call.provider_name,
                call.safe_tool_name,
                False,
                monotonic() - began,
                start_ms=self._start_ms(began),
                line=line_of(call),
                code=code,
                span_id=self._span_id(trace),
            )
            for _, call, began, trace in self._tasks.values()
        ]

    def _span_id(self, trace: TraceContext | None) -> str | None:
        """Returns the id of a call's own span. Calls of internal tools have none."""
        return None if trace is None or trace is self._trace else trace.span_id

    def unended_warning(self, open_calls: int) -> str | None:
        """Returns a warning about the calls whose results the guest has not received, if there are any.
        `open_calls`: their number according to the guest, or 0 if it does not tell.
        """
        if not (open_calls > 0 or self._tasks or self.pending):
            return None
        calls = [
            (shown_name(call), line_of(call))
            for _, call, _, _ in self._tasks.values()
            if not self._providers[call.provider_name].is_internal
        ]
        calls += [(shown(call.provider, call.tool), call.line) for call in self.pending.values()]
        # The results of the calls that ended last may be on their way to the guest.
        sent = open_calls - len(self._tasks) - len(self.pending)
        if sent > 0:
            calls = [
                *(
                    (shown(record.provider, record.tool), record.line)
                    for record in self.records[-sent:]
                    if record.provider in self._providers and not self._providers[record.provider].is_internal
                ),
                *calls,
            ]
        return unended_warning(calls) if calls else None

    def begin_journal(self, journal: Callable[[str, Answer], Awaitable[None]]) -> dict[str, Answer]:
        """From now on, passes the results of all running tools to `journal` before the guest gets them.
        Returns the results that arrived since the run was suspended.
        """
        assert self._suspension is not None
        # The results of streams are not stored, because the guest has already received some of their items.
        running = [call_id for call_id, tool in self._tasks.items() if tool.call.stream is not True]
        return self._suspension.begin_journal(journal, running)

    def hold(self, open_calls: Mapping[str, int]) -> None:
        """Holds back replies from now on, because the run is suspended. `open_calls`: see
        `SuspensionReplies.drop_received`.
        """
        assert self._suspension is not None
        self._suspension.drop_received(open_calls)
        self._is_suspended = True

    @property
    def is_running(self) -> bool:
        return bool(self._tasks)

    async def wait_for_running(self, seconds: float) -> None:
        """Waits until one of the running tools has ended, or until the timeout."""
        tasks = [running.task for running in self._tasks.values()]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    @property
    def held_lines(self) -> list[bytes]:
        """Replies that the suspended run has not received."""
        return [] if self._suspension is None else self._suspension.lines

    def answer(self, call_id: str, answer: Answer) -> None:
        """Sends the result of a pending call to the guest."""
        call = self.pending.pop(call_id)
        self._open_bytes -= len(call.input_json)
        result = answer.result_json
        ok = result is not None and len(result) <= self._limits.max_result_bytes
        code, message = answer.code, answer.message
        if result is not None and not ok:
            code, message = "serialization_error", self._too_large(call.tool, len(result))
        if ok and result is not None:
            self._reply(call_id, tool_result_line(call_id, result))
        else:
            self._reply_error(call_id, code, message)
        elapsed = max(0.0, time() - call.started_at)
        if len(self.records) < MAX_RECORDED_CALLS:
            names = call.provider, call.tool
            self.records.append(
                CallRecord.of(*names, ok, elapsed, start_ms=call.start_ms, line=call.line, code=code or None)
            )
        if self._listeners:
            report_end(self._listeners, call_id, elapsed, result if ok else None, code, message)

    def refuse_pending(self, reason: str) -> None:
        """Fails all pending calls, because the run cannot be suspended."""
        for call_id, call in list(self.pending.items()):
            message = f"{call.message}, but the execution cannot be suspended: {reason}"
            self.answer(call_id, Answer(code="tool_error", message=message))

    def _too_large(self, tool: str, size: int) -> str:
        return f"Tool {tool} returned {size} bytes of JSON; the limit is {self._limits.max_result_bytes}"

    def _running_call(self, call: ToolCall, began: float) -> PendingCall:
        return running_call(call, self._providers[call.provider_name], began, self._start_ms(began))

    def _start_ms(self, began: float) -> float:
        return to_milliseconds(began - self.started_at)

    def cancel(self) -> None:
        """Cancels the running tools. No call is accepted or answered from now on."""
        self._is_cancelled = True
        if self._cancelled is not None:
            self._cancelled.set()
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        if self._file_tasks is not None:
            self._file_tasks.cancel()
        for task in [running.task for running in self._tasks.values()]:
            task.cancel()

    def end(self, code: str = "cancelled") -> None:
        """Cancels the running tools at the end of the run, and ends their calls with `code`. The listeners
        get no further events.
        """
        if self._tasks or self.pending:
            self._end_open_calls(code)
        self._has_ended = True
        self.cancel()
        # The session cannot be lost or suspended any more. Drop the references to it, so that it is freed
        # together with its run and not by the garbage collector, which took an eighth of the host's CPU time.
        self._link, self._file_tasks = self._link.without_session(), None

    def _end_open_calls(self, code: str) -> None:
        records = self._running_records(code)
        ids = [run_call_id(running.call) for running in self._tasks.values()]
        for call in self.pending.values():
            seconds = max(0.0, time() - call.started_at)
            names = call.provider, call.tool
            records.append(
                CallRecord.of(*names, False, seconds, start_ms=call.start_ms, line=call.line, code=code)
            )
            ids.append(call.call_id)
        self.records += records[: MAX_RECORDED_CALLS - len(self.records)]
        if self._listeners:
            for call_id, record in zip(ids, records, strict=True):
                report_end(self._listeners, call_id, record.duration_ms / 1000, None, code, "")

    def _refuse(self, call: ToolCall, message: str, code: str = wire_code("call_limit")) -> None:
        self._refused += 1
        if self._refused > self._limits.max_calls:
            self._link.on_abuse("it made too many tool calls")
            return
        self._reply_error(call.call_id, code, message)

    async def _dispatch(
        self, call: ToolCall, provider: Provider, trace: TraceContext | None, *, is_repeated: bool = False
    ) -> None:
        began = monotonic()
        ok = is_pending = False
        result, code, message = b"", "", ""
        if trace is not None:
            # Each call runs in its own task, so setting `current` affects only the spans that this tool
            # creates.
            current.set(trace)
        try:
            if self._link.writable is not None:
                await self._link.writable()
            if self._link.before_call is not None and not is_repeated:
                await self._link.before_call(is_idempotent(call, provider))
            result = await self._invoke(call, provider)
            if len(result) > self._limits.max_result_bytes:
                raise ToolError(self._too_large(call.safe_tool_name, len(result)), "serialization_error")
            ok = True
            if self._suspension is not None:
                ended = Answer(result_json=result)
                await self._suspension.note_end(call, ended, partial(self._running_call, call, began))
            line = tool_result_line(call.call_id, b"null" if call.stream is True else result)
            self._reply(call.call_id, line)
        except ToolError as error:
            is_pending = isinstance(error, Suspend) and self._link.can_suspend
            if isinstance(error, Suspend) and self._link.suspends_on_server:
                self._reply(call.call_id, suspended_line(call, error))
            elif is_pending and isinstance(error, Suspend):
                self.pending[call.call_id] = deferred_call(call, error, began, self._start_ms(began))
            else:
                code, message = error.tool_code, error.message
                if isinstance(error, Suspend) and self._link.suspend_problem:
                    message = f"{message}, but the run cannot be suspended: {self._link.suspend_problem}"
                if self._suspension is not None:
                    ended = Answer(code=code, message=message)
                    await self._suspension.note_end(call, ended, partial(self._running_call, call, began))
                self._reply_error(call.call_id, code, message)
        except asyncio.CancelledError:
            code = "tool_error"
            # This reply reaches the guest only if the tool itself raised CancelledError. If the session was
            # cancelled, `_reply` drops the reply.
            self._reply_error(call.call_id, "tool_error", f"Tool {call.safe_tool_name} was cancelled")
            raise
        finally:
            # Clean up here and not in a callback of the task. A callback would take another iteration of the
            # event loop for every call.
            self._tasks.pop(call.call_id, None)
            if call.call_id not in self.pending:
                self._open_bytes -= memoryview(call.input).nbytes
            elapsed = monotonic() - began
            if self.pending and not self._tasks and self._link.on_all_pending is not None:
                self._link.on_all_pending()
            # `end` has recorded a call that is cancelled because the run has ended.
            if len(self.records) < MAX_RECORDED_CALLS and not is_pending and not self._has_ended:
                names = call.provider_name, call.safe_tool_name
                self.records.append(
                    CallRecord.of(
                        *names,
                        ok,
                        elapsed,
                        start_ms=self._start_ms(began),
                        line=line_of(call),
                        code=code or None,
                        span_id=self._span_id(trace),
                    )
                )
            # If the run has ended, `end` has already emitted the event.
            if self._listeners and not self._has_ended and not is_pending:
                output = result if ok else None
                report_end(self._listeners, run_call_id(call), elapsed, output, code, message)

    async def _invoke(self, call: ToolCall, provider: Provider) -> bytes:
        text = bytes(call.input)
        try:
            is_large = len(text) > LARGE_TEXT_BYTES
            value = await decode_large_value(text) if is_large else decode_value(text)
        except NotJsonSafe as error:
            self._count_invalid_input(len(text))
            raise ToolError(f"The input is not JSON: {error}", "serialization_error") from None
        if self._cancelled is None:
            self._cancelled = _new_event()
        context = ToolContext(
            run_id=self.run_id,
            provider=call.provider_name,
            tool=provider.tools[call.safe_tool_name].name,
            deadline=self.deadline,
            cancelled=self._cancelled,
            call_id=run_call_id(call),
            line=line_of(call) if self._listeners else None,
            can_suspend=self._link.can_suspend,
            _reports=CallReports(self, call, self._limits.max_result_bytes),
        )
        return await provider.dispatch(call.safe_tool_name, value, context)

    def _count_invalid_input(self, size: int) -> None:
        """Ends the session after too much invalid input. Hutch's runners validate inputs before sending them,
        so invalid inputs come from a compromised runner.
        """
        self._invalid_input_bytes += size
        if self._invalid_input_bytes > MAX_INVALID_INPUT_BYTES:
            self._link.on_abuse("it sent inputs that are not JSON")

    def _reply_error(self, call_id: str, code: str, message: str) -> None:
        if len(self.errors) < MAX_REMEMBERED_ERRORS:
            self.errors.add((code, message))
        error = WireError(code=code, message=message)
        self._reply(call_id, encode(ToolResult(call_id=call_id, ok=False, error=error)))

    def _reply(self, call_id: str, line: bytes) -> None:
        if self._link.max_wait_seconds:
            self._active_at = self._loop.time()
        if self._suspension is not None:
            self._suspension.add(call_id, line)
        if not self._is_cancelled and not self._is_suspended:
            self._link.send(line)

    def _emit(self, event: RunEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def report_progress(self, call_id: str, value: Callable[[], bytes]) -> None:
        """Passes the JSON text of a value to the listeners. Does not call `value` if there are no listeners.
        May be called in any thread.
        """
        if not self._listeners or self._has_ended:
            return
        event = ToolProgress(call_id=call_id, value_json=Raw(value()))
        if threading.get_ident() == self._thread:
            self._emit(event)
        else:
            # Check again in the event loop, because the run may have ended by then.
            self._loop.call_soon_threadsafe(lambda: None if self._has_ended else self._emit(event))

    def send_item(self, call_id: str, item: bytes) -> None:
        self._reply(call_id, tool_item_line(call_id, item))


def _new_event() -> anyio.Event:
    # Import anyio only for the first call, because the import takes a twentieth of the start time of a short
    # command.
    import anyio

    return anyio.Event()
