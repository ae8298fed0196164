"""Runs code steps that call tools.

The state of the code is stored before each call, so that a resumed flow continues in the middle of the step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.kernel.execution import Execution
from hutch.protocols.rep.kinds.durable.replayed_step import attempt_id, can_store, replayed_calls
from hutch.protocols.rep.kinds.tool_approval import approve_through_step, ask_through_step
from hutch.session.run import SUSPENDED, RunHandle

if TYPE_CHECKING:
    from hutch.protocols.rep.kinds.registry import Call
    from hutch.protocols.rep.runtime.context import StepServices
    from hutch.protocols.toolscript.gateway.gateway import Gateway
    from hutch.session.run import Listener, Result


async def run_with_tools(call: Call, services: StepServices, execution: Execution, log: Listener) -> Result:
    """Runs the code of a step. If an earlier process was killed during the step, continues that process's
    run.

    Approvals of the code's calls become questions of the step. An engine that cannot suspend code runs it
    from the beginning, with the recorded results of its calls.
    """
    gateway = services.gateway()
    if execution.profile.engine_spec.can_suspend and await can_store(services):
        step = _StoredStep(call, services.suspended_runs(), gateway, execution, log)
        return await step.run(services)
    key = execution.code, (execution.inputs or b"").decode()
    async with replayed_calls(call, services, key) as run_id:
        with approve_through_step(call, gateway, run_id):
            return await services.kernel.run(execution, RunHandle(id=run_id, listeners=[log]))


class _StoredStep:
    """One attempt at a step. If this process dies, another process continues the attempt."""

    def __init__(
        self, call: Call, runs: SuspendedRuns, gateway: Gateway, execution: Execution, log: Listener
    ) -> None:
        self._call = call
        self._runs = runs
        self._gateway = gateway
        self._execution = msgspec.structs.replace(execution, stores_calls=True)
        self._owner = execution.owner
        self._log = log

    async def run(self, services: StepServices) -> Result:
        runs, owner, run_id = self._runs, self._owner, self._id(self._call.attempt)
        self._call.on_stored.append(self._forget)
        state = await runs.state(run_id)
        if state == "ended" and (ended := await runs.ends.result(run_id, owner)) is not None:
            # An earlier process finished the code, but died before it stored the result of the step.
            return ended
        if state is None:
            handle = RunHandle(id=run_id, listeners=[self._log])
            result = await services.kernel.run(self._execution, handle)
        else:
            self._call.log("info", "continues inside of the step")
            result = await self._resume(run_id)
        while result.error is not None and result.error.code == SUSPENDED:
            await self._decide(run_id)
            result = await self._resume(run_id)
        return result

    def _id(self, attempt: int) -> str:
        execution = self._execution
        tools = ",".join(provider.name for provider in execution.providers)
        return attempt_id(self._call, attempt, (execution.code, tools, (execution.inputs or b"").decode()))

    async def _forget(self) -> None:
        for attempt in range(self._call.attempt + 1):
            await self._runs.ends.forget(self._id(attempt), self._owner)

    async def _resume(self, run_id: str) -> Result:
        # Take over the run without waiting for its lease. Only one process executes a flow, so a process that
        # held the run before has died.
        execution, handle = await self._runs.resume(
            run_id, self._owner, self._execution.providers, is_holder_dead=True
        )
        handle.listeners = [*handle.listeners, self._log]
        return await self._runs.run(execution, handle)

    async def _decide(self, run_id: str) -> None:
        """Asks for the approvals that the code waits for, and makes the calls that are approved."""
        stored = self._gateway.stored_approvals
        assert stored is not None
        await stored.end_interrupted_calls(run_id)
        for waiting in await stored.waiting(run_id, self._owner):
            question = waiting.question
            answer = await ask_through_step(self._call, question.server, question.tool, question.arguments)
            await stored.carry_out(waiting.call_id, answer)
