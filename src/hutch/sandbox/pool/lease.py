"""Lease of a runner for one execution."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Protocol, Self

from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile
from hutch.session.files.model import InputFiles
from hutch.session.host import Session
from hutch.session.limits import Limits
from hutch.session.messages import Job
from hutch.session.run import Result, RunHandle
from hutch.session.suspension import Answer, SavedSession
from hutch.session.tools.provider import Provider
from hutch.session.turn import Turn


class RunnerSource(Protocol):
    """Pool, or placement on several machines."""

    async def acquire(self, profile: Profile, owner: str) -> Runner:
        """Takes a runner for a lease. Raises Busy if no runner becomes available in time."""

    def release(
        self, runner: Runner, result: Result | None = None, session: Session | None = None, *, owner: str
    ) -> None:
        """Takes a runner back at the end of a lease of `owner`."""


def _never() -> bool:
    return False


class Lease:
    """Holds a runner for one execution.

    This is a context manager, which acquires a runner and releases it at the end. With `runner`, it uses this
    runner, which the pool has already acquired.
    """

    __slots__ = ("_acquired", "_owner", "_pool", "_profile", "_result", "_session")

    def __init__(
        self, pool: RunnerSource, profile: Profile, owner: str, runner: Runner | None = None
    ) -> None:
        self._pool = pool
        self._profile = profile
        self._owner = owner
        self._acquired = runner
        self._session: Session | None = None
        self._result: Result | None = None

    @property
    def _runner(self) -> Runner:
        assert self._acquired is not None, "the lease was not entered"
        return self._acquired

    async def __aenter__(self) -> Self:
        """Acquires a runner. Raises Busy if no runner becomes available in time."""
        if self._acquired is None:
            self._acquired = await self._pool.acquire(self._profile, self._owner)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.release(self._runner, self._result, self._session, owner=self._owner)

    async def run(
        self,
        run: RunHandle,
        code: str,
        limits: Limits,
        providers: Sequence[Provider] = (),
        job: Job | None = None,
        inputs: bytes | None = None,
        *,
        files: InputFiles | None = None,
        saved: SavedSession | None = None,
        answers: Mapping[str, Answer] | None = None,
        max_saved_bytes: int = 0,
        turn: Turn | None = None,
        max_wait_seconds: float = 0.0,
        may_poll: Callable[[], bool] = _never,
        max_seconds: float | None = None,
    ) -> Result:
        """Runs an execution to its end.

        If the call is cancelled, the guest is cancelled too, and its result is in `run.session.result`.

        `inputs`: JSON text of the guest's variables. `files`, `saved`, `answers`, `max_saved_bytes`, `turn`
        and `max_wait_seconds`: see `Session`; if the guest was suspended, `run.session.saved` is set.
        `may_poll`: returns True if host and runner may each use a core to poll for messages. `max_seconds`:
        cancels the execution after this time. If the runner has not started the execution by then, another
        execution keeps the runner busy, and the runner does not count as unresponsive.
        """
        runner = self._runner
        multiplexer = runner.multiplexer
        session = Session(
            run.id,
            code,
            limits,
            providers,
            multiplexer.peer,
            send_execute=partial(multiplexer.send_execute, may_poll),
            send_result=partial(multiplexer.send_result, may_poll),
            on_started=run.report_started,
            job=job,
            inputs=inputs,
            listeners=run.listeners,
            trace=run.trace,
            saved=saved,
            answers=answers,
            max_saved_bytes=max_saved_bytes if runner.can_suspend else 0,
            turn=turn,
            before_call=run.before_call,
            open_calls=run.open_calls,
            max_wait_seconds=max_wait_seconds,
            files=files,
        )
        session.charge = run.charge
        multiplexer.add(session)
        self._session = run.session = session
        timer: asyncio.TimerHandle | None = None
        if max_seconds is not None:
            timer = asyncio.get_running_loop().call_later(max_seconds, session.cancel)
        try:
            runner.on_output = run.on_output
            # `execution_started` sets the memory limit, so call it before the guest runs.
            runner.execution_started(session)
            if runner.requests is not None:
                run.requests = runner.requests
            try:
                if saved is not None or turn is not None:
                    await session.send_memory()
                session.begin()
                if saved is not None:
                    await session.send_replies()
                if run.must_suspend:
                    session.suspend(run.on_suspend_refused)
                await session.wait()
            except asyncio.CancelledError:
                session.cancel()
                # Wait for the result, at most for the grace period. The pool must know whether the runner is
                # unresponsive.
                await asyncio.shield(session.wait())
                raise
        finally:
            if timer is not None:
                timer.cancel()
            if session.result is not None:
                if not session.done_received:
                    await runner.collect()
                cpu_seconds = runner.take_cpu_seconds()
                # The CPU time of a process that was killed is not known. Use the duration instead.
                run.cpu_seconds += session.result.duration_ms / 1000 if cpu_seconds is None else cpu_seconds
                session.result = self._result = runner.execution_ended(session.result, session)
            multiplexer.forget(session)
            if max_seconds is not None and not session.started:
                self._session = self._result = None
        assert session.result is not None
        return session.result

    def open_folder(self, path: str) -> int:
        """Opens a folder as the guest sees it. The descriptor outlives the guest. Raises OSError."""
        return self._runner.open_folder(path)

    async def wait_exit(self) -> None:
        """Waits until the process has ended. A single-use process ends after its lease."""
        await self._runner.wait()
