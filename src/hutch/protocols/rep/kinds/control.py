"""Control-flow steps: `switch`, `finish`, `dsl.emit`, `wait`, `approve`."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hutch.protocols.rep.ir.switch import DEFAULT, case_name, case_of, taken_edges
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed

MAX_WAIT_SECONDS = 31 * 24 * 3600.0
MAX_QUESTION_CHARS = 10_000


class SwitchParams(msgspec.Struct, frozen=True):
    key_from: Any
    """Value of the key. The reference in the flow is already resolved."""
    cases: dict[str, str] = {}
    default: str | None = None


async def _switch(call: Call) -> Any:
    """Selects the case for the key.

    `FlowProgress` computes the edges from the value again, so that they are also known after a resume.
    """
    params: SwitchParams = call.params
    edges = call.flow.outgoing(call.node.id)
    cases = {*params.cases, *(edge.case for edge in edges if edge.case is not None)}
    case = case_of(params.key_from, cases, params.default)
    if case is None and params.default is None:
        shown = (case_name(params.key_from) or "")[:100]
        names = ", ".join(sorted(cases)) or "none"
        message = f"There is no case for {shown!r}, and no default; the cases are {names}."
        raise StepFailed(message, retriable=False)
    targets = [edge.target for edge in taken_edges(call.flow, call.node, params.key_from)]
    return {"value": params.key_from, "case": DEFAULT if case is None else case, "next": targets}


class FinishParams(msgspec.Struct, frozen=True):
    outputs: Any = None


async def _finish(call: Call) -> Any:
    params: FinishParams = call.params
    return params.outputs


async def _emit(call: Call) -> Any:
    call.log("info", msgspec.json.encode(call.params).decode())
    return call.params


class WaitParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seconds: Annotated[float, Meta(ge=0, le=MAX_WAIT_SECONDS)]


async def _wait(call: Call) -> Any:
    params: WaitParams = call.params
    await asyncio.sleep(params.seconds)
    return {"seconds": params.seconds}


class ApproveParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    message: Annotated[str, Meta(max_length=MAX_QUESTION_CHARS)]


async def _approve(call: Call) -> Any:
    params: ApproveParams = call.params
    decision = await call.context.approvals.wait(
        call.step_id, lambda: call.emit("approval", message=params.message)
    )
    if not decision.approved:
        by = f" by {decision.by}" if decision.by else ""
        reason = f": {decision.reason}" if decision.reason else "."
        details = {"approved": False, "by": decision.by, "reason": decision.reason}
        raise StepFailed(f"The step was not approved{by}{reason}", retriable=False, details=details)
    return {"approved": True, "by": decision.by}


SWITCH = Kind("switch", _switch, params=SwitchParams, waits=True)
FINISH = Kind("finish", _finish, params=FinishParams, waits=True)
EMIT = Kind("dsl.emit", _emit, waits=True)

WAIT = Kind("wait", _wait, params=WaitParams, waits=True)
APPROVE = Kind("approve", _approve, params=ApproveParams, waits=True)
