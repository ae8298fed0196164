"""Runner side of a channel: runs `execute` requests, forwards their tool calls to the host, and answers each
request with `done`.

The caller passes the function that runs the code. So the same class serves WebSocket clients, `hutch runner`
on stdin, and tests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from hutch.errors import (
    Busy,
    ExecutionError,
    HutchError,
    InvalidExecution,
    ProtocolError,
    QuotaExceeded,
    ResumeError,
    SessionError,
    ToolError,
    wire_code,
)
from hutch.session.channels.stream import Channel
from hutch.session.extensions.file_upload import FileUpload
from hutch.session.extensions.messages import FilePart, Stored, SuspendRefused, SuspendRequest
from hutch.session.extensions.server_side import (
    NO_EXTENSIONS,
    ChannelExtensions,
    file_parts,
    pending_call_messages,
    suspend_error,
)
from hutch.session.host import TIMED_OUT
from hutch.session.inputs import decode_inputs
from hutch.session.json_value import encode_value
from hutch.session.message_decoding import RefusedExecute, decode_from_host, decode_long_from_host
from hutch.session.messages import (
    Cancel,
    Done,
    Execute,
    HostMessage,
    Log,
    Manifest,
    Options,
    ServerMessage,
    Started,
    ToolCall,
    ToolItem,
    ToolResult,
    WireError,
    encode,
)
from hutch.session.run import SUSPENDED, Result, RunEvent, RunHandle, RunSuspended, log_listener
from hutch.session.tools.provider import Provider
from hutch.session.tools.tool import ToolContext
from hutch.telemetry.trace_context import TRACEPARENT, current, parse_context

logger = logging.getLogger("hutch.session")

# Limits of one `execute`. Creating that many tools blocks the event loop for about 10 ms.
MAX_PROVIDERS = 500
MAX_TOOLS = 2_000
MAX_UNSENT_BYTES = 256 * 1024 * 1024
"""Maximum size of one owner's results that wait because their clients do not read."""
SMALL_RESULT_BYTES = 16 * 1024
"""Results up to this size are sent without waiting, because they have few bytes in total."""
# Maximum number of executions of a channel that wait for their files.
MAX_UPLOADS = 1_000
MAX_UPLOAD_PAUSE_SECONDS = 60.0
"""Time without a part of a file after which the executions that wait for files fail."""
# Number of invalid messages of a channel that are logged. Further ones are only counted.
MAX_LOGGED_DROPS = 20


