"""`flow.run`: runs another flow as a step. The sub-flow shares the step slots of its parent flow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.protocols.rep.ir.schema import MAX_NESTED_FLOWS
from hutch.protocols.rep.jsonrpc import CANCELLED
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.runtime.context import RunContext


class SubflowParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    flow: dict[str, Any] | str
    """Flow IR, the name of a flow in the run's `flows` option, or the path of a file."""
    inputs: dict[str, Any] = {}


async def _run(call: Call) -> Any:
    from hutch.protocols.rep.runtime.preflight import check_runnable

    params: SubflowParams = call.params
    context = call.context
    if context.depth >= MAX_NESTED_FLOWS:
        message = f"Flows may be nested at most {MAX_NESTED_FLOWS} levels deep."
        raise StepFailed(message, retriable=False)
    flow, folder = _flow(params.flow, context)
    context.quota.use_steps(len(flow.nodes))
    if (exceeded := context.quota.exceeded_message) is not None:
        raise StepFailed(exceeded, retriable=False)
    check_runnable(flow, params.inputs, call.run.registry, allow_shell=context.allow_shell)
    nested_context = msgspec.structs.replace(context, depth=context.depth + 1, folder=folder)
    summary = await call.run.run_nested(flow, params.inputs, call.step_id, nested_context)
    if summary.error is not None:
        data = summary.error["data"]
        raise StepFailed(
            f"Flow {flow.name} failed: {summary.error['message']}",
            details={"flow": flow.name, "error": summary.error},
            cause=None if data.get("cause") == CANCELLED else data.get("cause"),
        )
    return summary.outputs


def _flow(reference: dict[str, Any] | str, context: RunContext) -> tuple[Flow, Path | None]:
    """Returns the flow and the base folder of its file paths. Raises InvalidFlow."""
    from hutch.protocols.rep.ir.parse import parse_flow
    from hutch.protocols.rep.ir.source.read import load_flow

    if isinstance(reference, dict):
        return parse_flow(reference), context.folder
    if reference in context.flows:
        return parse_flow(context.flows[reference]), context.folder
    if context.folder is None:
        names = ", ".join(context.flows) or "none"
        raise StepFailed(f"There is no flow {reference[:100]!r}; known flows: {names}.", retriable=False)
    path = context.folder / reference
    return load_flow(path), path.parent


RUN = Kind("flow.run", _run, params=SubflowParams, waits=True)
