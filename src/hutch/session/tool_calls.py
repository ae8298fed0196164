"""Tool calls of one session: checks each call, runs its tool, sends the result and records the call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, Raw

from hutch.errors import Suspend, ToolError, wire_code
from hutch.session.files import calls as file_calls
from hutch.session.files.calls import FileCalls
from hutch.session.json_value import NotJsonSafe, decode_value, encode_value, well_formed
from hutch.session.large_json import LARGE_TEXT_BYTES, decode_large_value
from hutch.session.messages import ToolCall, ToolResult, WireError, encode, tool_item_line, tool_result_line
from hutch.session.run import (
    MAX_RECORDED_CALLS,
    CallRecord,
    Listener,
    PendingCall,
    RunEvent,
    ToolCallEnded,
    ToolCallStarted,
    ToolProgress,
)
from hutch.session.suspension import Answer, SavedSession
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import ToolContext
from hutch.tasks import start_now
from hutch.telemetry.trace_context import TraceContext, current
from hutch.text import cut

if TYPE_CHECKING:
    import anyio

    from hutch.session.limits import Limits

MAX_OPEN_INPUT_BYTES = 64 * 1024 * 1024
MAX_INVALID_INPUT_BYTES = 32 * 1024 * 1024
# Limits on the names in a tool call. They bound the memory that a guest with forged calls can use in the
# host.
MAX_CALL_ID_CHARS = 128
MAX_NAME_CHARS = 1_024
MAX_SHOWN_NAME_CHARS = 100
MAX_REMEMBERED_ERRORS = 1_000


class ToolCalls:
    """Tool calls of one session."""

    def __init__(
        self,
        run_id: str,
        limits: Limits,
        providers: Mapping[str, Provider],
        send: Callable[[bytes], None],
        listeners: Sequence[Listener],
        *,
        writable: Callable[[], Awaitable[None]] | None,
        on_abuse: Callable[[str], None],
        loop: asyncio.AbstractEventLoop,
        trace: TraceContext | None = None,
        on_all_pending: Callable[[], None] | None = None,
        before_call: Callable[[bool], Awaitable[None]] | None = None,
        on_long_wait: Callable[[], None] | None = None,
        max_wait_seconds: float = 0.0,
        files: FileCalls | None = None,
    ) -> None:
        """`writable`: waits while the channel's buffer is full. `on_abuse`: called with the reason if the
        runner sends too many invalid calls. `trace`: span of the run. `on_all_pending`: called when all open
        calls are pending; None if the run cannot be suspended. `before_call`: awaited before each call, with
        True if its tool is idempotent; a ToolError that it raises fails the call. `on_long_wait`: called when
        tools are running and the guest has neither made a call nor received a reply for `max_wait_seconds`;
        0 for never. `files`: answers calls of the guest's `files`; None if the guest has no `files`.
        """
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
        """Codes and messages of the errors that the guest has received, at most MAX_REMEMBERED_ERRORS."""
        self.pending: dict[str, PendingCall] = {}
        """Open calls whose results will arrive later, by id."""
        self._on_all_pending = on_all_pending
        self._before_call = before_call
        self._files = files
        self._recent_replies: list[tuple[str, bytes]] | None = None
        """Replies since the runner was asked to suspend the run, with the ids of their calls. The runner may
        have suspended the run before it received them.
        """
        self._finished: dict[str, tuple[PendingCall, Answer | None]] = {}
        """Calls that ended since the runner was asked to suspend the run. None for a streamed result."""
        self._is_suspended = False
        self._journal: Callable[[str, Answer], Awaitable[None]] | None = None
        self._journaled: set[str] = set()
        """Ids of calls whose results are stored before the guest receives them."""
        self._on_long_wait, self._max_wait_seconds = on_long_wait, max_wait_seconds
        self._active_at = 0.0
        self._wait_timer: asyncio.TimerHandle | None = None
        self._limits = limits
        self._providers = providers
        self._send = send
        self._listeners = listeners
        self._writable = writable
        self._on_abuse = on_abuse
        self._trace = trace
        self._loop, self._thread = loop, threading.get_ident()
        self._ids: set[str] = set()
        self._file_tasks: dict[str, asyncio.Task[None]] = {}
        self._tasks: dict[str, tuple[asyncio.Task[None], ToolCall, float]] = {}
        """Running tools, with the calls and the times at which they began."""
        self._open_bytes = self._invalid_input_bytes = self._refused = 0
        self._is_cancelled = self._has_ended = False
        self._cancelled: anyio.Event | None = None

    def receive(self, call: ToolCall) -> bool:
        """Starts the tool of a call, or refuses the call. Returns True if the call was expected."""
        if self._is_cancelled or call.call_id in self._ids or _is_oversized(call):
            return False
        if self._files is not None and call.provider_name == file_calls.PROVIDER:
            return self._receive_file_call(call, self._files)
        provider = self._providers.get(call.provider_name)
        if provider is None or call.safe_tool_name not in provider.tools:
            self._refuse(call, f"Unknown tool {_shown_name(call)}", "internal_error")
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
        began = monotonic()
        task = start_now(self._dispatch(call, provider, is_repeated=is_repeated), self._loop)
        if not task.done():
            self._tasks[call.call_id] = task, call, began
            self._watch_wait()

    def _watch_wait(self) -> None:
        """Starts the timer for `on_long_wait`."""
        if not self._max_wait_seconds:
            return
        self._active_at = self._loop.time()
        if self._wait_timer is None:
            self._wait_timer = self._loop.call_later(self._max_wait_seconds, self._check_wait)

    def _check_wait(self) -> None:
        self._wait_timer = None
        if not self._tasks or self._is_suspended or self._is_cancelled or self._on_long_wait is None:
            return
        seconds_left = self._active_at + self._max_wait_seconds - self._loop.time()
        if seconds_left > 0:
            self._wait_timer = self._loop.call_later(seconds_left, self._check_wait)
        else:
            self._on_long_wait()

    def _receive_file_call(self, call: ToolCall, files: FileCalls) -> bool:
        if len(self._file_tasks) >= self._limits.max_outstanding_calls:
            self._refuse(call, f"More than {self._limits.max_outstanding_calls} calls of files at once")
            return True
        if files.count >= self._limits.max_calls:
            self._refuse(call, f"More than {self._limits.max_calls} calls of files in one execution")
            return True
        self._ids.add(call.call_id)
        task = start_now(self._answer_file_call(call, files), self._loop)
        if not task.done():
            self._file_tasks[call.call_id] = task
        return True

    async def _answer_file_call(self, call: ToolCall, files: FileCalls) -> None:
        try:
            # A write must not wait, because the run may end with the next message.
            if self._writable is not None and call.safe_tool_name == "read":
                # Read one file at a time. Otherwise all waiting reads would send their data as soon as one of
                # them can.
                async with files.reading:
                    await self._writable()
                    self._reply_to_file_call(call, files)
                    await asyncio.sleep(0)
            else:
                self._reply_to_file_call(call, files)
        except ToolError as error:
            self._reply_error(call.call_id, error.tool_code, error.message)
        finally:
            self._file_tasks.pop(call.call_id, None)

    def _reply_to_file_call(self, call: ToolCall, files: FileCalls) -> None:
        result = files.call(call.safe_tool_name, bytes(call.input))
        self._reply(call.call_id, tool_result_line(call.call_id, result))

    def open_tools(self) -> list[str]:
        """Returns the names of the tools whose results the guest waits for."""
        running = [_shown_name(call) for _, call, _ in self._tasks.values()]
        return running + [_shown(call.provider, call.tool) for call in self.pending.values()]

    # --- suspension ---

    def restore(self, saved: SavedSession) -> None:
        """Continues with the calls of a suspended session."""
        self.count = saved.call_count
        self.records = list(saved.calls)
        self.errors = set(saved.errors)
        self.pending = {call.call_id: call for call in (*saved.pending, *saved.in_flight)}
        self._open_bytes = sum(len(call.input_json) for call in self.pending.values())
        # Unlike `pending`, the runner's state also contains calls that were answered while it was suspended.
        self._ids = {call_id for call_id, _, _, _ in saved.state.calls}

    def attach(
        self,
        send: Callable[[bytes], None],
        *,
        writable: Callable[[], Awaitable[None]] | None,
        on_abuse: Callable[[str], None],
        on_all_pending: Callable[[], None] | None,
        before_call: Callable[[bool], Awaitable[None]] | None,
        on_long_wait: Callable[[], None] | None,
        files: FileCalls | None,
        max_wait_seconds: float,
    ) -> None:
        """Continues in another session of the same run while tools are still running. See `__init__`."""
        self._send, self._writable, self._on_abuse, self._files = send, writable, on_abuse, files
        self._on_all_pending, self._before_call, self._on_long_wait = (
            on_all_pending,
            before_call,
            on_long_wait,
        )
        self._max_wait_seconds = max_wait_seconds
        self._is_suspended = False

    def take_held(self) -> list[bytes]:
        """Returns the replies that the guest has not got. The caller sends them to the runner in which it
        continues.
        """
        held, self._recent_replies = self._recent_replies or [], None
        self._finished = {}
        if self._tasks:
            self._watch_wait()
        return [line for _, line in held]

    def repeat(self, call: PendingCall) -> None:
        """Repeats a call that another process was making when it died."""
        provider = self._providers.get(call.provider)
        if provider is None or call.tool not in provider.tools:
            reason = f"The process died while it called {call.tool}, and the tool is not available now"
            self.answer(call.call_id, Answer(code="tool_error", message=reason))
            return
        self.pending.pop(call.call_id)
        line = UNSET if call.line is None else call.line
        message = ToolCall(
            call_id=call.call_id,
            provider_name=call.provider,
            safe_tool_name=call.tool,
            input=Raw(call.input_json),
            line=line,
        )
        self._start(message, provider, is_repeated=True)

    def expect_suspension(self) -> None:
        """Stores replies from now on, because the runner was asked to suspend the run."""
        self._recent_replies, self._finished = [], {}

    def forget_replies(self) -> None:
        """Drops the stored replies, because the run was not suspended."""
        self._recent_replies, self._finished = None, {}

    def in_flight(self) -> list[PendingCall]:
        """Returns the calls of a suspended run whose tools still run, or ended after the suspension."""
        running = [self._pending_call(call, began) for _, call, began in self._tasks.values()]
        held = {call_id for call_id, _ in self._recent_replies or []}
        return running + [call for call_id, (call, _) in self._finished.items() if call_id in held]

    def running(self) -> list[CallRecord]:
        """Returns records of the calls whose tools are running, to be used if the process dies."""
        return [
            CallRecord.of(
                call.provider_name,
                self._providers[call.provider_name].tools[call.safe_tool_name].name,
                False,
                monotonic() - began,
                start_ms=round((began - self.started_at) * 1000, 3),
                line=_line_of(call),
                code="interrupted",
            )
            for _, call, began in self._tasks.values()
        ]

    def begin_journal(self, journal: Callable[[str, Answer], Awaitable[None]]) -> dict[str, Answer]:
        """From now on, passes the results of all running tools to `journal` before the guest gets them.
        Returns the results that arrived since the run was suspended.
        """
        self._journal = journal
        # The results of streams are not stored, because the guest has already received some of their items.
        self._journaled = {
            call_id for call_id, (_, call, _) in self._tasks.items() if call.stream is not True
        }
        held = {call_id for call_id, _ in self._recent_replies or []}
        finished = {call_id: answer for call_id, (_, answer) in self._finished.items() if call_id in held}
        return {call_id: answer for call_id, answer in finished.items() if answer is not None}

    def hold(self, open_calls: Mapping[str, int]) -> None:
        """Holds back replies from now on, because the run is suspended. `open_calls`: calls whose results it
        has not received, with the number of items that it has received.
        """
        received = dict(open_calls)
        missing: list[tuple[str, bytes]] = []
        for call_id, line in self._recent_replies or []:
            if received.get(call_id, 0) > 0:
                received[call_id] -= 1
            elif call_id in received:
                missing.append((call_id, line))
        self._recent_replies = missing
        self._is_suspended = True

    @property
    def is_running(self) -> bool:
        return bool(self._tasks)

    async def wait_for_running(self, seconds: float) -> None:
        """Waits until one of the running tools has ended, or until the timeout."""
        tasks = [task for task, _, _ in self._tasks.values()]
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    @property
    def held_lines(self) -> list[bytes]:
        """Replies that the suspended run has not received."""
        return [line for _, line in self._recent_replies or []]

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
            self._emit(
                ToolCallEnded(
                    call_id=call_id,
                    ok=ok,
                    duration_ms=round(elapsed * 1000, 3),
                    code=code or UNSET,
                    message=message or UNSET,
                    output_json=Raw(result) if ok and result is not None else UNSET,
                )
            )

    def refuse_pending(self, reason: str) -> None:
        """Fails all pending calls, because the run cannot be suspended."""
        for call_id, call in list(self.pending.items()):
            message = f"{call.message}, but the execution cannot be suspended: {reason}"
            self.answer(call_id, Answer(code="tool_error", message=message))

    def _too_large(self, tool: str, size: int) -> str:
        return f"Tool {tool} returned {size} bytes of JSON; the limit is {self._limits.max_result_bytes}"

    def _defer(self, call: ToolCall, suspend: Suspend, began: float) -> None:
        self.pending[call.call_id] = PendingCall(
            call_id=call.call_id,
            provider=call.provider_name,
            tool=call.safe_tool_name,
            input_json=bytes(call.input),
            message=well_formed(suspend.message),
            token=suspend.token,
            question=suspend.question,
            started_at=time() - (monotonic() - began),
            start_ms=round((began - self.started_at) * 1000, 3),
            line=_line_of(call),
        )

    def _pending_call(self, call: ToolCall, began: float) -> PendingCall:
        """Describes a call whose tool is running."""
        tool = self._providers[call.provider_name].tools[call.safe_tool_name]
        return PendingCall(
            call_id=call.call_id,
            provider=call.provider_name,
            tool=call.safe_tool_name,
            input_json=bytes(call.input),
            message=f"{_shown_name(call)} is running",
            started_at=time() - (monotonic() - began),
            start_ms=round((began - self.started_at) * 1000, 3),
            line=_line_of(call),
            in_flight="repeatable" if tool.idempotent and call.stream is not True else "once",
        )

    def cancel(self) -> None:
        """Cancels the running tools. No call is accepted or answered from now on."""
        self._is_cancelled = True
        if self._cancelled is not None:
            self._cancelled.set()
        if self._wait_timer is not None:
            self._wait_timer.cancel()
        for task in [*self._file_tasks.values(), *(task for task, _, _ in self._tasks.values())]:
            task.cancel()

    def end(self) -> None:
        """Like `cancel`, at the end of the run. The listeners get no further events."""
        self._has_ended = True
        self.cancel()
        # The session cannot be lost or suspended any more. Drop the references to it, so that it is freed
        # together with its run and not by the garbage collector, which took an eighth of the host's CPU time.
        self._on_abuse, self._on_long_wait = _ignore, None
        if self._on_all_pending is not None:
            self._on_all_pending = _ignore

    def _refuse(self, call: ToolCall, message: str, code: str = wire_code("call_limit")) -> None:
        self._refused += 1
        if self._refused > self._limits.max_calls:
            self._on_abuse("it made too many tool calls")
            return
        self._reply_error(call.call_id, code, message)

    async def _dispatch(self, call: ToolCall, provider: Provider, *, is_repeated: bool = False) -> None:
        began = monotonic()
        ok = is_pending = False
        result, code, message = b"", "", ""
        trace = self._trace
        if trace is not None:
            # Each call runs in its own task, so this sets the parent of all spans that the tool creates.
            trace = trace if provider.is_internal else trace.child()
            current.set(trace)
        if self._listeners and not is_repeated:
            self._emit(
                ToolCallStarted(
                    call_id=call.call_id,
                    provider=call.provider_name,
                    tool=call.safe_tool_name,
                    line=_line_of(call),
                    input_json=call.input,
                )
            )
        try:
            if self._writable is not None:
                await self._writable()
            if self._before_call is not None and not is_repeated:
                await self._before_call(_is_idempotent(call, provider))
            result = await self._invoke(call, provider)
            if len(result) > self._limits.max_result_bytes:
                raise ToolError(self._too_large(call.safe_tool_name, len(result)), "serialization_error")
            ok = True
            if self._journaled or self._recent_replies is not None:
                await self._note_end(call, began, Answer(result_json=result))
            line = tool_result_line(call.call_id, b"null" if call.stream is True else result)
            self._reply(call.call_id, line)
        except ToolError as error:
            is_pending = isinstance(error, Suspend) and self._on_all_pending is not None
            if is_pending and isinstance(error, Suspend):
                self._defer(call, error, began)
            else:
                code, message = error.tool_code, error.message
                if self._journaled or self._recent_replies is not None:
                    await self._note_end(call, began, Answer(code=code, message=message))
                self._reply_error(call.call_id, code, message)
        except asyncio.CancelledError:
            code = "tool_error"
            # The reply is sent only if the tool itself raised CancelledError. If the session was cancelled,
            # `_reply` drops it.
            self._reply_error(call.call_id, "tool_error", f"Tool {call.safe_tool_name} was cancelled")
            raise
        finally:
            # Done here and not in a callback of the task, which would take another iteration of the event
            # loop for every call.
            self._tasks.pop(call.call_id, None)
            if not is_pending:
                self._open_bytes -= memoryview(call.input).nbytes
            elapsed = monotonic() - began
            if self.pending and not self._tasks and self._on_all_pending is not None:
                self._on_all_pending()
            if len(self.records) < MAX_RECORDED_CALLS and not is_pending:
                start_ms = round((began - self.started_at) * 1000, 3)
                names = call.provider_name, call.safe_tool_name
                span_id = None if trace is None or trace is self._trace else trace.span_id
                self.records.append(
                    CallRecord.of(
                        *names,
                        ok,
                        elapsed,
                        start_ms=start_ms,
                        line=_line_of(call),
                        code=code or None,
                        span_id=span_id,
                    )
                )
            # A call that is cancelled because the run has ended emits no event, because the last event of the
            # run was emitted before.
            if self._listeners and not self._has_ended and not is_pending:
                self._emit(
                    ToolCallEnded(
                        call_id=call.call_id,
                        ok=ok,
                        duration_ms=round(elapsed * 1000, 3),
                        code=code or UNSET,
                        message=message or UNSET,
                        output_json=Raw(result) if ok else UNSET,
                    )
                )

    async def _note_end(self, call: ToolCall, began: float, answer: Answer) -> None:
        """Stores the result of a call if the call is in the store."""
        if call.call_id in self._journaled and self._journal is not None:
            self._journaled.discard(call.call_id)
            await self._journal(call.call_id, answer)
        if self._recent_replies is not None:
            stored = None if call.stream is True else answer
            self._finished[call.call_id] = self._pending_call(call, began), stored

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
            call_id=call.call_id,
            line=_line_of(call) if self._listeners else None,
            can_suspend=self._on_all_pending is not None,
            _reports=_CallReports(self, call, self._limits.max_result_bytes),
        )
        return await provider.dispatch(call.safe_tool_name, value, context)

    def _count_invalid_input(self, size: int) -> None:
        """Ends the session after too much invalid input. Hutch's runners validate inputs before sending them,
        so invalid inputs come from a compromised runner.
        """
        self._invalid_input_bytes += size
        if self._invalid_input_bytes > MAX_INVALID_INPUT_BYTES:
            self._on_abuse("it sent inputs that are not JSON")

    def _reply_error(self, call_id: str, code: str, message: str) -> None:
        if len(self.errors) < MAX_REMEMBERED_ERRORS:
            self.errors.add((code, message))
        error = WireError(code=code, message=message)
        self._reply(call_id, encode(ToolResult(call_id=call_id, ok=False, error=error)))

    def _reply(self, call_id: str, line: bytes) -> None:
        if self._max_wait_seconds:
            self._active_at = self._loop.time()
        if self._recent_replies is not None:
            self._recent_replies.append((call_id, line))
        if not self._is_cancelled and not self._is_suspended:
            self._send(line)

    def _emit(self, event: RunEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def report_progress(self, call_id: str, value: Callable[[], bytes]) -> None:
        """Passes the JSON text of a value to the listeners. Without listeners, the text is not computed. May
        be called in another thread.
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


