"""A valid flow with its steps and edges. `parse` builds it from Flow IR."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from pathlib import Path
from typing import Any, Literal

import msgspec

from hutch.problems import JsonPath, Problem, format_path
from hutch.protocols.rep.ir import schema
from hutch.protocols.rep.ir.graph import CONTROL_KINDS, order


class FlowNode(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str
    with_: dict[str, Any]
    timeout_ms: int = 0
    """0 means no timeout."""
    retry_max: int = 0
    """Number of retries after the first attempt."""
    backoff_ms: int = 0
    interpolate: bool = False
    """True if strings in `with` may contain references in braces."""
    index: int = 0
    """Index in `graph.nodes`."""
    item_step: FlowNode | None = None
    """Inner step of a `for_each`."""
    is_item: bool = False
    """True for the inner step of a `for_each`, which may refer to the item."""

    @property
    def path(self) -> str:
        return format_path(self.json_path)

    @property
    def json_path(self) -> JsonPath:
        path: JsonPath = ("graph", "nodes", self.index)
        return (*path, "with", "step") if self.is_item else path


class FlowEdge(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    target: str
    on: Literal["success", "failure"]
    case: str | None = None
    """Case in which a switch takes this edge. None means any case."""


class Flow:
    """A valid flow: ids are unique, edges connect existing steps, and there is no cycle."""

    def __init__(self, document: dict[str, Any], decoded: schema.FlowDocument) -> None:
        self.document = document
        self.name = decoded.flow.name
        self.timeout_ms = decoded.flow.timeout_ms
        """0 means no timeout."""
        self.constants: dict[str, Any] = document["constants"]
        self.inputs_schema = decoded.inputs_schema
        self.metadata: dict[str, Any] = document["metadata"]
        self.locate: Callable[[Problem], Problem] = lambda problem: problem
        """Returns a problem of the flow with its place in the text that the flow was read from."""
        self.nodes: Mapping[str, FlowNode] = {
            node.id: FlowNode(
                id=node.id,
                kind=node.type,
                with_=node.with_,
                timeout_ms=node.timeout_ms,
                retry_max=node.retry.max,
                backoff_ms=node.retry.backoff_ms,
                interpolate=node.interpolate is True,
                index=index,
                item_step=_item_step(node, index) if node.type == schema.FOR_EACH else None,
            )
            for index, node in enumerate(decoded.graph.nodes)
        }
        self.edges = tuple(
            FlowEdge(source=edge.source, target=edge.target, on=edge.on, case=edge.case)
            for edge in decoded.graph.edges
        )
        self._outgoing: dict[str, list[FlowEdge]] = {name: [] for name in self.nodes}
        self._incoming: dict[str, list[FlowEdge]] = {name: [] for name in self.nodes}
        for edge in self.edges:
            self._outgoing[edge.source].append(edge)
            self._incoming[edge.target].append(edge)

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {len(self.nodes)} steps)"

    def all_nodes(self) -> Iterator[FlowNode]:
        """Yields all steps, and after each `for_each` its inner step."""
        for node in self.nodes.values():
            yield node
            if node.item_step is not None:
                yield node.item_step

    def for_items(self, node: FlowNode, count: int) -> Flow:
        """Returns a flow that has the inner step of a `for_each` once for each item. Step ids are the item
        indexes.
        """
        assert node.item_step is not None
        flow = copy(self)
        flow.timeout_ms = 0
        flow.nodes = {
            str(index): msgspec.structs.replace(node.item_step, id=str(index)) for index in range(count)
        }
        flow.edges = ()
        flow._outgoing = {name: [] for name in flow.nodes}
        flow._incoming = {name: [] for name in flow.nodes}
        return flow

    def entries(self) -> list[str]:
        """Returns the ids of the steps without incoming edges, in document order."""
        return [name for name in self.nodes if not self._incoming[name]]

    def outgoing(self, step_id: str) -> list[FlowEdge]:
        return self._outgoing[step_id]

    def incoming(self, step_id: str) -> list[FlowEdge]:
        return self._incoming[step_id]

    def successors(self, step_id: str) -> list[str]:
        """Returns the ids of the direct successors without duplicates."""
        return list(dict.fromkeys(edge.target for edge in self._outgoing[step_id]))

    def step_and_later_steps(self, step_id: str) -> list[str]:
        """Returns the step and all steps that it leads to, in topological order."""
        later = {step_id}
        for name in self.order():
            if name in later:
                later.update(self.successors(name))
        return [name for name in self.order() if name in later]

    def order(self) -> list[str]:
        """Returns all step ids in topological order."""
        return order(self.nodes, [(edge.source, edge.target) for edge in self.edges])

    def step_kinds(self) -> list[str]:
        """Returns the sorted kinds that a runtime must support. Control kinds are left out."""
        return sorted({node.kind for node in self.all_nodes()} - CONTROL_KINDS)

    @property
    def is_compiled(self) -> bool:
        """True if the public compiler produced the flow. The compiler keeps parameters as written in the
        source (WDL).
        """
        return ".wdl" in Path(self.metadata["source_file"]).suffixes


def _item_step(node: schema.GraphNode, index: int) -> FlowNode:
    step = msgspec.convert(node.with_["step"], schema.ItemStep)
    return FlowNode(
        id=node.id,
        kind=step.type,
        with_=step.with_,
        timeout_ms=step.timeout_ms,
        retry_max=step.retry.max,
        backoff_ms=step.retry.backoff_ms,
        interpolate=step.interpolate,
        index=index,
        is_item=True,
    )


def count_steps(document: str) -> int:
    """Returns the number of steps of a stored flow. Does not decode the steps, which may be large."""
    return len(msgspec.json.decode(document, type=_StoredFlow).graph.nodes)


class _StoredGraph(msgspec.Struct):
    nodes: list[msgspec.Raw]


class _StoredFlow(msgspec.Struct):
    graph: _StoredGraph
