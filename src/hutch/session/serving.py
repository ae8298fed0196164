"""The runner's side of a channel: takes `execute`, has it run, passes tool calls on, and answers `done`.

What runs the code is a function that is given to it, so that the same lines serve a WebSocket
client, a program on our stdin, and tests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from hutch.errors import Busy, HutchError, ProtocolError, ToolError, wire_code
from hutch.session.channel import Channel
from hutch.session.host import TIMED_OUT
from hutch.session.jsonvalue import decode_value, encode_value, is_broken
from hutch.session.messages import (
    Cancel,
    Done,
    Execute,
    Manifest,
    Options,
    Started,
    ToolCall,
    ToolResult,
    WireError,
    decode_from_host,
    encode,
)
from hutch.session.providers import Provider
from hutch.session.tools import ToolContext

logger = logging.getLogger("hutch.session")


class Watch:
    """Is told when the execution runs and how it is stopped; the kernel's `Watch`."""

    def __init__(self, on_started: Callable[[], None]) -> None:
        self.on_started = on_started
        self.stop: Callable[[], None] | None = None

    def on_running(self, stop: Callable[[], None] | None) -> None:
        self.stop = stop


class Request(msgspec.Struct, frozen=True):
    """An execution that the other side asks for, with its tools on the other side."""

    code: str
    options: Options
    providers: Sequence[Provider]
    watch: Watch


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    ok: bool
    duration_ms: float
    logs: list[str]
    logs_truncated: bool = False
    result_json: bytes | None = None
    error: WireError | None = None


class Serving:
    """Serves one channel until it closes; then everything that it started ends."""

    def __init__(
        self, channel: Channel, run: Callable[[Request], Awaitable[Answer]], *, multiplexed: bool
    ) -> None:
        self.dropped = 0
        self._channel = channel
        self._run = run
        self._multiplexed = multiplexed
        self._tasks: dict[str, asyncio.Task[Answer]] = {}
        self._watches: dict[str, Watch] = {}
        self._calls: dict[str, asyncio.Future[ToolResult]] = {}
        self._numbers = itertools.count(1)
        self._closed = asyncio.get_running_loop().create_future()
        channel.on_line = self._line
        channel.on_close = self._close

    async def closed(self) -> None:
        """Waits for the end of the channel and of all that it started."""
        await asyncio.shield(self._closed)
        await self.stop()

    async def stop(self) -> None:
        """Cancels everything that runs and waits for its end."""
        self._cancel_all()
        await self.idle()

    async def idle(self) -> None:
        """Waits until nothing runs any more."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    @property
    def active(self) -> int:
        return len(self._tasks)

    def _close(self, _: str) -> None:
        if not self._closed.done():
            self._closed.set_result(None)
        self._cancel_all()

    def _line(self, line: bytes) -> None:
        try:
            message = decode_from_host(line)
        except ProtocolError as error:
            self.dropped += 1
            logger.warning("dropped a message that is not of the protocol: %s", error)
            return
        if isinstance(message, Execute):
            self._execute(message)
        elif isinstance(message, Cancel):
            self._cancel(message.id)
        else:
            waiting = self._calls.pop(message.call_id, None)
            if waiting is None:
                self._drop("a tool_result for no open call", message.call_id)
            elif not waiting.done():
                waiting.set_result(message)

    def _cancel_all(self) -> None:
        for id in self._tasks:
            self._cancel(id)

    def _cancel(self, id: str) -> None:
        """What runs ends by itself, with its logs; what still waits for a place just goes."""
        watch = self._watches.get(id)
        if watch is not None and watch.stop is not None:
            watch.stop()
        elif id in self._tasks:
            self._tasks[id].cancel()
        else:
            self._drop("a cancel of what does not run", id)

    def _drop(self, what: str, id: str) -> None:
        self.dropped += 1
        logger.debug("dropped %s: %.100r", what, id)

    def _execute(self, message: Execute) -> None:
        if message.id in self._tasks:
            self._drop("an execute with the id of one that runs", message.id)
        elif self._tasks and not self._multiplexed:
            busy = WireError(code="internal_error", message="The runner is busy with another execution")
            self._done(message.id, Answer(ok=False, duration_ms=0, logs=[], error=busy))
        else:
            task = asyncio.get_running_loop().create_task(self._serve(message))
            self._tasks[message.id] = task
            task.add_done_callback(lambda task: self._finished(message.id, task))

    def _finished(self, id: str, task: asyncio.Task[Answer]) -> None:
        """Also of a task that was cancelled before its first step."""
        del self._tasks[id]
        self._watches.pop(id, None)
        cancelled = Answer(ok=False, duration_ms=0, logs=[], error=TIMED_OUT)
        self._done(id, cancelled if task.cancelled() else task.result())

    async def _serve(self, message: Execute) -> Answer:
        try:
            providers = [self._provider(message.id, each) for each in message.providers]
            watch = Watch(lambda: self._channel.send(encode(Started(message.id))))
            self._watches[message.id] = watch
            answer = await self._run(Request(message.code, message.options, providers, watch))
            await self._channel.writable()
            return answer
        except HutchError as error:
            code = "validation_error" if error.code in ("invalid_tool", "invalid_request") else error.code
            retry_after = error.retry_after if isinstance(error, Busy) else None
            failure = WireError(code=wire_code(code), message=str(error), retry_after=retry_after)
        except Exception:
            logger.exception("an execution failed through a fault of ours")
            failure = WireError(code="internal_error", message="The runner failed; its log says why")
        return Answer(ok=False, duration_ms=0, logs=[], error=failure)

    def _provider(self, id: str, manifest: Manifest) -> Provider:
        async def call(tool: str, value: Any, context: ToolContext) -> bytes:
            return await self._ask(id, manifest.name, tool, value)

        return Provider.from_manifest(msgspec.to_builtins(manifest), call)

    async def _ask(self, id: str, provider: str, tool: str, value: Any) -> bytes:
        call_id = f"call-{next(self._numbers)}"
        answer: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = answer
        call = ToolCall(
            call_id=call_id,
            provider_name=provider,
            safe_tool_name=tool,
            input=Raw(encode_value(value)),
            id=id if self._multiplexed else UNSET,
        )
        try:
            await self._channel.writable()
            self._channel.send(encode(call))
            result = await answer
        finally:
            self._calls.pop(call_id, None)
        if not result.ok and result.error is not UNSET:
            raise ToolError(result.error.message, wire_code(result.error.code))
        raw = bytes(result.result) if result.result is not UNSET else b"null"
        return encode_value(decode_value(raw)) if is_broken(raw) else raw

    def _done(self, id: str, answer: Answer) -> None:
        error = answer.error
        if error is not None:
            error = msgspec.structs.replace(error, code=wire_code(error.code))
        done = Done(
            id=id,
            ok=answer.ok,
            duration_ms=answer.duration_ms,
            logs=answer.logs,
            result=UNSET if answer.result_json is None else Raw(answer.result_json),
            error=UNSET if error is None else error,
            logs_truncated=True if answer.logs_truncated else UNSET,
        )
        self._channel.send(encode(done))
