"""Approvals of tool calls. The step that makes a call asks for its approval."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hutch.protocols.toolscript.gateway.approvals import Approval, ApprovalAnswer, Decision
from hutch.session.json_value import encode_value
from hutch.session.run import new_run_id

if TYPE_CHECKING:
    from hutch.protocols.rep.kinds.registry import Call
    from hutch.protocols.toolscript.gateway.gateway import Gateway

_MAX_SHOWN_CHARS = 400


class StepApprover:
    """Asks for the approval of a tool call as a question of the step that makes the call. Finds the step by
    the call's run id.
    """

    def __init__(self) -> None:
        self._steps: dict[str, tuple[Call, asyncio.Lock]] = {}

    async def ask(self, approval: Approval) -> ApprovalAnswer:
        registered = self._steps.get(approval.run or "")
        if registered is None:
            return ApprovalAnswer("deny", reason="no step can be asked")
        call, lock = registered
        # Ask one question after the other. A script may make several calls at once, but a step can ask only
        # one question at a time.
        async with lock:
            return await ask_through_step(call, approval.server, approval.tool, approval.arguments)

    @contextmanager
    def register(self, call: Call, run_id: str) -> Iterator[str]:
        """Registers a step and yields the run id for its tool calls."""
        self._steps[run_id] = (call, asyncio.Lock())
        try:
            yield run_id
        finally:
            del self._steps[run_id]


async def ask_through_step(call: Call, server: str, tool: str, arguments: Any) -> ApprovalAnswer:
    """Asks for the approval of a tool call as a question of a step."""
    shown = encode_value(arguments).decode()
    shown = shown if len(shown) <= _MAX_SHOWN_CHARS else f"{shown[:_MAX_SHOWN_CHARS]}…"
    message = f"Call {server}__{tool} with {shown}?"
    decision = await call.context.approvals.wait(call.step_id, lambda: call.emit("approval", message=message))
    allowed: Decision = "allow" if decision.approved else "deny"
    return ApprovalAnswer(allowed, reason=decision.reason, decided_by=decision.by)


@contextmanager
def approve_through_step(call: Call, gateway: Gateway, run_id: str | None = None) -> Iterator[str]:
    """Registers a step, so that approvals of its tool calls are asked for as questions of this step. Yields
    the run id for these tool calls.
    """
    approvals = gateway.approvals
    approver = getattr(approvals.ask, "__self__", None)
    if not isinstance(approver, StepApprover):
        approver = StepApprover()
        approvals.ask = approver.ask
    with approver.register(call, run_id or new_run_id()) as run_id:
        try:
            yield run_id
        finally:
            approvals.forget(run_id)
