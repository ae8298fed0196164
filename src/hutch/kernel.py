"""Execution -> Result: picks the engine, lends the tools, enforces the limits, records the run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from hutch.errors import InvalidExecution
from hutch.programs import Programs
from hutch.sandbox.pool import Pool
from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import OnOutput
from hutch.session.host import Calls, Limits, Outcome, Session
from hutch.session.messages import Job, WireError
from hutch.session.providers import Provider, check_providers
from hutch.settings import Settings, cores

_CEILINGS = {
    "timeout_ms": "most_timeout_ms",
    "memory_limit_bytes": "most_memory_limit_bytes",
    "max_log_lines": "most_log_lines",
    "max_log_chars": "most_log_chars",
}


# How often an execution is begun again whose runner was lost through a neighbour's fault.
MORE_ATTEMPTS = 2


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run needs, whichever door it came through."""

    code: str
    profile: Profile
    limits: Limits = Limits()
    providers: Sequence[Provider] = ()
    owner: str = "default"
    door: str = "python"
    label: str | None = None
    run_id: str | None = None
    """If its caller wants to know it beforehand; see `new_run_id`."""
    on_output: OnOutput | None = None
    """Gets what a guest that is a program prints, as it comes."""
    job: Job | None = None
    """What else is to be done with the code than running it, or what to run instead of it."""
    requests: Sequence[Any] = ()
    """What it asks of others' servers, for the record: filled while it runs."""
    calls: Calls | None = None
    """Where its calls go past its session: what they are, filled while it runs."""
    failure_in: Callable[[Any], str | None] | None = None
    """Where guests tell of failures in their result: the code of the one that a result tells of, if any."""

    def code_of(self, outcome: Outcome) -> str:
        """`ok`, or the code of what went wrong."""
        if outcome.error is not None:
            return outcome.error.code
        return (self.failure_in and self.failure_in(outcome.result)) or "ok"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `error` is None exactly when `ok`."""

    ok: bool
    result: Any = None
    error: WireError | None = None
    logs: list[str] = []
    logs_truncated: bool = False
    duration_ms: float = 0.0
    run_id: str = ""
    result_json: bytes | None = None

    @classmethod
    def of(cls, run_id: str, outcome: Outcome) -> Result:
        return cls(
            ok=outcome.ok,
            result=outcome.result,
            error=outcome.error,
            logs=outcome.logs,
            logs_truncated=outcome.logs_truncated,
            duration_ms=outcome.duration_ms,
            run_id=run_id,
            result_json=outcome.result_json,
        )


def new_run_id() -> str:
    return os.urandom(16).hex()


class Watch(Protocol):
    """Whoever wants to know how a run goes on, and may want to stop it and have its Result all the same."""

    def on_started(self) -> None:
        """The guest runs."""

    def on_running(self, stop: Callable[[], None] | None) -> None:
        """From now on `stop` ends the run, with what it has logged; None while it waits for a place again."""


class _Once:
    """Calls what it is given the first time only: a run that is begun again has started already."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action: Callable[[], None] | None = action

    def __call__(self) -> None:
        action, self._action = self._action, None
        if action is not None:
            action()


Recorder = Callable[[str, Execution, Outcome, float], None]
"""Gets the run's id, what was run, how it ended, and when it began."""


