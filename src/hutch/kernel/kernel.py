"""Runs executions: checks limits, leases a runner, runs the session, and records the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec

from hutch.errors import ExecutionError, HutchError, InvalidExecution, QuotaExceeded, RateLimited
from hutch.kernel.durable.calls.call_hold import CallHold
from hutch.kernel.durable.resume_errors import LOST_CLIENT
from hutch.kernel.execution import CheckCode, Execution, Recorder
from hutch.kernel.fair_use import FairUse
from hutch.kernel.placement import Placement
from hutch.kernel.precompile import Precompiler
from hutch.kernel.state_memory import StateMemory
from hutch.sandbox.pool.lease import Lease
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.profile import Profile
from hutch.session.files.model import FileLimits, InputFiles, input_files
from hutch.session.host import TIMED_OUT, Session
from hutch.session.limits import Limits
from hutch.session.messages import WireError
from hutch.session.run import SUSPENDED, Result, RunHandle, RunQueued, RunSuspended, Wait
from hutch.session.suspension import SavedSession
from hutch.session.tools.provider import check_providers
from hutch.settings import Settings, cores
from hutch.text import cut

logger = logging.getLogger("hutch.runs")

_MAXIMUM_SETTINGS = {
    "timeout_ms": "max_timeout_ms",
    "memory_limit_bytes": "max_memory_limit_bytes",
    "max_log_lines": "max_log_lines_ceiling",
    "max_log_chars": "max_log_chars_ceiling",
}
# Maximum retries of an execution whose runner was lost before the execution began, or because of another
# execution in the same runner.
MAX_RETRIES = 2
# Time after which a waiting run is stored while the process shuts down.
DRAINING_WAIT_SECONDS = 0.1
# Applies to runs that are stored before each call: if the state is not larger than this, it also stays in
# memory.
MAX_KEPT_BYTES = 256 * 1024
LoadSaved: TypeAlias = Callable[[SavedSession], Awaitable[SavedSession]]
"""Adds the stored memory to the state of a suspended session."""
# Maximum length of a tool's name in the record of a wait.
MAX_TOOL_CHARS = 200


class Kernel:
    """Runs executions on runners of the pool."""

    def __init__(self, settings: Settings, pool: Pool, record: Recorder) -> None:
        self.settings = settings
        self.pool = pool
        self._record = record
        self.active: dict[str, tuple[Execution, RunHandle]] = {}
        """Runs in progress by id, including those that wait for a runner."""
        self.on_begin: list[Callable[[Execution, RunHandle], None]] = []
        """Called with each run before it is queued, for example to add a listener."""
        self.is_traced = False
        """True if traces of runs are exported."""
        self.on_suspend: Callable[[Execution, RunHandle], Awaitable[object]] | None = None
        """Stores a run that was suspended. None if runs cannot be suspended, as with an external runner."""
        self.on_checkpoint: Callable[[Execution, RunHandle], Awaitable[LoadSaved]] | None = None
        """Stores a run that waits for running tools, and drops its memory. Returns a function that loads the
        state when the run continues.
        """
        self.on_stored_end: Callable[[RunHandle, Result | None], Awaitable[bool]] | None = None
        """Ends a stored run that this process holds. The result is None if the run could not continue.
        Returns False if another process can continue the run.
        """
        self._is_draining = False
        self._storing: set[str] = set()
        """Runs that are stored when they next wait, because memory is scarce."""
        self.placement: Placement | None = None
        """Chooses the machine of each execution. None to run all executions here."""
        self.precompiles = True
        """False if this machine runs no guests, not even to compile their code."""
        self.check_code: CheckCode | None = None
        """Type-checks code. None if there is no compiler, as with an external runner."""
        self.fair_use = FairUse(settings, pool.shares.set_weight)
        self._leases = 0
        self._pauses: dict[str, list[tuple[float, str]]] = {}
        """Current waits for approvals, each with its start and the tool, by run id."""
        self._max_polling = min(settings.quickjs_processes, cores())
        self._default_limits = self._limits({}, clamp=True)
        self.no_files = InputFiles([], FileLimits(settings.max_files, settings.max_file_bytes))
        """Used for executions without input files. Their guests can only write files."""
        self.states = StateMemory(settings.max_state_bytes, settings.queue_seconds)
        """Counts the memory of the states of suspended runs and sessions."""
        self.precompiler = Precompiler(pool, record, owners_share=settings.owners_share)

    def limits(self, requested: dict[str, Any], *, clamp: bool = False) -> Limits:
        """Returns the limits of an execution: requested values, and defaults for the others.

        A value above the operator's maximum raises InvalidExecution. With `clamp`, such a value is reduced to
        the maximum.
        """
        for value in requested.values():
            if value is not None:
                return self._limits(requested, clamp=clamp)
        return self._default_limits

    def _limits(self, requested: dict[str, Any], *, clamp: bool) -> Limits:
        settings = self.settings
        chosen: dict[str, Any] = {
            "max_result_bytes": settings.max_result_bytes,
            "max_calls": settings.max_calls,
            "max_outstanding_calls": settings.max_outstanding_calls,
            "cancel_grace_ms": settings.cancel_grace_ms,
        }
        for name, setting in _MAXIMUM_SETTINGS.items():
            value, maximum = requested.get(name), getattr(settings, setting)
            number = getattr(settings, name) if value is None else check_limit(name, value)
            if number > maximum and value is not None and not clamp:
                shown = int(number) if number == int(number) else number
                raise InvalidExecution(name, f"is {shown}; the maximum is {maximum} (setting {setting})")
            chosen[name] = min(number, maximum) if name == "timeout_ms" else int(min(number, maximum))
        return Limits(**chosen)

    def files(self, files: object) -> InputFiles:
        """Returns the input files of an execution, given by name. Raises InvalidExecution."""
        return self.no_files if files is None else input_files(files, self.no_files.limits)

    async def run(self, execution: Execution, run: RunHandle | None = None) -> Result:
        """Runs an execution to its end. If the guest fails, returns a Result with an error. Raises HutchError
        only if the execution could not start.
        """
        self._check(execution)
        run = run or RunHandle()
        try:
            accounts = () if execution.is_internal else await self.fair_use.begin(execution.owner)
        except QuotaExceeded as error:
            run.fail(error.code)
            raise
        was_refused = False
        try:
            return await self._run_counted(execution, run)
        except HutchError as error:
            was_refused = run.clock.leased is None
            if isinstance(error, RateLimited):
                self.fair_use.refusals[error.limit or ""] += 1
            raise
        finally:
            self.fair_use.end(accounts, run.cpu_seconds, was_refused=was_refused)

    async def _run_counted(self, execution: Execution, run: RunHandle) -> Result:
        for observe in self.on_begin:
            observe(execution, run)
        if run.is_followed:
            run.emit(RunQueued())
        self.active[run.id] = execution, run
        if run.charge is None and (execution.turn is not None or self._max_saved_bytes(execution)):
            run.charge = self.states.charge(execution.owner)
        try:
            result = await self._run(execution, run)
            if result.error is not None or execution.unavailable_servers or _has_promise_text(result):
                result = _explained(execution, result)
            if run.session is not None and run.session.saved is not None:
                result = await self._suspended(execution, run, result)
            if run.is_stored and self.on_stored_end is not None:
                await self.on_stored_end(run, result)
        except BaseException as error:
            if run.is_stored and self.on_stored_end is not None:
                # End a cancelled run, unless it was stored with all its calls: such a run can be continued
                # later.
                is_cancelled = isinstance(error, asyncio.CancelledError) and not execution.stores_calls
                end = Result(ok=False, error=_reason(error), run_id=run.id) if is_cancelled else None
                if not await self.on_stored_end(run, end) and not run.outcome:
                    reason = ExecutionError(SUSPENDED, "The process stopped; another one continues the run")
                    self.record_unstarted(execution, run, reason)
            if not run.outcome:
                reason = ExecutionError("interrupted", LOST_CLIENT) if run.is_abandoned else _reason(error)
                self.record_unstarted(execution, run, reason)
            raise
        finally:
            del self.active[run.id]
            self._storing.discard(run.id)
            self._pauses.pop(run.id, None)
            if run.charge is not None:
                run.charge.release()
        self._record_end(execution, run, result)
        return result

    async def _suspended(self, execution: Execution, run: RunHandle, result: Result) -> Result:
        """Stores a suspended run. Returns a result with the pending calls."""
        assert self.on_suspend is not None
        assert run.session is not None
        assert run.session.saved is not None
        saving = asyncio.ensure_future(self.on_suspend(execution, run))
        is_abandoned = False
        try:
            await asyncio.shield(saving)
        except asyncio.CancelledError:
            # The caller has disconnected. Wait for the write, which cannot be stopped. The run stays
            # suspended.
            is_abandoned = True
            await asyncio.wait([saving])
        except HutchError:
            pass
        if (error := saving.exception()) is not None:
            if not isinstance(error, HutchError):
                raise error
            message = f"The run could not be suspended: {error}"
            run.session.end_suspended(TIMED_OUT if run.is_cancelled else _internal_error(message))
            assert run.session.result is not None
            result = run.session.result
        else:
            run.session.forget_memory()
            if run.is_followed:
                run.emit(RunSuspended(calls=[call.call_id for call in run.session.saved.pending]))
            result = msgspec.structs.replace(result, pending_calls=run.session.saved.pending)
        if is_abandoned:
            self._record_end(execution, run, result)
            raise asyncio.CancelledError
        return result

    @asynccontextmanager
    async def run_internal(self, execution: Execution) -> AsyncIterator[tuple[Result, Lease]]:
        """Runs an execution for Hutch itself, and holds its runner until the context ends."""
        run = RunHandle()
        async with self.pool.lease(execution.profile, execution.owner) as runner:
            result = await runner.run(run, execution.code, execution.limits)
            self._record_end(execution, run, result)
            yield result, runner

    def owner_of(self, run_id: str | None) -> str:
        """Returns the owner of a run in progress. Returns the run id itself if the run is unknown."""
        active = self.active.get(run_id or "")
        return run_id or "" if active is None else active[0].owner

    @property
    def has_capacity(self) -> bool:
        """True if another process could start and no execution waits for a process."""
        return self.pool.has_capacity

    @property
    def has_waiting_executions(self) -> bool:
        """True if executions wait for a runner."""
        return self.pool.has_waiters

    def prestart(self, profile: Profile, *, only_first: bool = False) -> None:
        """Starts one runner in advance if there is capacity. With `only_first`, does nothing if a runner
        exists or is starting.
        """
        if self.placement is not None:
            return
        stats = self.pool.stats()
        if not only_first or not (stats.processes or stats.starting):
            self.pool.prestart(profile)

    async def _run(self, execution: Execution, run: RunHandle) -> Result:
        if execution.check and self.check_code is not None:
            error = await self.check_code(execution)
            if error is not None:
                return Result(ok=False, error=error, run_id=run.id)
        if self.precompiles and execution.profile.engine_spec.accepts_precompiled:
            prepared = await self.precompiler.prepare(execution.owner, execution.code, run.id)
            if isinstance(prepared, Result):
                run.report_started()
                return prepared
            if prepared is not None:
                execution = msgspec.structs.replace(execution, code="", job=prepared)
        call_hold = None
        if execution.stores_calls and self.on_checkpoint is not None and self._max_saved_bytes(execution):
            run.before_call = call_hold = CallHold(run)
        result = await self._attempt(execution, run)
        if not result.ok:
            result = await self._retry(execution, run, result)
        while (session := run.session) is not None and session.saved is not None:
            load = (
                await self._checkpoint(execution, run, call_hold) if session.tool_calls.is_running else None
            )
            can_continue = await session.wait_for_replies(lambda: run.must_suspend)
            if not can_continue or (run.must_suspend and session.saved is not None):
                await self._reload(session, load)
                assert session.result is not None
                return session.result
            # Other tools have returned since the guest was suspended, so the guest can continue immediately.
            assert session.saved is not None
            if call_hold is not None:
                call_hold.hold()
            try:
                saved = session.saved if load is None else await load(session.saved)
                execution = msgspec.structs.replace(execution, saved=saved, answers={})
                run.open_calls = session.tool_calls
                result = await self._attempt(execution, run)
                if not result.ok:
                    result = await self._retry(execution, run, result)
            except HutchError as error:
                # Do not raise: the run has called tools, so it must not look like a run that never started.
                session.end_suspended(_internal_error(f"The run could not continue: {error}"))
            if run.session is session:
                if session.saved is not None:
                    session.end_suspended(TIMED_OUT)
                assert session.result is not None
                return session.result
        return result

    async def _reload(self, session: Session, load: LoadSaved | None) -> None:
        """Loads the memory of a run that was stored while its tools ran. The run is stored once more, now
        with the results of these tools.
        """
        if load is None or session.saved is None:
            return
        try:
            session.saved = await load(session.saved)
        except HutchError as error:
            session.end_suspended(_internal_error(f"The run could not be suspended: {error}"))

    async def _checkpoint(
        self, execution: Execution, run: RunHandle, call_hold: CallHold | None
    ) -> LoadSaved | None:
        """Stores a run that waits for running tools, if the caller wants that or if calls are held. Held
        calls are released afterwards. Returns a function that loads the state again; None if the state is in
        memory.
        """
        if self.on_checkpoint is None:
            return None
        is_wanted = run.id in self._storing or bool(self._max_wait_seconds(execution))
        self._storing.discard(run.id)
        if call_hold is None and (not is_wanted or run.must_suspend):
            return None
        saving = asyncio.ensure_future(self.on_checkpoint(execution, run))
        try:
            load = await asyncio.shield(saving)
        except asyncio.CancelledError:
            # The write cannot be stopped. Wait for it, so that the stored run can be ended.
            await asyncio.wait([saving])
            raise
        except HutchError as error:
            # The run continues without a checkpoint.
            logger.warning("the run %s could not be stored while it waits: %s", run.id, error)
            if call_hold is not None:
                call_hold.fail(str(error))
            return None
        if call_hold is not None:
            call_hold.release()
            # Most calls end soon, so a small state stays in memory.
            saved = None if run.session is None else run.session.saved
            if saved is None or saved.memory_bytes < MAX_KEPT_BYTES:
                return None
        if run.session is not None and run.session.saved is not None:
            run.session.forget_memory()
            if run.is_followed:
                calls = [*run.session.saved.pending, *run.session.tool_calls.in_flight()]
                run.emit(RunSuspended(calls=[call.call_id for call in calls]))
        return load

    async def _retry(self, execution: Execution, run: RunHandle, result: Result) -> Result:
        """Returns the result of a run whose first attempt failed. Makes further attempts first, as long as a
        retry is safe.
        """
        retries = 0
        while not result.ok and self._may_retry(execution, run):
            if run.session is None or not run.session.was_refused:
                if retries >= MAX_RETRIES:
                    break
                retries += 1
            run.session = run.open_calls = None
            result = await self._attempt(execution, run)
            run.retries = retries
        return result

    def _may_retry(self, execution: Execution, run: RunHandle) -> bool:
        """Returns True if the runner was lost for a reason other than this execution, and the guest has not
        called a tool yet, so that a retry is safe.
        """
        calls_before = 0 if execution.saved is None else execution.saved.call_count
        # If tools were running when the run was suspended, the lost session has cancelled them, so a retry
        # would not get their results.
        has_lost_calls = run.open_calls is not None and not (
            run.session is not None and run.session.can_repeat
        )
        has_called = run.call_count > calls_before or has_lost_calls
        if run.session is None or not run.lost_runner or has_called or self.pool.is_closed:
            return False
        spec = execution.profile.engine_spec
        may_restart = not run.session.started or run.session.may_restart
        return spec.has_neighbours or (spec.own_process and may_restart)

    async def _attempt(self, execution: Execution, run: RunHandle) -> Result:
        if self.placement is None:
            lease = self.pool.lease(execution.profile, execution.owner)
        else:
            lease = self.placement.lease(execution, run.id)
        async with lease as runner:
            if run.clock.leased is None:
                run.clock.leased = run.clock.now()
            if run.is_cancelled:
                return Result(ok=False, error=TIMED_OUT.to_exception(), run_id=run.id)
            self._leases += 1
            try:
                return await runner.run(
                    run,
                    execution.code,
                    execution.limits,
                    execution.providers,
                    execution.job,
                    execution.inputs,
                    files=execution.files,
                    saved=execution.saved,
                    answers=execution.answers,
                    max_saved_bytes=self._max_saved_bytes(execution),
                    turn=execution.turn,
                    max_wait_seconds=self._max_wait_seconds(execution),
                    may_poll=self._may_poll,
                )
            except asyncio.CancelledError:
                if run.is_abandoned:
                    raise
                run.is_cancelled = True
                if run.session is not None and run.session.result is not None:
                    self._record_end(execution, run, run.session.result)
                raise
            finally:
                self._leases -= 1

    def store_waiting_runs(self) -> None:
        """From now on, stores each durable run when it waits, because the process is going to end. Until
        then, the runs still continue in this process.
        """
        self._is_draining = True
        for execution, run in list(self.active.values()):
            if execution.is_durable and run.session is not None and run.session.result is None:
                run.session.suspend()

    def can_store(self, run_id: str) -> bool:
        """Returns True if a run waits for running tools and may be stored meanwhile."""
        execution, run = self.active[run_id]
        session = run.session
        wants = execution.is_durable or execution.is_storable or execution.checkpoint_after_ms > 0
        return wants and session is not None and session.result is None and session.tool_calls.is_running

    def store_waiting_run(self, run_id: str) -> None:
        """Stores a run that waits for running tools, to free its memory. The run continues here."""
        session = self.active[run_id][1].session
        if session is not None:
            self._storing.add(run_id)
            session.suspend()

    def _max_wait_seconds(self, execution: Execution) -> float:
        if self._is_draining and execution.is_durable:
            return DRAINING_WAIT_SECONDS
        return execution.checkpoint_after_ms / 1000

    def _max_saved_bytes(self, execution: Execution) -> int:
        can_suspend = (
            self.on_suspend is not None
            and execution.profile.engine_spec.can_suspend
            and execution.job is None
            and execution.turn is None
            and not execution.is_internal
        )
        return self.settings.max_checkpoint_bytes if can_suspend else 0

    def begin_group(self, execution: Execution, run: RunHandle) -> None:
        """Begins a batch: a run that consists of other runs, which have its id as `parent_run_id`. If runs
        are traced, the batch gets a span, which becomes the parent of the other runs' spans.
        """
        for observe in self.on_begin:
            observe(execution, run)

    def record_group(self, execution: Execution, run: RunHandle, result: Result) -> None:
        """Records a batch that has ended."""
        self._record_end(execution, run, result)

    def record_unstarted(self, execution: Execution, run: RunHandle, error: ExecutionError) -> None:
        """Records a run that ended without a result: it could not be started, or its caller disconnected."""
        run.fail(error.code)
        self._record(execution, run, Result(ok=False, error=error, run_id=run.id))

    def _record_end(self, execution: Execution, run: RunHandle, result: Result) -> None:
        run.end(result)
        self._record(execution, run, result)

    def _may_poll(self) -> bool:
        """Returns True if the host and a runner can poll without taking a core from another execution."""
        return self._leases < self._max_polling

    def pause_timeout(self, run_id: str, tool: str) -> None:
        """Pauses the time limit of a run until `resume_timeout`, because a call of `tool` waits for an
        approval. Does nothing if the run has ended.
        """
        if (session := self._session(run_id)) is not None:
            session.pause_timeout()
            self._pauses.setdefault(run_id, []).append((self.active[run_id][1].clock.now(), tool))

    def resume_timeout(self, run_id: str) -> None:
        if (session := self._session(run_id)) is not None:
            session.resume_timeout()
            run = self.active[run_id][1]
            if starts := self._pauses.get(run_id):
                (started, tool), now = starts.pop(0), run.clock.now()
                start_ms = round((started - (run.clock.started or 0.0)) * 1000, 3)
                wait = Wait("approval", start_ms, round((now - started) * 1000, 3), cut(tool, MAX_TOOL_CHARS))
                run.waits = [*run.waits, wait]

    def _session(self, run_id: str) -> Session | None:
        found = self.active.get(run_id)
        return None if found is None else found[1].session

    def _check(self, execution: Execution) -> None:
        maximum = self.settings.max_code_bytes
        if (
            len(execution.code) * 4 > maximum
            and (size := len(execution.code.encode(errors="surrogatepass"))) > maximum
        ):
            raise InvalidExecution("code", f"has {size} bytes; the limit is {maximum}")
        # With a preload, the inputs are the parameters of a package's tool. These may be as long as a request
        # body.
        setting = "max_body_bytes" if execution.profile.has_preload else "max_result_bytes"
        maximum = getattr(self.settings, setting)
        if execution.inputs is not None and len(execution.inputs) > maximum:
            raise InvalidExecution(
                "inputs",
                f"have {len(execution.inputs)} bytes of JSON; the limit is {maximum} (setting {setting})",
            )
        if execution.check and self.check_code is None:
            raise InvalidExecution("check", "expected Hutch's own sandbox, which has a compiler")
        if len(execution.providers) > 1:
            check_providers(execution.providers)


def _has_promise_text(result: Result) -> bool:
    return result.result_json is not None and b"[object Promise]" in result.result_json


def _explained(execution: Execution, result: Result) -> Result:
    """Adds hints to the error of a result. The session cannot add them, because it lacks the source of
    precompiled code.
    """
    # Import the module only when it is needed, because compiling its patterns takes milliseconds.
    from hutch.kernel.error_hints import with_hint, with_unavailable_servers

    result = with_hint(execution.code, execution.profile.engine, result, execution.providers)
    return with_unavailable_servers(result, execution.unavailable_servers)


def check_limit(name: str, value: Any) -> float:
    """Validates a requested limit. Raises InvalidExecution if it is not a number or too small."""
    minimum = 0 if name.startswith("max_log") else 1
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not minimum <= value < float("inf"):
        shown = f"{value:g}" if isinstance(value, float) else repr(value)
        raise InvalidExecution(name, f"expected a number of at least {minimum}, got {shown}")
    return value


def _internal_error(message: str) -> WireError:
    return WireError(code="internal_error", message=message)


def _reason(error: BaseException) -> ExecutionError:
    if isinstance(error, HutchError):
        return ExecutionError(error.code, str(error))
    if isinstance(error, asyncio.CancelledError):
        return ExecutionError("cancelled", "The caller disconnected before the run started")
    return ExecutionError("internal_error", "The run could not be started; the log of the server says why")
