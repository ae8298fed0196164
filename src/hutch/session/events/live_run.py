"""A started run: its events as they occur, its result, and its cancellation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any

from msgspec import UNSET

from hutch.errors import HutchError, ResumeError
from hutch.session.host import TIMED_OUT
from hutch.session.run import (
    SUSPENDED,
    PendingCall,
    Result,
    RunEnded,
    RunEvent,
    RunHandle,
    RunLog,
    RunSuspended,
    ToolCallEnded,
    ToolCallStarted,
    ToolProgress,
)

MAX_BUFFERED_EVENTS = 20_000
MAX_BUFFERED_BYTES = 32 * 1024 * 1024
"""Maximum size of the inputs, outputs and log lines in buffered events."""


class Run:
    """A started run.

    ```python
    run = await h.start("console.log('hello')")
    async for event in run:
        print(event)
    result = await run.result()
    ```

    Events are buffered until they are read, up to 20 000 events and 32 MiB. Further events are dropped and
    counted in `dropped_events`, except the last one.
    """

    def __init__(
        self,
        execute: Callable[[RunHandle], Coroutine[Any, Any, Result]],
        handle: RunHandle | None = None,
        seal: Callable[[str], Awaitable[bytes]] | None = None,
    ) -> None:
        """`seal` returns the suspended run with the given id as bytes. It is None if suspended runs are not
        stored here.
        """
        self._seal = seal
        self._handle = handle or RunHandle()
        self._handle.listeners.append(self._add)
        self._events: deque[RunEvent] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self.dropped_events = 0
        self._cancelled = False
        self._refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Set to the reason if `checkpoint` was called and the run cannot be suspended."""
        self._task = asyncio.get_running_loop().create_task(execute(self._handle))
        self._task.add_done_callback(self._on_done)

    @property
    def id(self) -> str | None:
        """Id of the run. With `hutch.connect`, the server chooses it, and it is None until the run starts."""
        handle, session = self._handle, self._handle.session
        return (handle.id if session is None or not handle.has_started else session.run_id) or None

    @property
    def pending_calls(self) -> Sequence[PendingCall]:
        """Tool calls that a suspended run waits for. Empty for other runs."""
        session = self._handle.session
        if session is not None and session.saved is not None:
            return session.saved.pending
        result = None if session is None else session.result
        return () if result is None else result.pending_calls

    async def result(self) -> Result:
        """Returns the result when the run has ended. Cancelling this call does not affect the run.

        If the run was suspended, the error of the result has the code `suspended`. Raises HutchError if the
        execution could not be started, as `Hutch.run` does.
        """
        await asyncio.wait({self._task})
        if self._task.cancelled() and self._cancelled:
            return Result(ok=False, error=TIMED_OUT.to_exception(), run_id=self._handle.id)
        return self._task.result()

    async def checkpoint(self) -> bytes:
        """Suspends the run when it next waits for tools or timers, and returns it as sealed bytes.

        `Hutch.resume` continues the run from these bytes once, in any process with the same master key; with
        `hutch.connect`, on any server with the same one. Tools that are still running are awaited first, and
        their results become part of the bytes. The result of this run then has the code `suspended`.
        Cancelling this call does not affect the run.

        Raises ResumeError if the run ended instead, or cannot be suspended.
        """
        if self._seal is None:
            raise HutchError(
                "This run cannot be suspended: it runs in an external runner.",
                remedy="Use hutch.Hutch() without `runner`.",
            )
        handle = self._handle
        if not handle.must_suspend:
            self._refused = asyncio.get_running_loop().create_future()
            handle.on_suspend_refused = self._refuse_checkpoint
            handle.suspend()
        ends: list[asyncio.Future[Any]] = [self._task, self._refused]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self._refused.done():
            raise ResumeError("checkpoint_invalid", f"The run cannot be suspended: {self._refused.result()}.")
        result = await self.result()
        if result.error is None or result.error.code != SUSPENDED:
            outcome = "ok" if result.error is None else result.error.code
            raise ResumeError("checkpoint_ended", f"The run ended before it could be suspended: {outcome}.")
        return await self._seal(result.run_id)

    def _refuse_checkpoint(self, reason: str) -> None:
        self._handle.must_suspend = False
        if not self._refused.done():
            self._refused.set_result(reason)

    def cancel(self) -> None:
        """Stops the guest and its tools. The result has the code `timeout` and the logs so far. Does nothing
        if the run has ended.
        """
        self._cancelled = True
        if not self._handle.stop():
            self._task.cancel()

    async def __aiter__(self) -> AsyncIterator[RunEvent]:
        """Yields the events until the run ends. If there are several readers, only one of them gets each
        event.

        Raises HutchError if the execution could not be started.
        """
        while True:
            while self._events:
                event = self._events.popleft()
                self._bytes -= _size(event)
                yield event
            if self._task.done():
                await self.result()
                return
            self._changed.clear()
            await self._changed.wait()

    def _on_done(self, task: asyncio.Task[Result]) -> None:
        if not self._handle.outcome:
            # The task was cancelled before its first step, so nothing else has ended the run.
            self._handle.fail("cancelled")
        self._changed.set()

    def _add(self, event: RunEvent) -> None:
        size = _size(event)
        is_full = len(self._events) >= MAX_BUFFERED_EVENTS or self._bytes + size > MAX_BUFFERED_BYTES
        if is_full and not isinstance(event, RunEnded):
            self.dropped_events += 1
            return
        self._events.append(event)
        self._bytes += size
        self._changed.set()


def _size(event: RunEvent) -> int:
    match event:
        case RunLog():
            return len(event.line)
        case RunSuspended():
            return sum(map(len, event.calls))
        case ToolCallStarted():
            json = event.input_json
        case ToolCallEnded():
            json = event.output_json
        case ToolProgress():
            json = event.value_json
        case _:
            return 0
    return 0 if json is UNSET else memoryview(json).nbytes
