"""Host side of one execution: sends `execute`, answers tool calls, enforces the time limit, and checks
`done`.

A session is a state machine. The owner of the channel passes the runner's messages to `receive`. Runners are
not trusted: an error code in `done` is accepted only if the host's own clock or tool results confirm it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import monotonic, time
from typing import Any

import msgspec
from msgspec import UNSET

from hutch.session.calls.link import SessionLink
from hutch.session.calls.tool_calls import ToolCalls
from hutch.session.channels.peer import BACKSTOP_SECONDS, START_TIMEOUT_SECONDS, Peer, limit_error
from hutch.session.files.calls import FileCalls
from hutch.session.files.model import InputFiles
from hutch.session.json_value import NotJsonSafe, decode_value, encode_value
from hutch.session.large_json import LARGE_TEXT_BYTES, decode_large_value
from hutch.session.limits import MAX_NAMED_TOOLS, Limits, clip_logs, options_json, timeout_message
from hutch.session.messages import (
    MEMORY_PART_BYTES,
    Cancel,
    Done,
    Job,
    Log,
    Memory,
    ServerMessage,
    Started,
    Suspended,
    ToolCall,
    WireError,
    encode,
    execute_line,
    extend_line,
    memory_lines,
    suspend_line,
)
from hutch.session.run import SUSPENDED, CallRecord, Charge, Listener, Result, RunEvent, RunLog
from hutch.session.suspension import Answer, MemoryCollector, SavedSession
from hutch.session.tools.provider import Provider
from hutch.session.turn import Turn, TurnState, turn_json
from hutch.telemetry.trace_context import TraceContext
from hutch.text import cut

# Extension of the runner's deadline during a pause. It is longer than any approval. When the pause ends, the
# runner gets the exact deadline.
_MAX_PAUSE_MS = 24 * 3600 * 1000
TIMER_TOLERANCE_SECONDS = 0.01
MAX_RUN_ID_CHARS = 128
# Limits on the warnings of a server.
MAX_WARNINGS = 100
MAX_WARNING_CHARS = 2_000
# Beginning of the messages about a result that is not JSON or too large. The code has returned then.
_BAD_RESULT = "The result "
TIMED_OUT = WireError(code="timeout", message="Execution timed out")


class Session:
    """Host side of one execution."""

    # Default values of attributes that most sessions never set. An object with more than 30 instance
    # attributes is slower to create and to use (CPython's limit for shared keys).
    result: Result | None = None
    lost = False
    """True if the runner was lost, apparently not because of this execution."""
    unresponsive = False
    """True if the runner did not answer a cancel within the grace period."""
    done_received = False
    was_refused = False
    """True if the runner's machine had no place for the execution, so that nothing has happened."""
    may_restart = False
    """True if the session was lost with its machine and the guest had no effects, so that it can start again.
    """
    can_repeat = False
    """True if the session was lost with its machine while none of its tools ran, so that a suspended
    execution can be continued again from the same state.
    """
    relay: None = None
    """Always None, so that the multiplexer passes messages to `receive`. A `RelayedSession` has a method of
    this name, which the multiplexer calls instead.
    """
    saved: SavedSession | None = None
    """State of the execution if it was suspended."""
    log_lines = _log_chars = 0
    _waiter: asyncio.Future[None] | None = None
    _started_at: float | None = None
    _timer: asyncio.TimerHandle | None = None
    _lines_before = 0
    _pauses, _paused_seconds, _paused_since = 0, 0.0, 0.0
    _cancelling = _deferred = False
    _has_ended = False
    """True if the session has a result, or is decoding a large one. Nothing else can end the session after
    that.
    """
    _decoding: asyncio.Task[None] | None = None
    _timeout = TIMED_OUT
    _calls: ToolCalls | None = None
    _files: FileCalls | None = None
    _has_open_calls = False
    _tool_deadline = 0.0
    _resumed: SavedSession | None = None
    _answers: Mapping[str, Answer] | None = None
    _memory_line = b""
    _memory: MemoryCollector | None = None
    charge: Charge | None = None
    """Counts the bytes of the memory that the runner sends when the execution is suspended."""
    _is_host_full = False
    """True if the state would have exceeded the memory limit of the host."""
    _turn_state: TurnState | None = None
    _on_suspend_refused: Callable[[str], None] | None = None
    _elapsed_before = 0.0
    _is_moving = False

    def __init__(
        self,
        id: str,
        code: str,
        limits: Limits,
        providers: Sequence[Provider],
        peer: Peer,
        *,
        send_execute: Callable[[bytes], None] | None = None,
        send_result: Callable[[bytes], None] | None = None,
        on_started: Callable[[], None] | None = None,
        job: Job | None = None,
        inputs: bytes | None = None,
        listeners: Sequence[Listener] = (),
        trace: TraceContext | None = None,
        saved: SavedSession | None = None,
        answers: Mapping[str, Answer] | None = None,
        max_saved_bytes: int = 0,
        turn: Turn | None = None,
        before_call: Callable[[bool], Awaitable[None]] | None = None,
        open_calls: ToolCalls | None = None,
        max_wait_seconds: float = 0.0,
        files: InputFiles | None = None,
    ) -> None:
        """`send_execute` and `send_result`: send `execute` and tool results, and get the replies, faster than
        `peer.send`, if the channel supports that.

        `inputs`: JSON text of the object whose properties become variables of the guest. `listeners`: receive
        log lines and tool calls as they occur. Without listeners, the runner sends log lines only at the end.
        `trace`: span of the run and parent of the spans of its tool calls; for a trusted peer, the span in
        which the peer is called.

        `saved`: suspended session to continue. `answers`: results of its pending calls. `max_saved_bytes`:
        maximum size of the memory of an execution that is suspended; 0 if the runner cannot suspend it.
        `turn`: the execution is a turn of a stateful session. `before_call`: see `SessionLink`. `open_calls`:
        calls of the continued session, if tools are still running. `max_wait_seconds`: time after which an
        execution that waits for tools is suspended while the tools continue; 0 for never. `files`: input
        files, if the guest has `files` and `display`; a continued session has the files that it had before.
        """
        self.id = id
        self.limits = limits
        self._loop = asyncio.get_running_loop()
        self._code = code
        self._providers = {provider.name: provider for provider in providers}
        self._peer = peer
        self._on_started = on_started
        self._job = job
        self._inputs = inputs
        self._listeners = listeners
        self._is_observed = bool(listeners)
        self.run_id = id
        """Id of the run: the id that the peer sent if it is a host itself, otherwise `id`."""
        self._sent_at = monotonic()
        self._trace = trace
        self._send_execute = send_execute or peer.send
        self._send_result = send_result or peer.send
        self._before_call = before_call
        self._max_saved_bytes = max_saved_bytes
        self._max_wait_seconds = max_wait_seconds if max_saved_bytes else 0.0
        self._input_files = files
        self._turn = turn
        if turn is not None:
            self._memory = MemoryCollector(turn.max_bytes)
        if saved is not None:
            self._resumed, self._answers = saved, answers
            self.log_lines, self._log_chars = saved.log_lines, saved.log_chars
            self._elapsed_before = saved.elapsed_ms / 1000
            self._input_files = None if saved.files is None else saved.files.inputs
            if open_calls is None:
                self.tool_calls.restore(saved)
        if open_calls is not None:
            self._continue_calls(open_calls)
        self._max_seconds = max(0.0, limits.timeout_ms / 1000 - self._elapsed_before) + peer.backstop_seconds

    @property
    def tool_calls(self) -> ToolCalls:
        """Tool calls of the guest. Made when they are first needed, because many guests call no tool."""
        if self._calls is None:
            self._calls = ToolCalls(
                self.run_id,
                self.limits,
                self._providers,
                self._link(),
                self._listeners,
                loop=self._loop,
                # Without `trace`, no spans are made here: a trusted peer makes the spans of the calls itself.
                trace=None if self._peer.trusted else self._trace,
            )
            self._calls.deadline = self._tool_deadline
            self._calls.started_at = self._sent_at if self._started_at is None else self._started_at
        return self._calls

    def _continue_calls(self, calls: ToolCalls) -> None:
        """Continues with the calls of a session whose tools still run."""
        self._calls, self._has_open_calls = calls, True
        calls.attach(self._link())

    def _link(self) -> SessionLink:
        if self._input_files is not None:
            saved = None if self._resumed is None else self._resumed.files
            self._files = FileCalls(self._input_files, self.limits.max_calls, saved)
        on_wait = self._suspend if self._max_saved_bytes else None
        return SessionLink(
            send=self._send_result,
            on_abuse=self.mark_lost,
            writable=self._peer.writable,
            before_call=self._before_call,
            on_all_pending=on_wait,
            on_long_wait=on_wait,
            max_wait_seconds=self._max_wait_seconds,
            files=self._files,
        )

    @property
    def started(self) -> bool:
        return self._started_at is not None

    @property
    def may_send_more(self) -> bool:
        """True if the runner may still send a message: its `done`, or the answer to a cancel."""
        return not self.done_received or self._cancelling

    @property
    def call_count(self) -> int:
        """Number of accepted tool calls."""
        return 0 if self._calls is None else self._calls.count

    @property
    def calls(self) -> list[CallRecord]:
        """Records of ended tool calls, at most MAX_RECORDED_CALLS."""
        return [] if self._calls is None else self._calls.records

    @property
    def turn_state(self) -> TurnState | None:
        """State after a turn that has succeeded."""
        return self._turn_state if self.result is not None and self.result.ok else None

    async def send_memory(self) -> None:
        """Sends the memory of the suspended execution or of the previous turn, if there is one. Other tasks
        run between the parts of the memory. Must be called before `begin`.
        """
        state = self._resumed if self._turn is None else self._turn.state
        if state is None:
            return
        if state.memory_bytes <= MEMORY_PART_BYTES:
            # `begin` sends a small memory together with `execute` in one write, so that the runner wakes up
            # only once.
            self._memory_line = b"".join(memory_lines(self.id, state.memory))
            return
        for line in memory_lines(self.id, state.memory):
            if self.result is not None or self._cancelling:
                return
            self._peer.send(line)
            await self._pause(len(line))

    def begin(self) -> None:
        """Sends `execute`, unless the session was lost or cancelled before."""
        if self.result is not None or self._cancelling:
            return
        # Read two clocks. The deadlines of tools need the event loop's clock. Durations are measured with
        # `monotonic`, because the resolution of the event loop's clock may be only one millisecond.
        now, self._sent_at = self._loop.time(), monotonic()
        self._tool_deadline = now + self.limits.timeout_ms / 1000 - self._elapsed_before
        # One timer serves the deadline for the start and the deadline for the end, because most executions
        # end before the timer fires.
        first = min(self._peer.start_seconds or START_TIMEOUT_SECONDS, self._max_seconds)
        if self._peer.max_silence_seconds:
            first = min(first, self._peer.max_silence_seconds)
            self._lines_before = self._peer.lines_received
        self._timer = self._loop.call_at(now + first, self._check_deadline)
        resumed = self._resumed
        state = None if resumed is None else resumed.state_after(time() - resumed.saved_at)
        options = self._options()
        turn = None if self._turn is None else turn_json(self._turn)
        line = execute_line(
            self.id, self._code, options, self._manifests, self._job, self._inputs, state, turn
        )
        if self._memory_line:
            line, self._memory_line = self._memory_line + line, b""
        self._send_execute(line)

    def _options(self) -> bytes:
        options = options_json(self.limits, self._is_observed, self._peer.trusted)
        if self._peer.trusted and self._trace is not None:
            options = options[:-1] + f',"traceparent":"{self._trace.traceparent}"}}'.encode()
        if self._input_files is not None:
            options = options[:-1] + b',"files":' + self._input_files.listing() + b"}"
        return options

    async def send_replies(self) -> None:
        """Sends the replies that arrived while the guest was suspended, and repeats its interrupted calls.
        Other tasks run between long replies. Must be called after `begin`.
        """
        resumed = self._resumed
        if resumed is None or self._is_over():
            return
        calls = self.tool_calls
        calls.deadline = self._tool_deadline
        if not self._has_open_calls:
            calls.started_at = self._sent_at
        for call_id, answer in (self._answers or {}).items():
            calls.answer(call_id, answer)
            await self._pause(0 if answer.result_json is None else len(answer.result_json))
            if self._is_over():
                return
        for line in calls.take_held() if self._has_open_calls else resumed.held_lines:
            self._peer.send(line)
            await self._pause(len(line))
        if self._is_over():
            return
        if not self._has_open_calls:
            for call in resumed.in_flight:
                if call.call_id in calls.pending:
                    calls.repeat(call)
        if calls.pending and not calls.is_running:
            # If the guest only waits for the remaining calls, suspend it again now. The end of a tool would
            # suspend it too, but no tool is running.
            self._suspend()

    def _is_over(self) -> bool:
        """Returns True if the session has ended or is being cancelled."""
        return self._has_ended or self._cancelling

    async def _pause(self, size: int) -> None:
        """Lets other tasks run after a long line was sent, until the send buffer has space again."""
        if size < MEMORY_PART_BYTES:
            return
        await asyncio.sleep(0)
        if self._peer.writable is not None:
            seconds = self._peer.max_silence_seconds or START_TIMEOUT_SECONDS
            try:
                async with asyncio.timeout(seconds):
                    await self._peer.writable()
            except TimeoutError:
                # The process may be stopped, or another execution may be blocking it. End the session as
                # lost, so that the execution can be retried in another process.
                self.unresponsive = True
                self.mark_lost(f"it did not read for {seconds:g} s")

    @property
    def _manifests(self) -> list[bytes]:
        if self._resumed is not None:
            return self._resumed.manifests
        return [
            provider.manifest_json(full=self._peer.full_manifests) for provider in self._providers.values()
        ]

    async def wait(self) -> Result:
        """Returns the result. Cancelling this call does not affect the execution."""
        while self.result is None:
            self._waiter = self._loop.create_future()
            await self._waiter
        return self.result

    def receive(self, message: ServerMessage) -> bool:
        """Handles a message. Returns True if the message was expected."""
        if isinstance(message, ToolCall):
            if message.run_call_id is not UNSET and not self._peer.trusted:
                # Only a server has other ids for the calls. A runner must not choose the ids in events and
                # records.
                message = msgspec.structs.replace(message, run_call_id=UNSET)
            return not self._has_ended and not self._cancelling and self.tool_calls.receive(message)
        if message.id != self.id:
            return False
        if isinstance(message, Done):
            self.done_received = True
            if self._has_ended:
                return False
            self._done(message)
            return True
        if self._has_ended:
            return False
        if isinstance(message, Log):
            return self._log(message)
        if not isinstance(message, Started):
            return self._receive_suspension(message)
        # Only the first `started` counts. Otherwise a guest could postpone its deadline.
        if self._started_at is not None:
            return False
        self._started_at = monotonic()
        run_id = message.run_id
        if self._peer.trusted and run_id is not UNSET and len(run_id) <= MAX_RUN_ID_CHARS:
            self.run_id = run_id
        if self._calls is not None:
            self._calls.run_id = self.run_id
            if not self._has_open_calls:
                self._calls.started_at = self._started_at
        if self._on_started is not None:
            self._on_started()
        return True

    def _emit(self, event: RunEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def _log(self, message: Log) -> bool:
        """Passes log lines to the listeners, up to the limits of the logs."""
        if not self._is_observed:
            return False
        for line in message.lines:
            chars_left = self.limits.max_log_chars - self._log_chars
            if self.log_lines >= self.limits.max_log_lines or chars_left <= 0:
                return False
            self.log_lines += 1
            self._log_chars += len(line)
            self._emit(RunLog(line=line[:chars_left]))
        return True

    # --- suspension ---

    def suspend(self, on_refused: Callable[[str], None] | None = None) -> None:
        """Suspends the execution when it next waits for tools or timers. If that is not possible,
        `on_refused` is called with the reason.
        """
        if on_refused is not None:
            self._on_suspend_refused = on_refused
        if self._max_saved_bytes:
            self._suspend()
        elif on_refused is not None:
            on_refused("only code in Hutch's own quickjs engine can be suspended")

    def _suspend(self) -> None:
        """Asks the runner to suspend the execution when it next waits."""
        if self._memory is None and not self._has_ended and not self._cancelling:
            self._memory = MemoryCollector(self._max_saved_bytes)
            self.tool_calls.expect_suspension()
            self._peer.send(suspend_line(self.id, self._max_saved_bytes))

    def move(self) -> None:
        """Suspends the execution when it next waits, and continues it at once in another runner."""
        if self._max_saved_bytes:
            self._is_moving = True
            self._suspend()

    def _receive_suspension(self, message: ServerMessage) -> bool:
        memory = self._memory
        if (
            memory is None
            or not isinstance(message, Memory | Suspended)
            or (self._turn is not None and isinstance(message, Suspended))
        ):
            return False
        if isinstance(message, Memory):
            if not memory.add(message.data):
                self.mark_lost("it sent too much memory")
            elif self._is_host_full or (self.charge is not None and not self.charge.add(len(message.data))):
                # Do not end the session yet, because the runner still sends the rest of the memory.
                self._is_host_full = True
                memory.clear()
                if self.charge is not None:
                    self.charge.release()
            return True
        self._memory = None
        if self._is_host_full:
            self.fail(_HOST_FULL)
            return True
        if message.state is UNSET:
            self.tool_calls.forget_replies()
            size = 0 if message.too_large is UNSET else message.too_large
            reason = (
                f"its memory has {size} bytes; the limit is {memory.max_bytes} (setting max_checkpoint_bytes)"
            )
            self.tool_calls.refuse_pending(reason)
            if self._on_suspend_refused is not None:
                self._on_suspend_refused(reason)
            return True
        calls = self.tool_calls
        calls.hold({call_id: items for call_id, _, _, items in message.state.calls})
        self.done_received = True
        self.saved = SavedSession(
            memory=memory.memory(),
            state=message.state,
            manifests=self._manifests,
            pending=list(calls.pending.values()),
            call_count=calls.count,
            elapsed_ms=self._run_ms(),
            log_lines=self.log_lines,
            log_chars=self._log_chars,
            errors=sorted(calls.errors),
            calls=calls.records,
            files=None if self._files is None else self._files.saved(),
        )
        logs, truncated = clip_logs(message.state.logs, self.limits)
        names = ", ".join(calls.open_tools()[:MAX_NAMED_TOOLS]) or "a timer"
        waiting = WireError(code=SUSPENDED, message=f"The run waits for {names}")
        self._settle(waiting, logs=logs, truncated=truncated or message.state.logs_truncated)
        return True

    async def wait_for_replies(self, must_wait_for_all: Callable[[], bool]) -> bool:
        """Waits until the suspended execution can continue, because a running tool has ended or a timer of
        the guest is due. `must_wait_for_all` returns True if all tools have to end first.

        Returns False if the execution cannot continue, because no tools ran or it has ended. If it was
        cancelled or its time is up, `saved` is None afterwards, and `result` has the timeout.
        """
        calls, saved = self.tool_calls, self.saved
        assert saved is not None
        timer_at = saved.saved_at + min((left for _, left, _ in saved.state.timers), default=1e12) / 1000
        try:
            while calls.is_running and not self._cancelling and self._remaining_seconds() > 0:
                # Compute the remaining time in each round, because the time limit may have been paused
                # meanwhile.
                seconds = self._remaining_seconds()
                if not must_wait_for_all():
                    if calls.held_lines or time() >= timer_at:
                        break
                    seconds = min(seconds, timer_at - time())
                await calls.wait_for_running(max(seconds, TIMER_TOLERANCE_SECONDS))
        except BaseException:
            calls.end()
            raise
        if self._cancelling or (calls.is_running and self._remaining_seconds() <= 0):
            error = self._timeout if self._cancelling else self._timeout_error()
            self.end_suspended(error)
            return False
        # Use `self.saved` rather than `saved`, because `forget_memory` may have replaced it meanwhile by a
        # state without memory.
        self.saved = msgspec.structs.replace(
            self.saved or saved,
            pending=list(calls.pending.values()),
            elapsed_ms=self._run_ms(),
            errors=sorted(calls.errors),
            calls=calls.records,
            held_lines=calls.held_lines,
        )
        return bool(calls.held_lines) or calls.is_running or self._is_moving

    def end_suspended(self, error: WireError) -> None:
        """Ends a suspended execution with an error."""
        assert self.result is not None
        logs, truncated = self.result.logs, self.result.logs_truncated
        self.saved = None
        self._settle(error, logs=logs, truncated=truncated)

    def forget_memory(self) -> None:
        """Frees the memory of a suspended execution after it was stored."""
        assert self.saved is not None
        self.saved = msgspec.structs.replace(self.saved, memory=[], manifests=[], files=None)
        if self.charge is not None:
            self.charge.release()

    def _remaining_seconds(self) -> float:
        return (self.limits.timeout_ms - self._run_ms()) / 1000

    def cancel(self) -> None:
        """Asks the runner to stop, and cancels running tools. The session ends after the grace period at the
        latest.
        """
        if self._cancelling or (self._has_ended and self.saved is None):
            return
        self._cancelling = True
        if self._calls is not None:
            self._calls.cancel()
        if self.saved is not None:
            # The guest is suspended, so there is no runner to ask. `wait_for_replies` ends the session.
            return
        self._peer.send(encode(Cancel(self.id)))
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self.limits.cancel_grace_ms / 1000, self._give_up)

    def mark_lost(self, reason: str) -> None:
        """Ends the session because the channel closed, or the runner failed, before `done`."""
        if self._has_ended:
            return
        if self._cancelling:
            self._give_up()
        else:
            self.lost = True
            self._settle(WireError(code="internal_error", message=f"The runner was lost: {reason}"))

    def interrupt(self, reason: str, *, may_restart: bool) -> None:
        """Ends the session because its machine was lost. The result has the calls that were made."""
        if self._has_ended:
            return
        if self._cancelling:
            self._give_up()
            return
        self.lost, self.may_restart = True, may_restart
        self.can_repeat = self._calls is None or not self._calls.is_running
        self._settle(WireError(code="interrupted", message=f"The run was interrupted: {reason}"))

    def fail(self, error: WireError) -> None:
        """Ends the session with an error that the host has detected itself, such as the memory limit."""
        if not self._has_ended:
            self._settle(self._timeout if self._cancelling else error)

    def succeed(self, result: Any) -> None:
        """Ends the session with a result that the host has detected itself, such as a program's exit code."""
        if not self._has_ended:
            if self._cancelling:
                self._settle(self._timeout)
            else:
                self._settle(None, value=result, json=encode_value(result))

    def _give_up(self) -> None:
        self.unresponsive = True
        self._settle(self._timeout)

    # --- the end ---

    def _done(self, done: Done) -> None:
        if self._cancelling:
            self._settle_done(done, self._timeout)
        elif self._is_host_full and done.ok:
            self._settle_done(done, _HOST_FULL)
        elif not done.ok:
            assert done.error is not UNSET
            self._settle_done(done, self._judge(done.error))
        else:
            if self._memory is not None and done.vm is not UNSET:
                self._turn_state = TurnState(memory=self._memory.memory(), vm=done.vm)
            self._check_result(done, b"" if done.result is UNSET else bytes(done.result))

    def _check_result(self, done: Done, raw: bytes) -> None:
        if len(raw) > self.limits.max_result_bytes:
            message = f"The result has {len(raw)} bytes of JSON; the limit is {self.limits.max_result_bytes}"
            self._settle_done(done, WireError(code="result_too_large", message=message))
        elif len(raw) > LARGE_TEXT_BYTES:
            if self._timer is not None:
                self._timer.cancel()
            self._has_ended = True
            self._decoding = self._loop.create_task(self._settle_large(done, raw))
        else:
            try:
                value = decode_value(raw) if raw else None
            except NotJsonSafe as error:
                self._settle_done(done, _not_json(error))
            else:
                self._settle_done(done, None, value, raw)

    async def _settle_large(self, done: Done, raw: bytes) -> None:
        try:
            value = await decode_large_value(raw)
        except NotJsonSafe as error:
            self._settle_done(done, _not_json(error))
        else:
            self._settle_done(done, None, value, raw)

    def _settle_done(
        self, done: Done, error: WireError | None, value: Any = None, json: bytes | None = None
    ) -> None:
        logs, clipped = clip_logs(done.logs, self.limits) if done.logs else ([], False)
        truncated = clipped or done.logs_truncated is True
        duration_ms = min(max(0.0, done.duration_ms), self._elapsed_ms())
        # The text becomes part of other lines, so replace its line breaks. Valid JSON has line breaks only
        # between values.
        json = json.replace(b"\n", b" ").replace(b"\r", b" ") if json else None
        warnings: Sequence[str] = ()
        if self._peer.trusted and done.warnings is not UNSET:
            warnings = [cut(warning, MAX_WARNING_CHARS) for warning in done.warnings[:MAX_WARNINGS]]
        elif self._calls is not None and (error is None or error.message.startswith(_BAD_RESULT)):
            warning = self._calls.unended_warning(0 if done.open_calls is UNSET else done.open_calls)
            warnings = () if warning is None else (warning,)
        self._settle(
            error,
            value=value,
            json=json,
            logs=logs,
            truncated=truncated,
            duration_ms=duration_ms,
            warnings=warnings,
        )

    def _judge(self, error: WireError) -> WireError:
        """Returns the error with a code that the host accepts. A code that the host cannot confirm becomes
        `runtime_error`.
        """
        if self._peer.trusted:
            return error
        if self._calls is not None and (error.code, error.message) in self._calls.errors:
            return error
        error = limit_error(error)
        if error.code in self._peer.codes:
            return error
        if error.code == "timeout" and self._elapsed_ms() + 1 >= self.limits.timeout_ms:
            return self._timeout_error(error)
        return msgspec.structs.replace(error, code="runtime_error")

    def _settle(
        self,
        error: WireError | None,
        *,
        value: Any = None,
        json: bytes | None = None,
        logs: list[str] | None = None,
        truncated: bool = False,
        duration_ms: float = 0.0,
        warnings: Sequence[str] = (),
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.saved is None:
            if self._calls is not None:
                self._calls.end("interrupted" if error and error.code == "interrupted" else "cancelled")
            # Drop the reference to the run, which refers to this session; see `ToolCalls.end`.
            self._on_started = None
        self._has_ended = True
        self.result = Result(
            ok=error is None,
            result=value,
            error=None if error is None else error.to_exception(),
            logs=logs or [],
            logs_truncated=truncated,
            duration_ms=duration_ms or self._elapsed_ms(),
            run_id=self.run_id,
            result_json=json,
            calls=self.calls,
            warnings=warnings,
            files=() if self._files is None or not self._files.count else self._files.files(),
        )
        if self.saved is None:
            # The result has copies of the files.
            self._files = None
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _elapsed_ms(self) -> float:
        return round((monotonic() - self._sent_at + self._elapsed_before) * 1000, 3)

    def _run_ms(self) -> float:
        """Returns how much of the time limit is used up."""
        started = self._sent_at if self._started_at is None else self._started_at
        seconds = monotonic() - started + self._elapsed_before - self._total_paused_seconds()
        return round(seconds * 1000, 3)

    # --- the clock ---

    def _deadline(self) -> float:
        """Returns the time by which the runner must have answered. The time limit counts from `started`."""
        if self._started_at is None:
            seconds = max(self._peer.start_seconds, self._max_seconds)
            return self._sent_at + (self._peer.max_silence_seconds if self._is_silent() else seconds)
        return self._started_at + self._max_seconds + self._total_paused_seconds()

    def _is_silent(self) -> bool:
        """Returns True if the runner has sent nothing, for any session, since it got `execute`."""
        return self._peer.max_silence_seconds > 0 and self._peer.lines_received == self._lines_before

    def pause_timeout(self) -> None:
        """Pauses the time limit until `resume_timeout`, for example during an approval. Only for Hutch's own
        runners, which enforce the limit as well and understand the pause.
        """
        if self._pauses == 0:
            self._paused_since = monotonic()
            self._peer.send(extend_line(self.id, _MAX_PAUSE_MS))
        self._pauses += 1

    def resume_timeout(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            seconds = monotonic() - self._paused_since
            self._paused_seconds += seconds
            self._peer.send(extend_line(self.id, round(seconds * 1000) - _MAX_PAUSE_MS))

    def _total_paused_seconds(self) -> float:
        return self._paused_seconds + (monotonic() - self._paused_since if self._pauses else 0.0)

    def _check_deadline(self) -> None:
        remaining = self._deadline() - monotonic()
        if remaining > 0:
            # The deadline may become earlier when the execution starts. So, before the start, the timer waits
            # no longer than the time limit and then checks again.
            maximum = (
                remaining if self.started else min(remaining, max(self._max_seconds, TIMER_TOLERANCE_SECONDS))
            )
            self._timer = self._loop.call_later(maximum, self._check_deadline)
        elif -remaining > TIMER_TOLERANCE_SECONDS and not self._deferred:
            # The event loop was blocked, so the timer fired late. Read the messages that arrived meanwhile
            # before deciding.
            self._deferred = True
            self._timer = self._loop.call_later(min(-remaining, BACKSTOP_SECONDS), self._check_deadline)
        elif self._started_at is None and self._peer.start_seconds:
            self._fail_start()
        else:
            self._timeout = self._timeout_error()
            self.cancel()

    def _timeout_error(self, reported: WireError | None = None) -> WireError:
        """Returns the error of an execution that reached its time limit. The message names the line that the
        runner reported, or the open tool calls.
        """
        line = None if reported is None else reported.line
        tools = self._calls.open_tools() if line is None and self._calls is not None else []
        message = timeout_message(f"{TIMED_OUT.message} after", self.limits.timeout_ms, tools)
        if line is not None:
            message += f", near line {line}"
        return WireError(code="timeout", message=message, stack=None if reported is None else reported.stack)

    def _fail_start(self) -> None:
        """Ends the session because the runner did not start the execution. The session is marked as lost, and
        so retried, only if the runner was silent. If the runner sent other messages, another runner would not
        start the execution either.
        """
        self.lost = self._is_silent()
        message = f"The runner did not start the execution within {monotonic() - self._sent_at:.3g} s"
        self._peer.send(encode(Cancel(self.id)))
        self.unresponsive = True
        self._settle(WireError(code="internal_error", message=message))


_HOST_FULL = WireError(
    code="memory_limit",
    message="The state of the execution cannot be stored: states of this owner, or of all owners, already"
    " need all memory that they may have (setting max_state_bytes)",
)


def _not_json(error: NotJsonSafe) -> WireError:
    return WireError(code="serialization_error", message=f"The result is not JSON: {error}")
