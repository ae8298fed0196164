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

from hutch.errors import ExecutionError, HutchError, InvalidExecution
from hutch.kernel.durable.calls.call_replay import MAX_RECORDED_BYTES
from hutch.kernel.durable.holds import POLL_SECONDS
from hutch.kernel.durable.replayed_runs import ReplayedRuns
from hutch.kernel.durable.running_runs import unfinished_record
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.protocols.toolscript.checker.checker import Script
from hutch.protocols.toolscript.checker.diagnostics import InvalidScript
from hutch.protocols.toolscript.durable.asking_replay import AskingReplay
from hutch.protocols.toolscript.durable.durable_script import DurableScript
from hutch.protocols.toolscript.durable.stored_script import StoredScript, stored_result
from hutch.protocols.toolscript.execute import (
    FAILURE_EXIT_CODE,
    ScriptGateway,
    ScriptRequest,
    ScriptResult,
)
from hutch.protocols.toolscript.gateway.approvals import ASK_SECONDS
from hutch.session.run import SUSPENDED, Result, new_run_id
from hutch.store.models import now
from hutch.store.tables.durable.checkpoints import CheckpointRow

if TYPE_CHECKING:
    from typing import Protocol

    from hutch.kernel.kernel import Kernel
    from hutch.kernel.state_memory import StateCharge
    from hutch.protocols.toolscript.gateway.gateway import Gateway
    from hutch.protocols.toolscript.gateway.stored_approvals import StoredApprovals
    from hutch.store.store import Store

    class ScriptStarter(Protocol):
        async def run(self, request: ScriptRequest, gateway: ScriptGateway) -> ScriptResult: ...


logger = logging.getLogger("hutch.toolscript")

MAX_BYTES_IN_MEMORY = 2 * MAX_RECORDED_BYTES
"""Memory that a script may need until it has made its recorded calls again: its results and its source."""
CLOSED_SECONDS = 60.0
"""Time for which calls of a script that has ended are refused."""
KEEP_SECONDS = ASK_SECONDS
"""Time for which a script that waits stays in memory."""


class DurableScripts:
    """All toolscripts of a server that are stored while they wait for approvals."""

    def __init__(
        self,
        kernel: Kernel,
        runs: SuspendedRuns,
        gateway: Gateway,
        approvals: StoredApprovals,
        scripts: Callable[[], ScriptStarter],
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
        runs.ends.on_cancelled.append(self._cancel)

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
            self.replayed.holder,
            max_owner_bytes=self._kernel.settings.max_suspended_bytes_per_owner,
            is_stored=False,
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
        if run_id in self._live:
            return
        # The recorded results are in memory until the script has made its calls again.
        charge = await self._kernel.states.reserve(owner, MAX_BYTES_IN_MEMORY)
        try:
            await self._run_again(run_id, owner, charge)
        finally:
            charge.release()

    async def _run_again(self, run_id: str, owner: str, charge: StateCharge) -> None:
        taken = await self.replayed.take(run_id, owner, is_live=False)
        if taken is None:
            return
        try:
            state = await self.replayed.state(taken)
            stored = StoredScript.decode(state.data)
            recorded = await (await self._open_store()).recorded_calls.of_run(run_id, owner)
        except BaseException:
            await self.replayed.release(run_id)
            raise
        charge.set(sum(len(call.answer or b"") for call in recorded) + len(state.data))
        durable = DurableScript(self, stored, run_id, owner, is_held=True)
        durable.replay = AskingReplay(
            self._open_store,
            run_id,
            owner,
            self.calls_expire_at(),
            durable,
            self._gateway.approvals,
            self.replayed.holder,
            max_owner_bytes=self._kernel.settings.max_suspended_bytes_per_owner,
            is_stored=True,
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
                message = script.replay.missing_call()
                self._close_replay(script)
                if script.stopped_as is None:
                    self.approvals.withdraw_questions(script.run_id)
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

    def _close_replay(self, script: DurableScript) -> None:
        """Fails the calls that still arrive from the process of a script. They would be made without a record
        if the gateway did not know the run.
        """
        run_id, replay, replays = script.run_id, script.replay, self._gateway.replays
        replay.close()

        def forget() -> None:
            if replays.get(run_id) is replay:
                del replays[run_id]

        asyncio.get_running_loop().call_later(CLOSED_SECONDS, forget)

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
        scripts = {id: script for id, script in self._live.items() if script.is_saved and script.waiting}
        if not scripts:
            return
        since = {id: script.suspended_at for id, script in scripts.items()}
        store = await self._open_store()
        suspended = await store.checkpoints.suspended([*scripts], self.replayed.holder)
        answered = await store.checkpoints.answered([*scripts])
        longest = None
        for run_id, script in scripts.items():
            if run_id in answered and await script.deliver():
                continue
            if script.suspended_at is None or script.suspended_at != since[run_id]:
                continue
            if run_id not in suspended:
                # Another process has cancelled or continued the run, or it has expired.
                script.stop(SUSPENDED)
            elif time.monotonic() - (script.idle_since or script.suspended_at) > KEEP_SECONDS:
                script.leave_memory()
            elif longest is None or script.suspended_at < (longest.suspended_at or 0.0):
                longest = script
        if longest is not None and self._kernel.has_waiting_executions:
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