class Kernel:
    """Runs executions on the pool's runners."""

    def __init__(self, settings: Settings, pool: Pool, record: Recorder) -> None:
        self.settings = settings
        self.pool = pool
        self._record = record
        self._running: dict[str, Session] = {}
        self._watchers = min(settings.quickjs_processes, cores())
        self._programs = Programs(pool, owners_share=settings.owners_share)

    def limits(self, asked: dict[str, Any], *, clamp: bool = False) -> Limits:
        """The limits of an execution from what its caller asked for; defaults for what it did not.

        What exceeds the operator's maximum is an error, or, with `clamp`, the maximum.
        """
        settings = self.settings
        chosen: dict[str, Any] = {
            "max_result_bytes": settings.max_result_bytes,
            "max_calls": settings.max_calls,
            "max_outstanding_calls": settings.max_outstanding_calls,
            "cancel_grace_ms": settings.cancel_grace_ms,
        }
        for name, ceiling in _CEILINGS.items():
            value, most = asked.get(name), getattr(settings, ceiling)
            number = getattr(settings, name) if value is None else check_limit(name, value)
            if number > most and value is not None and not clamp:
                shown = int(number) if number == int(number) else number
                raise InvalidExecution(name, f"is {shown}; the most is {most} (setting {ceiling})")
            chosen[name] = min(number, most) if name == "timeout_ms" else int(min(number, most))
        return Limits(**chosen)

    async def run(self, execution: Execution, watch: Watch | None = None) -> Result:
        """Runs to the end. Raises HutchError only if it could not be begun; a guest's failure is a Result."""
        self._check(execution)
        run_id = execution.run_id or new_run_id()
        began = time.time()
        told = None if watch is None else _Once(watch.on_started)
        outcome = await self._outcome(execution, run_id, began, watch, told)
        self._ended(run_id, execution, outcome, began)
        return Result.of(run_id, outcome)

    async def _outcome(
        self,
        execution: Execution,
        run_id: str,
        began: float,
        watch: Watch | None,
        told: Callable[[], None] | None,
    ) -> Outcome:
        if execution.profile.details.takes_programs:
            prepared = await self._programs.prepare(execution.owner, execution.code, run_id)
            if isinstance(prepared, Outcome):
                if told is not None:
                    told()
                return prepared
            if prepared is not None:
                execution = msgspec.structs.replace(execution, code="", job=prepared)
        session, outcome = await self._attempt(execution, run_id, began, watch, told)
        for attempt in range(MORE_ATTEMPTS if execution.profile.details.has_neighbours else 0):
            if not outcome.lost or session.called_tools or self.pool.closed:
                break
            # A neighbour's fault, and nothing has happened yet: once more.
            if watch is not None:
                watch.on_running(None)
            session, outcome = await self._attempt(execution, run_id, began, watch, told)
            outcome.begun_again = attempt + 1
        return outcome

    async def _attempt(
        self,
        execution: Execution,
        run_id: str,
        began: float,
        watch: Watch | None,
        on_started: Callable[[], None] | None,
    ) -> tuple[Session, Outcome]:
        runner = await self.pool.acquire(execution.profile, execution.owner)
        session: Session | None = None
        outcome: Outcome | None = None
        try:
            session = runner.link.open(
                run_id,
                execution.code,
                execution.limits,
                execution.providers,
                on_started,
                execution.job,
                may_watch=self._has_core_to_spare,
            )
            self._running[run_id] = session
            runner.on_output = execution.on_output
            runner.began(session)
            if watch is not None:
                watch.on_running(session.cancel)
            outcome = await session.wait()
            runner.ended(outcome, session)
            return session, outcome
        except asyncio.CancelledError:
            if session is not None:
                session.cancel()
                # No longer than the grace, so it is not to be cancelled in its turn.
                outcome = await asyncio.shield(session.wait())
                runner.ended(outcome, session)
                self._ended(run_id, execution, outcome, began)
            raise
        finally:
            self._running.pop(run_id, None)
            if session is not None:
                runner.link.forget(session)
            self.pool.release(runner, outcome, session)

    def _ended(self, run_id: str, execution: Execution, outcome: Outcome, began: float) -> None:
        if execution.calls is not None:
            outcome.calls, outcome.call_count = execution.calls.first, execution.calls.count
        self._record(run_id, execution, outcome, began)

    def _has_core_to_spare(self) -> bool:
        """Whether a runner that watches for an answer rather than sleep takes no core from another."""
        return len(self._running) < self._watchers

    def hold(self, run_id: str) -> None:
        """Until `go_on`, a script's time does not count. Nothing happens if it does not run."""
        if (session := self._running.get(run_id)) is not None:
            session.hold()

    def go_on(self, run_id: str) -> None:
        if (session := self._running.get(run_id)) is not None:
            session.go_on()

    def _check(self, execution: Execution) -> None:
        # To a package's tool the code is its input, which its door bounds.
        prepared = execution.profile.is_prepared
        most = max(self.settings.max_code_bytes, self.settings.max_body_bytes if prepared else 0)
        if (
            len(execution.code) * 4 > most
            and (size := len(execution.code.encode(errors="surrogatepass"))) > most
        ):
            raise InvalidExecution("code", f"has {size} bytes; the limit is {most}")
        check_providers(execution.providers)


def check_limit(name: str, value: Any) -> float:
    """A limit as a caller gave it. Raises InvalidExecution when it is no number or too small."""
    least = 0 if name.startswith("max_log") else 1
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < float("inf"):
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise InvalidExecution(name, f"expected a number of at least {least}, got {shown}")
    return value