class PendingBytes:
    """Bytes of the `execute` messages that wait or run, and of the results that wait until their client reads
    them, by owner. One instance serves all channels.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_owner: Counter[str] = Counter()
        self._unsent: Counter[str] = Counter()

    def reserve(self, owner: str, size: int) -> None:
        """Raises Busy if the owner has too many bytes. A single message is always accepted."""
        pending = self._by_owner[owner]
        if pending and pending + size > self._max_bytes:
            raise Busy(
                f"The executions that wait or run have {pending} bytes; the limit is {self._max_bytes}"
                " (setting max_pending_bytes)."
            )
        self._by_owner[owner] += size

    def release(self, owner: str, size: int) -> None:
        self._by_owner[owner] -= size
        if not self._by_owner[owner]:
            del self._by_owner[owner]

    def add_result(self, owner: str, size: int) -> bool:
        """Counts a result until `release_result`. Returns False, and does not count it, if the results of the
        owner would have too many bytes. A single result is always accepted.
        """
        unsent = self._unsent[owner]
        if unsent and unsent + size > MAX_UNSENT_BYTES:
            return False
        self._unsent[owner] += size
        return True

    def release_result(self, owner: str, size: int) -> None:
        self._unsent[owner] -= size
        if not self._unsent[owner]:
            del self._unsent[owner]


class ExecutionRequest(msgspec.Struct, frozen=True):
    """Execution requested by the peer. Its tools run on the peer."""

    id: str
    """Id of the execution on the channel."""
    code: str
    options: Options
    providers: Sequence[Provider]
    inputs: bytes | None
    run: RunHandle
    files: dict[str, bytearray] | None
    """Contents of the input files by name. None if the peer sent none."""
    continue_as: Callable[[RunHandle], None]
    """Replaces `run` by the handle of a suspended run that the request continues."""
    send: Callable[[ServerMessage], None]


class ChannelServer:
    """Serves one channel until the channel closes, and then cancels its executions."""

    def __init__(
        self,
        channel: Channel,
        run: Callable[[ExecutionRequest], Awaitable[Result]],
        *,
        multiplexed: bool,
        pending: PendingBytes,
        owner: str,
        continues_traces: bool = False,
        extensions: ChannelExtensions = NO_EXTENSIONS,
    ) -> None:
        """With `continues_traces`, the peer's spans become the parents of its executions' spans. Set this
        argument only if there is a tracer. Otherwise the peer's trace context would only be passed on to
        other programs.
        """
        self.dropped = 0
        self._pending = pending
        self._owner = owner
        self._channel = channel
        self._run = run
        self._multiplexed = multiplexed
        self._continues_traces = continues_traces
        self._extensions = extensions
        self._uploads: dict[str, FileUpload] = {}
        self._parts_received = 0
        self._delivering = asyncio.Lock()
        """Held while a large result is sent, so that the other ones stay out of the channel's buffer."""
        self._resumed: set[str] = set()
        """Executions that continue a suspended run."""
        self._tasks: dict[str, asyncio.Task[Result]] = {}
        self._runs: dict[str, RunHandle] = {}
        self._open_calls: dict[str, _OpenCall] = {}
        self._numbers = itertools.count(1)

        channel.on_line = self._on_line
        channel.on_close = self._on_close

    async def stop(self) -> None:
        """Cancels all executions and waits until they have ended."""
        self._abandon_all()
        await self.wait_idle()

    async def wait_idle(self) -> None:
        """Waits until no execution is running."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    def _on_close(self, _: str) -> None:
        self._abandon_all()

    async def receive(self, line: bytes) -> None:
        """Handles a message. Unlike the channel's handler, this method lets other tasks run while a long
        message is decoded. Call it for one message at a time.
        """
        try:
            message = await decode_long_from_host(line)
        except ProtocolError as error:
            self._on_invalid(error)
        else:
            self._on_message(message, len(line))

    def _on_line(self, line: bytes) -> None:
        try:
            message = decode_from_host(line)
        except ProtocolError as error:
            self._on_invalid(error)
        else:
            self._on_message(message, len(line))

    def _on_invalid(self, error: ProtocolError) -> None:
        if isinstance(error, RefusedExecute):
            self._refuse(error.id, InvalidExecution("execute", error.message))
            return
        self.dropped += 1
        if self.dropped <= MAX_LOGGED_DROPS:
            logger.warning("dropped an invalid message: %s", error)

    def _on_message(self, message: HostMessage, size: int) -> None:
        if isinstance(message, Execute):
            self._execute(message, size)
        elif isinstance(message, Cancel):
            self._cancel(message.id)
        elif isinstance(message, ToolItem):
            call = self._open_calls.get(message.call_id)
            if call is None or not call.streams:
                self._drop("a tool_item without an open call", message.call_id)
            else:
                call.add_item(message)
        elif isinstance(message, FilePart):
            upload = self._uploads.get(message.id)
            if upload is None or not upload.add(message.data):
                self._drop("an unexpected part of a file", message.id)
            else:
                self._parts_received += 1
        elif isinstance(message, SuspendRequest):
            self._suspend(message.id)
        else:
            call = self._open_calls.pop(message.call_id, None)
            if call is None:
                self._drop("a tool_result without an open call", message.call_id)
            elif not call.answer.done():
                call.answer.set_result(message)

    def _abandon_all(self) -> None:
        """Cancels all executions, because the peer cannot make their tool calls. Runs that are stored, or are
        being stored, stay suspended.
        """
        for id, task in self._tasks.items():
            run = self._runs[id]
            if run.is_abandoned:
                # Do not cancel the task twice, because it stores the run.
                continue
            if self._extensions.durable and run.abandon():
                task.cancel()
            else:
                self._cancel(id)

    def _cancel(self, id: str) -> None:
        """Stops a running execution. The peer still gets its `done` with the logs. Cancels an execution that
        waits for a runner.
        """
        if id not in self._tasks:
            self._drop("a cancel for an execution that is not running", id)
        elif (id not in self._runs or not self._runs[id].stop()) and not self._tasks[id].cancelling():
            # Do not cancel the task twice, because it may be giving a suspended run back to the store.
            self._tasks[id].cancel()

    def _suspend(self, id: str) -> None:
        run = self._runs.get(id)
        if run is None or not self._extensions.durable:
            self._drop("a suspend for an execution that is not running", id)
            return

        def refuse(reason: str) -> None:
            run.must_suspend = False
            self._channel.send(encode(SuspendRefused(id, reason)))

        run.on_suspend_refused = refuse
        run.suspend()

    def _drop(self, what: str, id: str) -> None:
        self.dropped += 1
        logger.debug("dropped %s: %.100r", what, id)

    def _execute(self, message: Execute, size: int) -> None:
        id = message.id
        if id in self._tasks:
            self._drop("an execute with the id of a running execution", id)
            return
        if self._tasks and not self._multiplexed:
            busy = ExecutionError("internal_error", "The runner is busy with another execution")
            self._done(id, Result(ok=False, error=busy))
            return
        try:
            _check_tools(message)
            upload = self._upload(message.options)
            if upload is not None and len(self._uploads) >= MAX_UPLOADS:
                raise Busy(f"{MAX_UPLOADS} executions of this connection wait for their files.")
            size += 0 if upload is None else upload.size
            self._pending.reserve(self._owner, size)
        except HutchError as error:
            self._refuse(id, error)
            return
        if upload is not None:
            self._uploads[id] = upload
        self._continue_as(id, message.options, RunHandle())
        task = asyncio.get_running_loop().create_task(self._serve(message))
        self._tasks[id] = task
        task.add_done_callback(lambda task: self._on_finished(id, size, task))

    def _upload(self, options: Options) -> FileUpload | None:
        """Raises InvalidExecution."""
        extensions = self._extensions
        is_sealed = extensions.durable and options.resume is not UNSET
        limits = extensions.sealed if is_sealed else extensions.files
        return None if limits is None or options.files is UNSET else FileUpload(options.files, limits)

    def _refuse(self, id: str, error: HutchError) -> None:
        if id in self._tasks:
            self._drop("an execute with the id of a running execution", id)
        else:
            self._done(id, Result(ok=False, error=_execution_error(error)))

    def _on_finished(self, id: str, size: int, task: asyncio.Task[Result]) -> None:
        """Sends `done` for a finished execution, even if its task was cancelled before the first step."""
        del self._tasks[id]
        run = self._runs.pop(id)
        if run.charge is not None:
            run.charge.release()
        self._uploads.pop(id, None)
        self._pending.release(self._owner, size)
        self._done(id, _cancelled_result(run) if task.cancelled() else task.result())
        self._resumed.discard(id)

    async def _receive_files(self, id: str) -> dict[str, bytearray]:
        """Waits for the files of an execution, as long as files of any execution arrive. Raises
        InvalidExecution.
        """
        upload, parts = self._uploads[id], -1
        while not await upload.wait(MAX_UPLOAD_PAUSE_SECONDS):
            if parts == self._parts_received:
                raise InvalidExecution(
                    "files", f"expected the announced files, got no part for {MAX_UPLOAD_PAUSE_SECONDS:g} s"
                )
            parts = self._parts_received
        del self._uploads[id]
        return upload.contents()

    async def _serve(self, message: Execute) -> Result:
        try:
            sends_lines = message.options.send_call_lines is True
            providers = [
                self._provider(message.id, manifest, sends_lines=sends_lines)
                for manifest in message.providers
            ]
            inputs, files = None, None
            options, extensions = message.options, self._extensions
            is_resumed = extensions.durable and options.resume is not UNSET
            if is_resumed:
                self._resumed.add(message.id)
            if message.inputs is not UNSET:
                # The inputs of a resumed run are results of calls, not variables.
                inputs = await decode_inputs(bytes(message.inputs), () if is_resumed else providers)
            if message.id in self._uploads:
                files = await self._receive_files(message.id)
            if self._continues_traces and options.traceparent is not UNSET:
                current.set(parse_context({TRACEPARENT: options.traceparent}.get))
            request = ExecutionRequest(
                id=message.id,
                code=message.code,
                options=options,
                providers=providers,
                inputs=inputs,
                run=self._runs[message.id],
                files=files,
                continue_as=lambda run: self._continue_as(message.id, options, run),
                send=lambda reply: self._channel.send(encode(reply)),
            )
            result = msgspec.structs.replace(await self._run(request), result=None)
            session = self._runs[message.id].session
            if session is not None and session.result is not None:
                # Free the decoded value, which may have many times the size of its JSON text.
                session.result = msgspec.structs.replace(session.result, result=None, files=())
            return await self._deliver(
                message.id, result, sends_files=extensions.files is not None or is_resumed
            )
        except HutchError as error:
            failure = _execution_error(error)
        except Exception:
            logger.exception("internal error in an execution")
            failure = ExecutionError("internal_error", "The runner failed; its log says why")
        return Result(ok=False, error=failure)

    async def _deliver(self, id: str, result: Result, *, sends_files: bool) -> Result:
        """Sends the pending calls and files of a result. Returns the result when `done` may be sent."""
        size = _size(result)
        if size <= SMALL_RESULT_BYTES:
            await self._send_data(id, result, sends_files=sends_files)
            return result
        if not self._pending.add_result(self._owner, size):
            return _dropped(result)
        try:
            async with self._delivering:
                await self._send_data(id, result, sends_files=sends_files)
        finally:
            self._pending.release_result(self._owner, size)
        return result

    async def _send_data(self, id: str, result: Result, *, sends_files: bool) -> None:
        if result.pending_calls and self._extensions.durable:
            await self._send_all(pending_call_messages(id, result.pending_calls))
        if result.files and sends_files:
            await self._send_all(file_parts(id, result.files))
        await self._channel.writable()

    def _continue_as(self, id: str, options: Options, run: RunHandle) -> None:
        """Reports the events of `run` as those of the execution with this id, and passes it its `cancel`."""
        self._runs[id] = run
        run_id = run.id if options.send_run_id is True else UNSET
        run.on_started = lambda: self._channel.send(encode(Started(id, run_id)))
        if options.stream_logs is not True:
            return
        run.listeners.append(log_listener(lambda line: self._channel.send(encode(Log(id, [line])))))
        if self._extensions.durable:

            def report_stored(event: RunEvent) -> None:
                if isinstance(event, RunSuspended):
                    self._channel.send(encode(Stored(id, event.calls)))

            run.listeners.append(report_stored)

    async def _send_all(self, messages: Iterator[ServerMessage]) -> None:
        for message in messages:
            self._channel.send(encode(message))
            await asyncio.sleep(0)
            await self._channel.writable()

    def _provider(self, id: str, manifest: Manifest, *, sends_lines: bool) -> Provider:
        async def call(tool: str, value: Any, context: ToolContext) -> bytes:
            streams = manifest.tools[tool].streams is True
            line = context.line if sends_lines else None
            return await self._call_tool(id, manifest.name, tool, value, context, line, streams=streams)

        return Provider.from_manifest(msgspec.to_builtins(manifest), call)

    async def _call_tool(
        self,
        id: str,
        provider: str,
        tool: str,
        value: Any,
        context: ToolContext,
        line: int | None,
        *,
        streams: bool,
    ) -> bytes:
        call_id = f"call-{next(self._numbers)}"
        opened = self._open_calls[call_id] = _OpenCall(context, streams=streams)
        call = ToolCall(
            call_id=call_id,
            provider_name=provider,
            safe_tool_name=tool,
            input=Raw(encode_value(value)),
            id=id if self._multiplexed else UNSET,
            line=line or UNSET,
            stream=streams or UNSET,
            run_call_id=context.call_id if self._extensions.durable else UNSET,
        )
        try:
            await self._channel.writable()
            self._channel.send(encode(call))
            result = await opened.answer
        finally:
            self._open_calls.pop(call_id, None)
        if not result.ok and result.error is not UNSET:
            if self._extensions.durable and result.suspend is not UNSET:
                raise suspend_error(result.suspend, result.error.message)
            raise ToolError(result.error.message, wire_code(result.error.code))
        raw = bytes(result.result) if result.result is not UNSET else b"null"
        if streams and raw == b"null":
            return b"[" + b",".join(opened.items) + b"]"
        return raw

    def _done(self, id: str, result: Result) -> None:
        done = Done(
            id=id,
            ok=result.ok,
            duration_ms=result.duration_ms,
            logs=result.logs,
            result=UNSET if result.result_json is None else Raw(result.result_json),
            error=UNSET if result.error is None else self._wire_error(result.error),
            logs_truncated=True if result.logs_truncated else UNSET,
            calls=result.calls if id in self._resumed else UNSET,
            warnings=[*result.warnings] if result.warnings else UNSET,
        )
        self._channel.send(encode(done))

    def _wire_error(self, error: ExecutionError) -> WireError:
        if error.code in _DURABLE_CODES and self._extensions.durable:
            return WireError(code=error.code, message=error.message)
        return WireError.of(error)


# Codes of runs that only peers with the extension for durable runs know.
_DURABLE_CODES = frozenset({SUSPENDED, "interrupted"})


class _OpenCall:
    """A tool call that the peer has not answered yet."""

    def __init__(self, context: ToolContext, *, streams: bool) -> None:
        self.answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self.streams = streams
        self.items: list[bytes] = []
        self._context = context

    def add_item(self, message: ToolItem) -> None:
        """Passes an item to the guest. Fails the call if its items have too many bytes."""
        if self.answer.done():
            return
        try:
            item = bytes(message.item)
            self._context.yield_item(item)
            self.items.append(item)
        except ToolError as error:
            self.answer.set_exception(error)


def _check_tools(message: Execute) -> None:
    """Raises InvalidExecution if an `execute` has too many providers or tools."""
    if len(message.providers) > MAX_PROVIDERS:
        raise InvalidExecution(
            "providers", f"has {len(message.providers)} providers; the limit is {MAX_PROVIDERS}"
        )
    tools = sum(len(manifest.tools) for manifest in message.providers)
    if tools > MAX_TOOLS:
        raise InvalidExecution("providers", f"has {tools} tools; the limit is {MAX_TOOLS}")


def _size(result: Result) -> int:
    return (
        len(result.result_json or b"")
        + sum(file.size for file in result.files)
        + sum(len(call.input_json) for call in result.pending_calls)
    )


def _dropped(result: Result) -> Result:
    """Returns a result without its data, because too many results wait for clients that do not read."""
    error = result.error
    if error is None:
        error = ExecutionError(
            "result_too_large",
            f"The result was dropped: {MAX_UNSENT_BYTES} bytes of results already wait until clients of this"
            " owner read them",
        )
    return msgspec.structs.replace(
        result, ok=False, result_json=None, files=(), pending_calls=(), error=error
    )


def _cancelled_result(run: RunHandle) -> Result:
    if run.is_abandoned and run.outcome == SUSPENDED:
        stored = ExecutionError(
            SUSPENDED, "The server stopped, and has stored the run. Continue it by its id"
        )
        return Result(ok=False, error=stored)
    return Result(ok=False, error=TIMED_OUT.to_exception())


def _execution_error(error: HutchError) -> ExecutionError:
    code = "validation_error" if error.code in ("invalid_tool", "invalid_request") else error.code
    retry_after = error.retry_after if isinstance(error, Busy) else None
    # Also send a name if the code does not identify the error: an exceeded quota has the same code as a busy
    # server, and all errors of sessions have one code.
    name = "QuotaExceeded" if isinstance(error, QuotaExceeded) else None
    if isinstance(error, SessionError | ResumeError):
        name = error.code
    return ExecutionError(wire_code(code), str(error), name, retry_after=retry_after)
