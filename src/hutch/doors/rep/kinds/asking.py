"""Calls of tools that the operator's rules want asked about: asked as the step's approval."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hutch.doors.toolscript.approvals import Answer, Approval
from hutch.kernel import new_run_id
from hutch.session.jsonvalue import encode_value

if TYPE_CHECKING:
    from hutch.doors.rep.kinds.registry import Call
    from hutch.doors.toolscript.gateway import Gateway

_MOST_SHOWN = 400


class Asker:
    """Knows which call of a tool is which step's."""

    def __init__(self) -> None:
        self._steps: dict[str, tuple[Call, asyncio.Lock]] = {}

    async def ask(self, approval: Approval) -> Answer:
        known = self._steps.get(approval.run or "")
        if known is None:
            return Answer("deny", reason="there is nobody who could be asked")
        call, turn = known
        shown = encode_value(approval.arguments).decode()
        shown = shown if len(shown) <= _MOST_SHOWN else f"{shown[:_MOST_SHOWN]}…"
        message = f"Call {approval.server}__{approval.tool} with {shown}?"
        # A script may call several at once, and a step is asked about one thing at a time.
        async with turn:
            said = await call.context.approvals.wait(
                call.step_id, lambda: call.emit("approval", message=message)
            )
        return Answer("allow" if said.approved else "deny", reason=said.reason)

    @contextmanager
    def known(self, call: Call) -> Iterator[str]:
        """The name under which the step calls tools."""
        name = new_run_id()
        self._steps[name] = (call, asyncio.Lock())
        try:
            yield name
        finally:
            del self._steps[name]


@contextmanager
def asked(call: Call, gateway: Gateway) -> Iterator[str]:
    """While it lasts, what the rules want asked about is asked as an approval of the step."""
    approvals = gateway.approvals
    owner = getattr(approvals.ask, "__self__", None)
    if not isinstance(owner, Asker):
        owner = Asker()
        approvals.ask = owner.ask
    with owner.known(call) as name:
        try:
            yield name
        finally:
            approvals.forget(name)
