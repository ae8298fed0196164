"""Stores suspended runs, collects the results of their pending calls, and continues them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hutch.errors import (
    ExecutionError,
    HutchError,
    ResumeError,
)
from hutch.kernel.durable import checkpoint as checkpoints
from hutch.kernel.durable.background_runs import BackgroundRuns
from hutch.kernel.durable.calls.pending_calls import PendingCalls
from hutch.kernel.durable.checkpoint import Checkpoint
from hutch.kernel.durable.checkpoint_storage import CheckpointStorage
from hutch.kernel.durable.earlier_record import approval_waits, recorded_part
from hutch.kernel.durable.holds import HOLD_SECONDS, Holds
from hutch.kernel.durable.replayed_runs import ReplayedRuns
from hutch.kernel.durable.resume_errors import LOST_CLIENT, cancelled, in_use, not_found
from hutch.kernel.durable.run_ends import RunEnds
from hutch.kernel.durable.sealed_run import SealedRuns
from hutch.kernel.execution import Execution
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.sandbox.runner.profile import profile_for
from hutch.session.run import SUSPENDED, PendingCall, Result, RunHandle
from hutch.session.suspension import Answer, SavedSession, decode_answer
from hutch.session.tools.provider import Provider
from hutch.store.models import now
from hutch.tasks import TimeSlices

if TYPE_CHECKING:
    from hutch.kernel.kernel import Kernel, LoadSaved
    from hutch.kernel.state_memory import StateCharge
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")


class SavedRun(NamedTuple):
    """A run that was just stored, with the questions about its calls, by call id."""

    run_id: str
    owner: str
    questions: Mapping[str, str]


class SuspendedRuns:
    """Suspended runs of one store."""

    def __init__(
        self, settings: Settings, kernel: Kernel, open_store: Callable[[], Awaitable[Store]]
    ) -> None:
        self._settings = settings
        self._kernel = kernel
        self._open_store = open_store
        self._holds = Holds(kernel, open_store)
        self._checkpoints = CheckpointStorage(settings)
        self.calls = PendingCalls(self._holds, open_store, settings)
        self.ends = RunEnds(settings, self._holds, open_store)
        self.replayed = ReplayedRuns(settings, self._holds, self._checkpoints, open_store)
        self.sealed = SealedRuns(settings, self._checkpoints, self.ends, self.calls, self.reserve, open_store)
        self.background = BackgroundRuns(self.calls, self.ends, self._continue, open_store)
        self._returns: set[asyncio.Task[None]] = set()
        """Tasks that make runs suspended again whose callers are gone."""
        self.on_saved: list[Callable[[SavedRun], None]] = []
        """Called with each run that was stored."""

    # --- suspending ---

    async def save(self, execution: Execution, run: RunHandle) -> Checkpoint:
        """Stores a run that was just suspended. Raises HutchError."""
        checkpoint = self._checkpoint(execution, run)
        store = await self._open_store()
        data = await self._checkpoints.encode(checkpoint)
        _check_not_cancelled(run)
        if not await self._checkpoints.insert(store, checkpoint, data, self._holds.holder):
            raise in_use(run.id)
        if run.is_stored and await store.checkpoints.cancelled([run.id]):
            run.is_cancelled = True
        try:
            _check_not_cancelled(run)
        except ResumeError:
            await store.checkpoints.delete_suspended(run.id)
            raise
        self._holds.runs.discard(run.id)
        calls = [call for call in checkpoint.session.pending if call.question is not None]
        self.report_saved(
            SavedRun(run.id, execution.owner, {call.call_id: call.question or "" for call in calls})
        )
        return checkpoint

    def report_saved(self, saved: SavedRun) -> None:
        for listener in self.on_saved:
            listener(saved)

    async def save_waiting(self, execution: Execution, run: RunHandle) -> LoadSaved:
        """Stores a run that waits for running tools. This process continues to hold it. The results of the
        tools are stored before the guest gets them. Returns a function that loads the state. Raises
        HutchError.
        """
        session = run.session
        assert session is not None
        calls, store = session.tool_calls, await self._open_store()
        checkpoint = self._checkpoint(execution, run)
        in_flight = calls.in_flight()
        checkpoint = msgspec.structs.replace(
            checkpoint,
            session=msgspec.structs.replace(checkpoint.session, in_flight=in_flight, held_lines=[]),
        )
        data = await self._checkpoints.encode(checkpoint)
        _check_not_cancelled(run)
        if not await self._checkpoints.insert(store, checkpoint, data, self._holds.holder, keeps_hold=True):
            raise in_use(run.id)
        run.generation += 1
        run.is_stored = True
        if not execution.stores_calls:
            run.before_call = self._holds.before_first_call(store, run.id)
        self._holds.add_run(run.id)
        for call_id, answer in calls.begin_journal(partial(self.calls.journal, run.id)).items():
            await self.calls.journal(run.id, call_id, answer)

        async def load(saved: SavedSession) -> SavedSession:
            row = await store.checkpoints.get(run.id)
            if row is None or row.holder != self._holds.holder:
                raise in_use(run.id)
            run.charge = await self._kernel.states.reserve(execution.owner, self._checkpoints.max_bytes)
            stored = (await self._checkpoints.decode(await store.checkpoints.state(row))).session
            run.charge.set(stored.memory_bytes)
            return msgspec.structs.replace(
                saved, memory=stored.memory, manifests=stored.manifests, files=stored.files
            )

        return load

    async def end_stored(self, run: RunHandle, result: Result | None) -> bool:
        """Stores the result of a run that this process holds.

        If `result` is None, or if the process shuts down or the run's client is lost before the run has
        ended, the run becomes suspended again, so that it can be continued, and this method returns False.
        If the run has called a tool since it was stored, the run counts as interrupted.
        """
        if result is not None and result.error is not None and result.error.code == SUSPENDED:
            return False
        store = await self._open_store()
        is_aborted = result is not None and result.error is not None and result.error.code == "cancelled"
        is_closing = (
            run.is_abandoned
            or (run.lost_runner and self._kernel.pool.is_closed)
            or (is_aborted and self.background.is_draining)
        )
        if result is None or is_closing:
            self._holds.runs.discard(run.id)
            await store.checkpoints.release(run.id, self._holds.holder)
            row = await store.checkpoints.get(run.id) if run.is_abandoned else None
            if row is None or row.state != "called" or row.holder != self._holds.holder:
                return False
            result = Result(ok=False, error=ExecutionError("interrupted", LOST_CLIENT), run_id=run.id)
        await self.ends.end_held(run.id, result)
        return True

    def _checkpoint(self, execution: Execution, run: RunHandle) -> Checkpoint:
        assert run.session is not None
        assert run.session.saved is not None
        return Checkpoint(
            run_id=run.id,
            owner=execution.owner,
            bundle=checkpoints.bundle_digest(),
            generation=run.generation + 1,
            protocol=execution.protocol,
            label=execution.label,
            parent_run_id=execution.parent_run_id,
            code=execution.code,
            limits=execution.limits,
            created_at=run.started_at,
            expires_at=time.time() + self._settings.checkpoint_days * DAY_SECONDS,
            session=run.session.saved,
            record_level=run.record_level,
            stores_calls=execution.stores_calls,
            has_client_tools=execution.has_client_tools,
        )

    # --- continuing ---

    async def resume(
        self, run_id: str, owner: str, providers: Sequence[Provider], *, is_holder_dead: bool = False
    ) -> tuple[Execution, RunHandle]:
        """Takes a suspended run out of the store. The caller continues the run with the method `run`. With
        `is_holder_dead`, the caller knows that no other process continues the run. Raises ResumeError and
        VaultError.
        """
        store = await self._open_store()
        await self.ends.check_owner(run_id, owner)
        charge = await self.reserve(owner)
        taking = asyncio.ensure_future(
            self._resume(store, run_id, owner, providers, charge, is_holder_dead=is_holder_dead)
        )
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The write cannot be stopped. Make the run suspended again, so that it can be continued at once
            # and not only when the hold ends.
            task = asyncio.get_running_loop().create_task(self._return_to_store(taking, charge))
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)
            raise
        except BaseException:
            charge.release()
            raise
        finally:
            # Break the cycle of an exception, its traceback and the task, which would keep the caller's data
            # until the next garbage collection.
            del taking

    async def reserve(self, owner: str) -> StateCharge:
        """Waits until there is memory for a suspended run. Raises Busy."""
        return await self._kernel.states.reserve(owner, self._checkpoints.max_bytes)

    async def _return_to_store(
        self, taking: asyncio.Future[tuple[Execution, RunHandle]], charge: StateCharge
    ) -> None:
        """Makes a run suspended again after it was taken for a caller that is gone."""
        try:
            _, run = await taking
            await self.end_stored(run, None)
        except HutchError as error:
            logger.info("a run whose caller is gone was not continued: %s", error)
        finally:
            charge.release()

    async def _resume(
        self,
        store: Store,
        run_id: str,
        owner: str,
        providers: Sequence[Provider],
        charge: StateCharge,
        *,
        is_holder_dead: bool,
    ) -> tuple[Execution, RunHandle]:
        until = now(plus_seconds=HOLD_SECONDS)
        row = await store.checkpoints.take(
            run_id, owner, self._holds.holder, until, is_holder_dead=is_holder_dead
        )
        if row is None:
            raise await self.ends.refusal(store, run_id, owner)
        self._holds.add_run(run_id)
        try:
            data = await store.checkpoints.state(row)
            checkpoints.check_bundle(row.bundle)
            checkpoint = await self._checkpoints.decode(data)
            answers: dict[str, Answer] = {}
            slices = TimeSlices()
            for call_id, answer in (await store.checkpoints.answers(run_id)).items():
                if answer is not None:
                    answers[call_id] = decode_answer(answer)
                    await slices.pause()
            for call in checkpoint.session.in_flight:
                if call.in_flight == "once" and call.call_id not in answers:
                    answers[call.call_id] = Answer(code="tool_error", message=_interrupted_call(call))
        except BaseException:
            self._holds.runs.discard(run_id)
            await store.checkpoints.release(run_id, self._holds.holder)
            raise
        files = checkpoint.session.files
        results = sum(len(answer.result_json or b"") for answer in answers.values())
        charge.set(checkpoint.session.memory_bytes + results + (0 if files is None else files.size))
        execution = Execution(
            code=checkpoint.code,
            profile=profile_for("quickjs"),
            limits=checkpoint.limits,
            providers=providers,
            owner=owner,
            protocol=checkpoint.protocol,
            label=checkpoint.label,
            parent_run_id=checkpoint.parent_run_id,
            saved=checkpoint.session,
            answers=answers,
            checkpoint_after_ms=self._settings.checkpoint_after_ms,
            stores_calls=checkpoint.stores_calls,
            is_durable=checkpoint.stored_protocol in self.background.continued_protocols,
            has_client_tools=checkpoint.has_client_tools,
        )
        run = RunHandle(
            id=run_id,
            started_at=checkpoint.created_at,
            generation=checkpoint.generation,
            record_level=checkpoint.record_level,
            listeners=self.ends.listeners_of(run_id),
            is_stored=True,
            charge=charge,
            waits=approval_waits(checkpoint.session, answers),
            recorded_before=await recorded_part(store, run_id),
        )
        if not checkpoint.stores_calls:
            run.before_call = self._holds.before_first_call(store, run_id)
        return execution, run

    async def run(self, execution: Execution, run: RunHandle) -> Result:
        """Continues a run until it ends or is suspended again. Raises HutchError."""
        try:
            return await self._kernel.run(execution, run)
        except BaseException:
            # If the kernel refused the run, for example because of a quota, this process still holds it. So
            # make the run suspended again.
            if run.id in self._holds.runs:
                await self.end_stored(run, None)
            raise

    async def _continue(self, run_id: str, owner: str, providers: Sequence[Provider]) -> Result:
        execution, run = await self.resume(run_id, owner, providers)
        return await self.run(execution, run)

    async def state(self, run_id: str) -> str | None:
        """Returns the state of a stored run; None if there is no such run."""
        row = await (await self._open_store()).checkpoints.get(run_id)
        return None if row is None else row.state

    async def check_has_client_tools(self, run_id: str, owner: str) -> None:
        """Raises ResumeError unless the run belongs to this owner, and was started by a client with its own
        tools.
        """
        row = await (await self._open_store()).checkpoints.get(run_id)
        if row is None or row.owner != owner:
            raise not_found(run_id)
        checkpoints.check_client_tools(row)

    async def close(self) -> None:
        await self.background.close()
        await asyncio.gather(*self._returns, return_exceptions=True)
        await self._holds.close()


def _check_not_cancelled(run: RunHandle) -> None:
    if run.is_cancelled:
        raise cancelled()


def _interrupted_call(call: PendingCall) -> str:
    return (
        f"The process died while it called {call.provider}.{call.tool}: the call may have had an effect."
        " It was not made again, because the tool is not marked as idempotent"
    )
