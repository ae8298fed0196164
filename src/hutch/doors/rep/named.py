"""The flows that the steps of a flow run by name, out of those that its owner keeps."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from hutch.doors.rep import flow as flow_module
from hutch.doors.rep.problems import InvalidFlow, Problem

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.store.flows import Flows

MOST = 100
MOST_BYTES = 8 * 1024 * 1024
"""Of all of them: they go to the runtime together."""


async def read(text: str) -> Flow:
    """A flow out of the store. A large one takes a moment, which others need not wait for."""
    return await asyncio.to_thread(lambda: flow_module.read(json.loads(text)))


async def named_flows(flow: Flow, kept: Flows, owner: str) -> dict[str, Flow]:
    """Also those that these run. What is not kept is told when its step comes. Raises InvalidFlow."""
    found: dict[str, Flow] = {}
    looked_for: set[str] = set()
    waiting = [flow]
    size = 0
    while waiting and len(looked_for) < MOST:
        for name in _names(waiting.pop()) - looked_for:
            looked_for.add(name)
            row = await kept.get(owner, name)
            if row is not None:
                size += len(row.document)
                if size > MOST_BYTES:
                    message = f"the flows that it runs have more than {MOST_BYTES // 2**20} MiB"
                    raise InvalidFlow([Problem("graph.nodes", message)])
                found[name] = await read(row.document)
                waiting.append(found[name])
    return found


def _names(flow: Flow) -> set[str]:
    names = (node.with_.get("flow") for node in flow.nodes.values() if node.kind == "flow.run")
    return {name for name in names if isinstance(name, str)}
