"""`for_each`: runs its inner step for every item of a list, several items at a time."""

from __future__ import annotations

from typing import Any

from hutch.protocols.rep.ir import schema
from hutch.protocols.rep.jsonrpc import CANCELLED
from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed

MAX_ITEMS = 10_000


async def _run(call: Call) -> list[Any]:
    """Returns the outputs of all items in order. The step fails as soon as one item fails."""
    params: schema.ForEachParams = call.params
    count = len(params.items)
    if count > MAX_ITEMS:
        message = f"with.items: expected at most {MAX_ITEMS} items, got {count}. Use several steps."
        raise StepFailed(message, retriable=False)
    call.context.quota.use_steps(count)
    if (exceeded := call.context.quota.exceeded_message) is not None:
        raise StepFailed(exceeded, retriable=False)
    call.emit("items", count=count, max_parallel=params.max_parallel)
    summary = await call.run.run_items(call.node, params.items, params.max_parallel, call.step_id)
    if summary.error is None:
        outputs: list[Any] = summary.outputs
        return outputs
    data = summary.error["data"]
    index = (data.get("step_id") or "").removeprefix(f"{call.step_id}/").partition("/")[0]
    raise StepFailed(
        f"Item {index} failed: {summary.error['message']}",
        retriable=bool(data.get("retriable")),
        details={"index": int(index) if index.isdecimal() else None, "error": summary.error},
        cause=None if data.get("cause") == CANCELLED else data.get("cause"),
    )


FOR_EACH = Kind(schema.FOR_EACH, _run, params=schema.ForEachParams, waits=True)
