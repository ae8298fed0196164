"""The flows that the steps of a flow run by name, out of those that its owner keeps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hutch.doors.rep import flow as flow_module

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.store.flows import Flows

MOST = 100


async def named_flows(flow: Flow, kept: Flows, owner: str) -> dict[str, Flow]:
    """Also those that these run. What is not kept is told when its step comes. Raises InvalidFlow."""
    found: dict[str, Flow] = {}
    looked_for: set[str] = set()
    waiting = [flow]
    while waiting and len(looked_for) < MOST:
        for name in _names(waiting.pop()) - looked_for:
            looked_for.add(name)
            row = await kept.get(owner, name)
            if row is not None:
                found[name] = flow_module.read(json.loads(row.document))
                waiting.append(found[name])
    return found


def _names(flow: Flow) -> set[str]:
    names = (node.with_.get("flow") for node in flow.nodes.values() if node.kind == "flow.run")
    return {name for name in names if isinstance(name, str)}
