"""What a run gives: what `finish` says, or else what the last steps gave."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch.doors.rep.attempt import MAX_OUTPUT_BYTES
from hutch.doors.rep.codes import STEP_FAILED, failure
from hutch.session.jsonvalue import encode_value

if TYPE_CHECKING:
    from hutch.doors.rep.engine import FlowRun


def outputs_of(run: FlowRun) -> tuple[Any, dict[str, Any] | None]:
    """The outputs of a run that went well, or why there are none."""
    outputs = _said(run)
    if outputs is None:
        outputs = {id: run.outputs[id] for id in run.flow.nodes if _counts(run, id)}
    size = len(encode_value(outputs))
    if size > MAX_OUTPUT_BYTES:
        message = (
            f"The outputs of the run have {size} bytes of JSON; the most is {MAX_OUTPUT_BYTES}."
            " Name those that are wanted in the `outputs` of a finish step."
        )
        return None, failure(STEP_FAILED, message)
    return outputs, None


def _counts(run: FlowRun, id: str) -> bool:
    result = run.results.get(id)
    succeeded = result is not None and result.state == "succeeded"
    return succeeded and run.flow.nodes[id].kind != "finish" and run.is_last(id)


def _said(run: FlowRun) -> Any:
    """What the finish steps name that were reached; objects of several are put together."""
    said = [
        run.outputs[id]
        for id, node in run.flow.nodes.items()
        if node.kind == "finish" and id in run.results and run.outputs[id] is not None
    ]
    if len(said) <= 1 or not all(isinstance(each, dict) for each in said):
        return said[-1] if said else None
    return {key: value for each in said for key, value in each.items()}
