"""The front's side of a runner on a worker: a channel over the link, for one execution."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from hutch.cluster import messages
from hutch.cluster.link import Link
from hutch.cluster.messages import Close, End, FrameType, Leased, Refused, Trailer
from hutch.errors import HutchError, PackageNotFound, PackageTooLarge, StoreError
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.output_logs import with_output
from hutch.sandbox.runner.process import open_multiplexer
from hutch.sandbox.runner.profile import Profile
from hutch.session.channels.stream import CloseHandler, LineHandler, ignore
from hutch.session.host import Session
from hutch.session.multiplexer import Multiplexer
from hutch.session.relayed_session import AnySession
from hutch.session.run import Result

# Additional time for messages to and from a worker.
EXTRA_SECONDS = 0.25
# Time for which the front waits for the output of a guest that did not answer.
COLLECT_SECONDS = 0.5


class RemoteChannel:
    """Channel to a runner on a worker."""

    def __init__(self, link: Link, number: int) -> None:
        self.on_line: LineHandler = ignore
        self.on_close: CloseHandler = ignore
        self._link = link
        self._number = number

    def send(self, line: bytes) -> None:
        try:
            self._link.send(FrameType.LINES, self._number, line)
        except ValueError as error:
            self.on_close(str(error))

    async def writable(self) -> None:
        await self._link.writable()

    def close(self) -> None:
        self.on_close = ignore


class WorkerRefused(HutchError):
    """A worker has no place for the execution. Another worker may have one."""

    code = "busy"


class RemoteRunner(Runner):
    def __init__(self, profile: Profile, link: Link, number: int, worker: str, run_id: str) -> None:
        super().__init__(profile)
        self.run_id = run_id
        self.number = number
        self.worker = worker
        """Name of the worker, for messages."""
        self.has_effects = False
        """True if the guest of this runner has done something besides its tool calls."""
        self.gateway: str | None = None
        """Revision of the gateway that the script of this runner may use."""
        self.details: Leased | None = None
        self._link = link
        self._channel = RemoteChannel(link, number)
        self._multiplexer = open_multiplexer(profile, self._channel, extra_seconds=EXTRA_SECONDS)
        self._session: Session | None = None
        self._trailer: Trailer | None = None
        self._released = asyncio.Event()
        self._leased: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_closed = False
        self._refusal: Refused | None = None
        self._handlers: dict[int, Callable[[bytes], None]] = {
            FrameType.LINES: self._on_line,
            FrameType.LEASED: self._on_leased,
            FrameType.REFUSED: self._on_refused,
            FrameType.TRAILER: self._on_trailer,
            FrameType.RELEASED: self._on_released,
            FrameType.END: self._on_end,
            FrameType.STDOUT: lambda data: self._on_stream("stdout", data),
            FrameType.STDERR: lambda data: self._on_stream("stderr", data),
        }

    @property
    def multiplexer(self) -> Multiplexer:
        return self._multiplexer

    @property
    def is_alive(self) -> bool:
        return not self._is_closed and not self._link.is_closed

    @property
    def session(self) -> Session | None:
        return self._session

    @property
    def refusal(self) -> Refused | None:
        """The worker's refusal to run the execution, or None."""
        return self._refusal

    async def wait_leased(self) -> None:
        """Waits until the worker has a runner. Raises WorkerRefused, or the error of the worker."""
        await self._leased

    def receive(self, type: int, content: bytes) -> None:
        """Handles a frame of the worker."""
        handler = self._handlers.get(type)
        if handler is not None and not self._is_closed:
            handler(content)

    def lose(self, reason: str) -> None:
        """Ends the execution, because the worker is lost."""
        if not self._leased.done():
            self._leased.set_exception(WorkerRefused(reason))
            self._leased.exception()
        self._released.set()
        if self._session is not None:
            spec = self.profile.engine_spec
            # A tool of an npm package may have sent requests, so it is not restarted. A script can only call
            # tools through the front, which then sets `has_effects`.
            may_restart = not self.has_effects and not spec.resolves_names
            self._session.interrupt(reason, may_restart=may_restart)
        self._multiplexer.mark_lost(reason)

    # --- frames ---

    def _on_line(self, line: bytes) -> None:
        self._channel.on_line(line)

    def _on_leased(self, content: bytes) -> None:
        self.details = messages.decode(content, Leased)
        if not self._leased.done():
            self._leased.set_result(None)

    def _on_refused(self, content: bytes) -> None:
        self._refusal = refused = messages.decode(content, Refused)
        if not self._leased.done():
            self._leased.set_exception(error_of(refused))
            self._leased.exception()
        if self._session is not None:
            self._session.was_refused = True
        self._multiplexer.mark_lost(refused.message)

    def _on_trailer(self, content: bytes) -> None:
        self._trailer = messages.decode(content, Trailer)
        self.requests = self._trailer.requests

    def _on_released(self, content: bytes) -> None:
        self._on_trailer(content)
        self._released.set()

    def _on_end(self, content: bytes) -> None:
        end = messages.decode(content, End)
        if end.interrupted:
            self.lose(f"the worker {self.worker} was lost: {end.interrupted}")
            return
        session = self._session
        if session is None:
            return
        if end.error is None:
            session.succeed(end.value)
        else:
            session.lost = end.lost
            session.fail(end.error)

    def _on_stream(self, stream: str, data: bytes) -> None:
        if self.on_output is not None:
            self.on_output("stdout" if stream == "stdout" else "stderr", data)

    # --- the execution ---

    def execution_started(self, session: AnySession) -> None:
        assert isinstance(session, Session)
        self.executions += 1
        self._session = session
        if self.profile.has_preload:
            self.requests = []

    async def collect(self) -> None:
        """Gets the output of a guest that has not answered: tells the worker to end the lease, and waits a
        moment for the output.
        """
        if not self.profile.engine_spec.own_process or self._trailer is not None or not self.is_alive:
            return
        session = self._session
        unresponsive = session is not None and session.unresponsive
        self._link.send(
            FrameType.CLOSE,
            self.number,
            messages.encode(Close(ok=False, unresponsive=unresponsive, wants_output=True)),
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COLLECT_SECONDS):
                await self._released.wait()

    def execution_ended(self, result: Result, session: AnySession) -> Result:
        spec = self.profile.engine_spec
        if self._trailer is None or not spec.own_process or spec.streams_output:
            return result
        return with_output(result, self._trailer.output, session.limits)

    def take_cpu_seconds(self) -> float | None:
        return None if self._trailer is None else self._trailer.cpu_seconds

    def is_used_up(self, result: Result | None) -> bool:
        return True

    def close(self, result: Result | None, session: Session | None) -> None:
        """Gives the runner back to the worker."""
        if self._is_closed:
            return
        unresponsive = session is not None and session.unresponsive and not session.done_received
        close = Close(
            ok=result is not None and result.ok, unresponsive=unresponsive, was_abandoned=result is None
        )
        if self._refusal is None:
            self._link.send(FrameType.CLOSE, self.number, messages.encode(close))
        self._is_closed = True
        self._mark_exited()

    def kill(self) -> None:
        self.close(None, None)


def error_of(refused: Refused) -> HutchError:
    """Converts a worker's refusal to an exception."""
    if refused.is_busy:
        return WorkerRefused(refused.message)
    if refused.code == PackageTooLarge.code:
        return PackageTooLarge(refused.message, "size")
    if refused.code == PackageNotFound.code:
        return PackageNotFound(refused.message, retryable=refused.retryable)
    if refused.code == StoreError.code:
        return StoreError(refused.message)
    error = HutchError(refused.message)
    error.code = refused.code
    return error
