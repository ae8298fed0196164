"""One execution of a front on this worker: a runner of the local pool whose lines go over the link."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from hutch.cluster import messages
from hutch.cluster.link import Link
from hutch.cluster.messages import Close, End, FrameType, Leased, Open, PlaceKind, Refused, Trailer
from hutch.errors import Busy, HutchError, PackageNotFound
from hutch.kernel.placement import PackageDetails
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile
from hutch.session.limits import Limits
from hutch.session.messages import Cancel, WireError, encode
from hutch.session.relayed_session import RelayedSession
from hutch.session.run import Result

logger = logging.getLogger("hutch.cluster")

# Maximum number of bytes of one execution that wait to be sent to the front. If there are more, the runner is
# ended.
MAX_WAITING_BYTES = 64 * 1024 * 1024
# Maximum number of bytes that the front may send before the lease has a runner.
MAX_EARLY_BYTES = 128 * 1024 * 1024


class WorkerLease:
    def __init__(self, number: int, request: Open, link: Link, pool: Pool, kind: PlaceKind) -> None:
        self.number = number
        self.request = request
        self.kind = kind
        self.on_end: Callable[[WorkerLease], None] = lambda _: None
        self._link = link
        self._pool = pool
        self._runner: Runner | None = None
        self._early: list[bytes] = []
        self._early_bytes = 0
        self._starting: asyncio.Task[None] | None = None
        self._is_closed = False
        limits = Limits(
            memory_limit_bytes=request.memory_limit_bytes,
            max_log_lines=request.max_log_lines,
            max_log_chars=request.max_log_chars,
        )
        self._session = RelayedSession(request.session, limits, self._send_line, self._send_end)
        self._has_trailer = False

    def start(self, profile: Profile) -> None:
        """Takes a runner at once if one is free. Otherwise waits for a runner."""
        runner = self._pool.try_acquire(profile, self.request.owner)
        if runner is not None:
            self._attach(runner, None)
        else:
            self.start_with(lambda: _made(profile))

    def start_with(self, make: Callable[[], Awaitable[tuple[Profile, PackageDetails | None]]]) -> None:
        self._starting = asyncio.create_task(self._start(make))

    async def _start(self, make: Callable[[], Awaitable[tuple[Profile, PackageDetails | None]]]) -> None:
        try:
            profile, details = await make()
            runner = await self._pool.acquire(profile, self.request.owner)
        except HutchError as error:
            self.refuse(error)
            return
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("an execution of another machine could not be started")
            self.refuse(HutchError("The worker failed; its log says why."))
            return
        self._attach(runner, details)

    def refuse(self, error: HutchError) -> None:
        """Tells the front that this worker does not run the execution, and that nothing has happened."""
        if self._is_closed:
            return
        self._is_closed = True
        refused = Refused(
            code=error.code,
            message=error.message,
            retry_after=getattr(error, "retry_after", 1.0),
            retryable=isinstance(error, PackageNotFound) and error.retryable,
            is_busy=isinstance(error, Busy),
        )
        self._link.send(FrameType.REFUSED, self.number, messages.encode(refused))
        self.on_end(self)

    def _attach(self, runner: Runner, details: PackageDetails | None) -> None:
        if self._is_closed:
            self._pool.release(runner, owner=self.request.owner)
            return
        self._runner = runner
        if self._session.id in runner.multiplexer.sessions:
            self._runner = None
            self._pool.release(runner, Result(ok=True), owner=self.request.owner)
            self.refuse(HutchError(f"The run {self._session.id} is running here already."))
            return
        runner.on_output = self._send_output
        runner.multiplexer.attach(self._session)
        runner.execution_started(self._session)
        if runner.profile.engine_spec.own_process:
            self._link.send(FrameType.LEASED, self.number, messages.encode(Leased(details)))
        for lines in self._early:
            runner.multiplexer.send(lines)
        self._early.clear()

    # --- from the front ---

    def receive_lines(self, lines: bytes) -> None:
        if self._runner is not None:
            self._runner.multiplexer.send(lines)
        elif self._early_bytes + len(lines) <= MAX_EARLY_BYTES:
            self._early.append(lines)
            self._early_bytes += len(lines)
        else:
            self.refuse(HutchError("The execution sent too much before it started."))

    def close(self, close: Close) -> None:
        """Ends the lease, because the front has the result or no longer wants it."""
        if self._is_closed:
            return
        self._is_closed = True
        runner, session = self._runner, self._session
        if self._starting is not None and runner is None:
            self._starting.cancel()
        if runner is not None:
            result = None if close.was_abandoned else Result(ok=close.ok, run_id=session.id)
            session.unresponsive = close.unresponsive
            if not session.done_received:
                runner.multiplexer.send(encode(Cancel(session.id)))
            if close.wants_output:
                self._send_trailer(FrameType.RELEASED)
            if result is not None:
                runner.execution_ended(result, session)
            runner.multiplexer.forget(session)
            self._pool.release(runner, result, session, owner=self.request.owner)
        self.on_end(self)

    def cancel(self) -> None:
        """Ends the execution, because its front is lost."""
        # With `unresponsive`, the pool ends a shared process that does not confirm the cancellation.
        self.close(Close(unresponsive=True, was_abandoned=True))

    def end_lost(self, reason: str) -> None:
        """Ends the execution, because this worker stops. The front restarts the execution on another machine
        if possible.
        """
        if not self._is_closed:
            end = End(interrupted=reason)
            self._link.send(FrameType.END, self.number, messages.encode(end))
        self.cancel()

    # --- to the front ---

    def _send_line(self, line: bytes, is_last: bool) -> None:
        if self._is_closed:
            return
        if is_last:
            self._send_trailer(FrameType.TRAILER)
        elif self._link.waiting_bytes > MAX_WAITING_BYTES:
            self._session.mark_lost("the front does not accept its messages")
            return
        self._link.send(FrameType.LINES, self.number, line)

    def _send_end(self, error: WireError | None, value: Any, lost: bool) -> None:
        if not self._is_closed:
            self._send_trailer(FrameType.TRAILER)
            end = End(error=error, value=value, lost=lost)
            self._link.send(FrameType.END, self.number, messages.encode(end))

    def _send_trailer(self, type: FrameType) -> None:
        runner = self._runner
        if runner is None or (self._has_trailer and type == FrameType.TRAILER):
            return
        self._has_trailer = True
        output = runner.take_output() if runner.profile.engine_spec.own_process else b""
        trailer = Trailer(
            cpu_seconds=runner.take_cpu_seconds(), output=output, requests=list(runner.requests or ())
        )
        self._link.send(type, self.number, messages.encode(trailer))

    def _send_output(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        if self._is_closed:
            return
        if self._link.waiting_bytes > MAX_WAITING_BYTES:
            self._session.mark_lost("the front does not accept its output")
            return
        self._link.send(FrameType.STDOUT if stream == "stdout" else FrameType.STDERR, self.number, data)


async def _made(profile: Profile) -> tuple[Profile, None]:
    return profile, None