class _CallReports:
    """Receives progress and items of one tool call."""

    __slots__ = ("_call", "_calls", "_item_bytes", "_max_bytes")

    def __init__(self, calls: ToolCalls, call: ToolCall, max_bytes: int) -> None:
        self._calls = calls
        self._call = call
        self._max_bytes = max_bytes
        self._item_bytes = 0

    def progress(self, value: Any) -> None:
        self._calls.report_progress(self._call.call_id, partial(encode_value, value))

    def item(self, json: bytes) -> None:
        call = self._call
        self._item_bytes += len(json) + 1
        if self._item_bytes > self._max_bytes:
            raise ToolError(
                f"Tool {call.safe_tool_name} yielded more than {self._max_bytes} bytes of JSON",
                "serialization_error",
            )
        self._calls.report_progress(call.call_id, lambda: json)
        if call.stream is True:
            self._calls.send_item(call.call_id, json)


def _ignore(_: str = "") -> None: ...


def _new_event() -> anyio.Event:
    # Loaded with the first call, because it takes a twentieth of the time in which a short command starts.
    import anyio

    return anyio.Event()


def _shown_name(call: ToolCall) -> str:
    return _shown(call.provider_name, call.safe_tool_name)


def _shown(provider: str, tool: str) -> str:
    return cut(f"{provider}.{tool}", MAX_SHOWN_NAME_CHARS)


def _line_of(call: ToolCall) -> int | None:
    return call.line if call.line is not UNSET and call.line > 0 else None


def _is_oversized(call: ToolCall) -> bool:
    return (
        len(call.call_id) > MAX_CALL_ID_CHARS
        or len(call.provider_name) + len(call.safe_tool_name) > MAX_NAME_CHARS
    )


def _is_idempotent(call: ToolCall, provider: Provider) -> bool:
    tool = provider.tools.get(call.safe_tool_name)
    return tool is not None and tool.idempotent and call.stream is not True
