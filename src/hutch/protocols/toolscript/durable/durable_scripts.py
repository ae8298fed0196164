"""Runs toolscripts that are stored while they wait for approvals. Meanwhile a script stays in memory for a
while. If its process is not in memory any more, the script runs again with the recorded results of its calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import ExecutionError, HutchError, InvalidExecution, ResumeError
from hutch.kernel.durable.holds import POLL_SECONDS
from hutch.kernel.durable.replayed_runs import ReplayedRuns
from hutch.kernel.durable.resume_errors import cancelled
from hutch.kernel.durable.running_runs import unfinished_record
from hutch.kernel.durable.suspended_runs import SUSPENDED, SavedRun, SuspendedRuns
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.durable.asking_replay import AskingReplay, WaitingCall
from hutch.protocols.toolscript.durable.stored_script import Output, StoredScript, stored_result
from hutch.protocols.toolscript.execute import (
    FAILURE_EXIT_CODE,
    ScriptGateway,
    ScriptRequest,
    ScriptResult,
    ScriptRun,
)
from hutch.protocols.toolscript.gateway.approvals import ASK_SECONDS, MAX_PENDING_PER_RUN, CallDenied
from hutch.session.run import Result, RunHandle, new_run_id
from hutch.session.suspension import Answer
from hutch.store.models import now
from hutch.store.tables.durable.checkpoints import CheckpointRow, NewPendingCall

if TYPE_CHECKING:
    from typing import Protocol

    from hutch.kernel.kernel import Kernel
    from hutch.kernel.run_preparation import RunPreparation
    from hutch.protocols.toolscript.gateway.gateway import Gateway
    from hutch.protocols.toolscript.gateway.stored_approvals import StoredApprovals
    from hutch.store.store import Store

    class RunsScripts(Protocol):
        async def run(self, request: ScriptRequest, gateway: ScriptGateway) -> ScriptResult: ...


logger = logging.getLogger("hutch.toolscript")

PROTOCOL = "toolscript"
SETTLE_SECONDS = 0.05
"""Time for which further questions are collected before a script is stored with all of them."""
KEEP_SECONDS = ASK_SECONDS
"""Time for which a script that waits stays in memory."""


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

    async def _hold(self) -> None:
        if self.is_held or not self.is_saved:
            return
        if await self._all.replayed.take(self.run_id, self.owner) is None:
            self.stop(SUSPENDED)
            raise ResumeError("checkpoint_in_use", f"Another process continues the run {self.run_id}.")
        self.is_held = True
        self.suspended_at = None
        self.suspended.clear()

    def _save_soon(self) -> None:
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def _save(self) -> None:
        await asyncio.sleep(SETTLE_SECONDS)
        async with self._changing:
            waiting = [*self.waiting.values()]
            if self._is_over or not (waiting or self.is_saved):
                return
            try:
                await self._store(waiting)
            except HutchError as error:
                logger.warning("the script of run %s could not be stored: %s", self.run_id, error)
                self._problem = (
                    f"The call needs an approval, and the script cannot be stored meanwhile: {error}"
                )
                for each in waiting:
                    if each.question is not None and not each.answer.done():
                        each.answer.set_result(Answer(code="denied", message=self._problem))

    async def _store(self, waiting: list[WaitingCall]) -> None:
        # The recorded calls must not expire before the run, whose time starts again here.
        await self.replay.keep_until(self._all.calls_expire_at())
        await self.replay.store_calls()
        await self._hold()
        self.stored = msgspec.structs.replace(
            self.stored,
            generation=self.stored.generation + 1,
            asked=[each.call for each in waiting],
        )
        calls = [
            NewPendingCall(
                call_id=each.call.call_id,
                provider=each.call.server,
                tool=each.call.tool,
                question=each.question,
            )
            for each in waiting
        ]
        is_saved = await self._all.replayed.save(
            self.run_id,
            self.owner,
            PROTOCOL,
            self.stored.generation,
            self.stored.encode(),
            calls,
            is_held=self.is_held,
        )
        if not is_saved:
            self.stop(SUSPENDED)
            raise ResumeError("checkpoint_in_use", f"Another process continues the run {self.run_id}.")
        self.is_saved = True
        if not calls:
            return
        self.is_held = False
        self.suspended_at = time.monotonic()
        await self._all.record_suspended(self.run_id)
        questions = {each.call.call_id: each.question for each in waiting if each.question is not None}
        for each in waiting:
            each.question = None
        self._all.runs.report_saved(SavedRun(self.run_id, self.owner, questions))
        self.suspended.set()
        # A result may have arrived while the script was being stored.
        await self.deliver()

    async def deliver(self) -> None:
        """Gives results in the store to the calls that wait for them. Raises HutchError."""
        answers = await self._all.replayed.answers(self.run_id)
        for call_id, waiting in self.waiting.items():
            answer = answers.get(call_id)
            if answer is not None and not waiting.answer.done():
                waiting.answer.set_result(answer)

    # --- end ---

    def stop(self, outcome: str | None = None) -> None:
        """Ends the process of the script. With `outcome`, the run has not ended: it is recorded like this,
        and a process continues it.
        """
        self.stopped_as = outcome
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
                await self._all.runs.end_held(self.run_id, result)
                # Somebody may have looked at the questions since they were withdrawn.
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


class DurableScripts:
    """All toolscripts of a server that are stored while they wait for approvals."""

    def __init__(
        self,
        kernel: Kernel,
        runs: SuspendedRuns,
        gateway: Gateway,
        approvals: StoredApprovals,
        scripts: Callable[[], RunsScripts],
        script_gateway: Callable[[], ScriptGateway],
        open_store: Callable[[], Awaitable[Store]],
    ) -> None:
        self.runs = runs
        self.replayed: ReplayedRuns = runs.replayed
        self.approvals = approvals
        self._kernel = kernel
        self._gateway = gateway
        self._scripts = scripts
        self._script_gateway = script_gateway
        self._open_store = open_store
        self._live: dict[str, DurableScript] = {}
        self._watching: asyncio.Task[None] | None = None
        runs.on_cancelled.append(self._cancel)

    @property
    def is_needed(self) -> bool:
        """True if a script may have to wait for an approval."""
        return "ask" in self._gateway.approvals.policy.rules.values()

    async def run(self, request: ScriptRequest) -> ScriptResult | None:
        """Runs a script until it has ended. Returns None if it is suspended; it continues without the caller.
        If the caller is cancelled before that, so is the script. Raises InvalidScript and HutchError.
        """
        script = request.script
        stored = StoredScript(
            text=script.text,
            name=script.name,
            files=script.files,
            args=request.args,
            timeout_ms=request.timeout_ms,
            memory_bytes=request.memory_bytes,
            strict=request.strict,
            created_at=time.time(),
        )
        run_id = request.run_id or new_run_id()
        durable = DurableScript(self, stored, run_id, request.owner, is_held=False)
        durable.replay = AskingReplay(
            self._open_store,
            run_id,
            request.owner,
            self.calls_expire_at(),
            durable,
            self._gateway.approvals,
            max_owner_bytes=self._kernel.settings.max_suspended_bytes_per_owner,
        )
        durable.preparation = request.preparation
        task = self._begin(durable, msgspec.structs.replace(request, run_id=run_id))
        try:
            await self._wait(durable)
        except asyncio.CancelledError:
            if not durable.is_saved:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            raise
        if task.done():
            return await task
        task.add_done_callback(_retrieve)
        return None

    async def deliver(self, run_id: str) -> bool:
        script = self._live.get(run_id)
        if script is not None:
            await script.deliver()
        return script is not None or await self.replayed.is_elsewhere(run_id)

    async def run_again(self, row: CheckpointRow) -> None:
        """Runs a stored script again, until it has ended or is suspended. Raises HutchError."""
        run_id, owner = row.run_id, row.owner
        if run_id in self._live or (taken := await self.replayed.take(run_id, owner)) is None:
            return
        try:
            state = await self.replayed.state(taken)
            stored = StoredScript.decode(state.data)
            recorded = await (await self._open_store()).recorded_calls.of_run(run_id, owner)
        except BaseException:
            await self.replayed.release(run_id)
            raise
        durable = DurableScript(self, stored, run_id, owner, is_held=True)
        durable.replay = AskingReplay(
            self._open_store,
            run_id,
            owner,
            self.calls_expire_at(),
            durable,
            self._gateway.approvals,
            recorded=recorded,
            asked=stored.asked,
            answers=state.answers,
        )
        request = ScriptRequest(
            script=Script(stored.text, stored.name, stored.files),
            args=stored.args,
            timeout_ms=stored.timeout_ms,
            memory_bytes=stored.memory_bytes,
            # The types were checked before. The tools may have changed since.
            check=False,
            strict=stored.strict,
            owner=owner,
            run_id=run_id,
        )
        logger.info("the script of run %s runs again with its recorded calls", run_id)
        task = self._begin(durable, request)
        task.add_done_callback(_retrieve)
        await self._wait(durable)

    def calls_expire_at(self) -> str:
        return now(plus_seconds=(self._kernel.settings.checkpoint_days + 1) * DAY_SECONDS)

    # --- running ---

    def _begin(self, script: DurableScript, request: ScriptRequest) -> asyncio.Task[ScriptResult]:
        self._live[script.run_id] = script
        self._gateway.replays[script.run_id] = script.replay
        task = script.task = asyncio.get_running_loop().create_task(self._execute(script, request))
        if self._watching is None or self._watching.done():
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        return task

    async def _execute(self, script: DurableScript, request: ScriptRequest) -> ScriptResult:
        on_output = request.on_output

        def capture(stream: str, data: bytes) -> None:
            script.output.add(stream, data)
            if on_output is not None:
                on_output(stream, data)  # type: ignore[arg-type]

        request = msgspec.structs.replace(request, on_output=capture, preparation=script)
        try:
            try:
                result = await self._scripts().run(request, self._script_gateway())
            finally:
                del self._gateway.replays[script.run_id]
                if script.stopped_as is None:
                    self.approvals.withdraw_questions(script.run_id)
            message = script.replay.missing_call()
            if message is not None:
                result = msgspec.structs.replace(
                    result, exit_code=FAILURE_EXIT_CODE, value_json=None, message=message
                )
            handle = script.handle
            calls = [] if handle is None else handle.calls
            is_cancelled = handle is not None and handle.is_cancelled
            await script.end(await stored_result(result, script.output, calls, is_cancelled=is_cancelled))
            return result
        except (InvalidExecution, InvalidScript) as error:
            await script.end(
                Result(ok=False, error=ExecutionError(error.code, str(error)), run_id=script.run_id)
            )
            raise
        except HutchError as error:
            if script.is_saved:
                # Try again later: this server is busy, or the store cannot be reached.
                script.stopped_as = SUSPENDED
                logger.warning("the script of run %s could not be continued: %s", script.run_id, error)
            raise
        finally:
            del self._live[script.run_id]
            await _shielded(script.close())

    async def _wait(self, script: DurableScript) -> None:
        """Waits until a script has ended or is suspended."""
        assert script.task is not None
        suspended = asyncio.ensure_future(script.suspended.wait())
        try:
            await asyncio.wait((script.task, suspended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            suspended.cancel()

    async def record_suspended(self, run_id: str) -> None:
        """Records a run as suspended, so that it is found after a restart. Its end replaces the record."""
        active = self._kernel.active.get(run_id)
        if active is not None:
            store = await self._open_store()
            reason = ExecutionError(SUSPENDED, "The script waits for an approval")
            try:
                await store.runs.add_new([unfinished_record(*active, reason)])
            except HutchError as error:
                logger.warning("the suspended run %s could not be recorded: %s", run_id, error)

    async def forget_calls(self, run_id: str, owner: str) -> None:
        store = await self._open_store()
        try:
            await store.recorded_calls.delete([run_id], owner)
        except HutchError as error:
            logger.warning("the recorded calls of run %s cannot be deleted: %s", run_id, error)

    # --- watching ---

    async def _watch(self) -> None:
        """Looks for results and ends of suspended scripts that other processes have stored, and ends the
        processes of scripts that have waited for long.
        """
        while self._live:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self._look()
            except HutchError as error:
                logger.warning("the suspended scripts cannot be looked up: %s", error)

    async def _look(self) -> None:
        scripts = {id: script for id, script in self._live.items() if script.suspended_at is not None}
        if not scripts:
            return
        store = await self._open_store()
        suspended = await store.checkpoints.suspended([*scripts])
        answered = await store.checkpoints.answered([*scripts])
        longest = None
        for run_id, script in scripts.items():
            if script.suspended_at is None:
                continue
            if run_id not in suspended:
                # Another process has cancelled or continued the run, or it has expired.
                script.stop(SUSPENDED)
            elif run_id in answered:
                await script.deliver()
            elif time.monotonic() - script.suspended_at > KEEP_SECONDS:
                script.stop(SUSPENDED)
            elif longest is None or script.suspended_at < (longest.suspended_at or 0.0):
                longest = script
        if longest is not None and self._kernel.pool.stats().waiting:
            # Other executions wait for a process.
            longest.stop(SUSPENDED)

    def _cancel(self, run_id: str) -> None:
        script = self._live.get(run_id)
        if script is not None:
            script.is_saved = script.is_held = False
            script.stop()

    async def drain(self, seconds: float) -> None:
        """Waits for the scripts that do not wait for approvals."""
        tasks = [
            script.task
            for script in self._live.values()
            if script.suspended_at is None and script.task is not None
        ]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        """Stops all scripts. Other processes can continue those that are stored."""
        tasks = [script.task for script in self._live.values() if script.task is not None]
        for script in [*self._live.values()]:
            script.stop(SUSPENDED if script.is_saved else None)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)


def _retrieve(task: asyncio.Task[ScriptResult]) -> None:
    """Retrieves the exception of a script without a caller, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


async def _shielded(work: Coroutine[Any, Any, None]) -> None:
    """Finishes work although the current task was cancelled."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
    except HutchError as error:
        logger.warning("a script could not be released: %s", error)
