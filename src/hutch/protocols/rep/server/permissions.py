"""Step kinds that a caller may use, and the stored flows that a run may use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from hutch.problems import Problem
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.references import SUBFLOW_KINDS
from hutch.protocols.rep.runtime import handshake

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.store.tables.flows import FlowTable

KIND_SCOPES = {
    "ability.execute": "abilities",
    "code.run": "execbox",
    "mcp.call": "toolscript",
    "tool.execute": "tpmjs",
    "toolscript.run": "toolscript",
}
"""Scopes of the step kinds that belong to another protocol."""

MAX_REFERENCED_FLOWS = 100
MAX_REFERENCED_BYTES = 8 * 1024 * 1024
"""Limit for all referenced flows together, because they are sent to the runtime in one request."""


def scopes_for(kinds: Iterable[str]) -> list[str]:
    """Returns the scopes that a key needs for steps of the given kinds."""
    return ["rep", *sorted({KIND_SCOPES[kind] for kind in kinds if kind in KIND_SCOPES})]


class FlowCaller(Protocol):
    """The user who starts a flow: the sender of the current request, or of a request that was queued."""

    @property
    def owner(self) -> str: ...

    def may(self, scope: str) -> bool: ...


def kinds_for(caller: FlowCaller) -> list[str]:
    """Returns the kinds that the caller may use. `shell.run` is never allowed."""
    kinds = [*handshake.builtin_kinds({}), *handshake.extension_kinds()]
    return [kind for kind in kinds if kind not in KIND_SCOPES or caller.may(KIND_SCOPES[kind])]


async def referenced_flows(
    flow: Flow, stored: FlowTable, owner: str, parse: Callable[[str], Awaitable[Flow]]
) -> dict[str, Flow]:
    """Returns the stored flows that `flow.run` steps name, directly or indirectly. Raises InvalidFlow.

    `parse` parses a stored flow. If there is no stored flow with a name, this function ignores the name,
    because the step will fail when it runs.
    """
    flows: dict[str, Flow] = {}
    seen: set[str] = set()
    pending = [flow]
    size = 0
    while pending and len(seen) < MAX_REFERENCED_FLOWS:
        for name in _referenced_names(pending.pop()) - seen:
            seen.add(name)
            row = await stored.get(owner, name)
            if row is not None:
                size += len(row.document)
                if size > MAX_REFERENCED_BYTES:
                    message = f"the flows that it runs have more than {MAX_REFERENCED_BYTES // 2**20} MiB"
                    raise InvalidFlow([Problem("graph.nodes", message)])
                flows[name] = await parse(row.document)
                pending.append(flows[name])
    return flows


def _referenced_names(flow: Flow) -> set[str]:
    names = (node.with_.get("flow") for node in flow.all_nodes() if node.kind in SUBFLOW_KINDS)
    return {name for name in names if isinstance(name, str)}
