"""One toolscript in progress, which is stored while it waits for approvals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import ExecutionError, HutchError
from hutch.kernel.durable.calls.call_replay import DIVERGED
from hutch.kernel.durable.resume_errors import cancelled, in_use
from hutch.kernel.durable.suspended_runs import SavedRun
from hutch.protocols.toolscript.durable.asking_replay import AskingReplay, WaitingCall
from hutch.protocols.toolscript.durable.stored_script import Output, StoredScript
from hutch.protocols.toolscript.execute import ScriptResult, ScriptRun
from hutch.protocols.toolscript.gateway.approvals import MAX_PENDING_PER_RUN, CallDenied
from hutch.session.run import SUSPENDED, Result, RunHandle
from hutch.session.suspension import Answer
from hutch.store.tables.durable.checkpoints import NewPendingCall

if TYPE_CHECKING:
    from hutch.kernel.run_preparation import RunPreparation
    from hutch.protocols.toolscript.durable.durable_scripts import DurableScripts

logger = logging.getLogger("hutch.toolscript")

PROTOCOL = "toolscript"
SETTLE_SECONDS = 0.05
"""Time for which further questions are collected before a script is stored with all of them."""


class DurableScript:
    """A script in progress, and its record in the store."""

    def __init__(
        self, all_scripts: DurableScripts, stored: StoredScript, run_id: str, owner: str, *, is_held: bool
    ) -> None:
        self.run_id = run_id
        self.owner = owner
        self.stored = stored
        self.is_held = is_held
        """True if the run is in the store and held by this process."""
        self.is_saved = is_held
        """True if the run is in the store."""
        self.suspended_at: float | None = None
        """Start of the current wait, on the monotonic clock. None while the run is not suspended."""
        self.idle_since: float | None = None
        """Time on the monotonic clock since which the script waits without a decision. A further question
        does not change it, because a script could otherwise stay in memory forever by asking again and again.
        """
        self.stopped_as: str | None = None
        """Set if the script was stopped in this process without an end of its run."""
        self.suspended = asyncio.Event()
        self.output = Output()
        self.handle: ScriptRun | None = None
        self.preparation: RunPreparation | None = None
        """Prepares the run as its caller wants."""
        self.task: asyncio.Task[ScriptResult] | None = None
        self.waiting: dict[str, WaitingCall] = {}
        self._all = all_scripts
        self._changing = asyncio.Lock()
        self._saving: asyncio.Task[None] | None = None
        self._has_changed = False
        self._is_over = False
        self._problem: str | None = None
        """Reason why the script cannot be stored. Then no further call waits: its time limit is paused during
        a wait, so that a script could run forever by asking repeatedly.
        """
        self.replay: AskingReplay

    # --- run preparation ---

    def adopt(self, run: RunHandle) -> None:
        run.started_at = self.stored.created_at

    async def begin(self, run: RunHandle) -> None:
        self.adopt(run)
        assert isinstance(run, ScriptRun)
        self.handle = run
        if self.preparation is not None:
            await self.preparation.begin(run)

    # --- waiting ---

    def begin_wait(self, waiting: WaitingCall) -> None:
        call, problem = waiting.call, self._problem
        if len(self.waiting) >= MAX_PENDING_PER_RUN:
            problem = f"{MAX_PENDING_PER_RUN} calls of this script are waiting for approval already"
        if problem is not None:
            raise CallDenied(call.server, call.tool, problem)
        self.waiting[waiting.call.call_id] = waiting
        self._save_soon()

    def end_wait(self, waiting: WaitingCall) -> None:
        del self.waiting[waiting.call.call_id]
        if self.stopped_as is not None:
            return
        if not waiting.answer.done():
            # The script has given up the call, so it must not be made any more.
            self._all.approvals.withdraw_questions(self.run_id, {waiting.call.call_id})
        if self.is_saved:
            self._save_soon()

    async def hold(self) -> None:
        async with self._changing:
            await self._hold()
        self.idle_since = None

    async def _hold(self) -> None:
        if self.is_held or not self.is_saved:
            return
        if await self._all.replayed.take(self.run_id, self.owner, is_live=True) is None:
            self.stop(SUSPENDED)
            raise in_use(self.run_id)
        self.is_held = True
        self.suspended_at = None
        self.suspended.clear()

    def _save_soon(self) -> None:
        self._has_changed = True
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def _save(self) -> None:
        while self._has_changed:
            await asyncio.sleep(SETTLE_SECONDS)
            async with self._changing:
                self._has_changed = False
                await self._save_now()

    async def _save_now(self) -> None:
        waiting = [*self.waiting.values()]
        if self._is_over or not (waiting or self.is_saved):
            return
        try:
            await self._store(waiting)
        except HutchError as error:
            logger.warning("the script of run %s could not be stored: %s", self.run_id, error)
            self._problem = f"The call needs an approval, and the script cannot be stored meanwhile: {error}"
            for each in waiting:
                if each.question is not None and not each.answer.done():
                    each.answer.set_result(Answer(code="denied", message=self._problem))

    async def _store(self, waiting: list[WaitingCall]) -> None:
        # The recorded calls must not expire before the run, whose time starts again here.
        await self.replay.keep_until(self._all.calls_expire_at())
        await self.replay.store_calls()
        await self._hold()
        # A script that runs again may not have come to all of its questions yet. Their decisions and results
        # must stay in the store until it asks them again.
        expected = self.replay.expected_calls()
        self.stored = msgspec.structs.replace(
            self.stored,
            generation=self.stored.generation + 1,
            asked=[*(each.call for each in waiting), *expected],
        )
        calls = [
            NewPendingCall(
                call_id=call.call_id,
                provider=call.server,
                tool=call.tool,
                question=question,
            )
            for call, question in (
                *((each.call, each.question) for each in waiting),
                *((call, None) for call in expected),
            )
        ]
        is_saved = await self._all.replayed.save(
            self.run_id,
            self.owner,
            PROTOCOL,
            self.stored.generation,
            self.stored.encode(),
            calls,
            is_held=self.is_held,
            is_waiting=bool(waiting),
        )
        if not is_saved:
            self.stop(SUSPENDED)
            raise in_use(self.run_id)
        self.is_saved = True
        if not waiting:
            return
        self.is_held = False
        self.suspended_at = time.monotonic()
        self.idle_since = self.idle_since or self.suspended_at
        await self._all.record_suspended(self.run_id)
        questions = {each.call.call_id: each.question for each in waiting if each.question is not None}
        for each in waiting:
            each.question = None
        self._all.runs.report_saved(SavedRun(self.run_id, self.owner, questions))
        self.suspended.set()
        # A result may have arrived while the script was being stored. If it cannot be read now, it is found
        # later.
        with contextlib.suppress(HutchError):
            await self.deliver()

    async def deliver(self) -> bool:
        """Gives results in the store to the calls that wait for them. Returns False if no call has got a
        result. Raises HutchError.
        """
        answers = await self._all.replayed.answers(self.run_id)
        has_delivered = False
        for call_id, waiting in self.waiting.items():
            answer = answers.get(call_id)
            if answer is not None and not waiting.answer.done():
                waiting.answer.set_result(answer)
                has_delivered = True
        return has_delivered

    # --- end ---

    def leave_memory(self) -> None:
        """Ends the process of a script that has waited for long. The script fails if it runs again and has
        not come to all of its recorded calls: otherwise a result for one of these calls would let it run
        again and again.
        """
        message = self.replay.end_replay()
        if message is None:
            self.stop(SUSPENDED)
            return
        for waiting in self.waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_result(Answer(code=DIVERGED, message=message))

    def stop(self, outcome: str | None = None) -> None:
        """Ends the process of the script. With `outcome`, the run has not ended: it is recorded like this,
        and a process continues it.
        """
        self.stopped_as = outcome
        self.replay.close()
        if self.handle is not None:
            self.handle.stopped_as = outcome
        if self.task is not None:
            self.task.cancel()

    async def end(self, result: Result) -> None:
        """Stores the result of the run, if the run is in the store. Raises HutchError."""
        await self._stop_saving()
        async with self._changing:
            if self.is_saved:
                await self._hold()
                await self._all.runs.ends.end_held(self.run_id, result)
                # Withdraw the questions again: a request may have loaded them from the store meanwhile.
                self._all.approvals.withdraw_questions(self.run_id)
                self.is_held = self.is_saved = False
            elif self.replay.is_stored:
                await self._all.forget_calls(self.run_id, self.owner)

    async def close(self) -> None:
        """Lets another process continue a run that was stopped, and ends one that was cancelled."""
        await self._stop_saving()
        if self.is_saved and self.stopped_as is None:
            error = cancelled()
            await self.end(Result(ok=False, error=ExecutionError(error.code, str(error)), run_id=self.run_id))
        elif self.is_held:
            await self._all.replayed.release(self.run_id)
        elif not self.is_saved and self.replay.is_stored:
            await self._all.forget_calls(self.run_id, self.owner)

    async def _stop_saving(self) -> None:
        self._is_over = True
        if self._saving is not None:
            if not self._changing.locked():
                self._saving.cancel()
            # A write that has begun cannot be stopped.
            await asyncio.gather(self._saving, return_exceptions=True)
