"""`flow.run`: another flow as a step. Its steps share the places of the flow that it is in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep.codes import CANCELLED
from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed

if TYPE_CHECKING:
    from hutch.doors.rep.context import Context
    from hutch.doors.rep.flow import Flow

MOST_DEPTH = 8


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which flow, with what."""

    flow: dict[str, Any] | str
    """Flow IR, the name of a flow that the run brought along, or a file."""
    inputs: dict[str, Any] = {}


async def _run(call: Call) -> Any:
    from hutch.doors.rep.prepare import prepare

    params: Params = call.params
    context = call.context
    if context.depth >= MOST_DEPTH:
        message = f"Flows may run flows {MOST_DEPTH} levels deep, and this would be one more."
        raise StepFailed(message, retriable=False)
    flow, folder = _flow(params.flow, context)
    context.allowance.take_steps(len(flow.nodes))
    if (complaint := context.allowance.complaint) is not None:
        raise StepFailed(complaint, retriable=False)
    prepare(flow, params.inputs, call.run.registry, allow_shell=context.allow_shell)
    within = msgspec.structs.replace(context, depth=context.depth + 1, folder=folder)
    summary = await call.run.nested(flow, params.inputs, call.step_id, within)
    if summary.error is not None:
        data = summary.error["data"]
        raise StepFailed(
            f"Flow {flow.name} failed: {summary.error['message']}",
            details={"flow": flow.name, "error": summary.error},
            cause=None if data.get("cause") == CANCELLED else data.get("cause"),
        )
    return summary.outputs


def _flow(wanted: dict[str, Any] | str, context: Context) -> tuple[Flow, Path | None]:
    """The flow, and where the files that it names are. Raises InvalidFlow."""
    from hutch.doors.rep import flow

    if isinstance(wanted, dict):
        return flow.read(wanted), context.folder
    if wanted in context.flows:
        return flow.read(context.flows[wanted]), context.folder
    if context.folder is None:
        known = ", ".join(context.flows) or "none"
        raise StepFailed(f"There is no flow {wanted[:100]!r}; there is {known}.", retriable=False)
    path = context.folder / wanted
    return flow.load(path), path.parent


RUN = Kind("flow.run", _run, params=Params, waits=True)
