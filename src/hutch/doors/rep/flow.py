"""A flow: Flow IR 1.0.0, read and checked as a whole before anything is run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from hutch.doors.rep import files, shape
from hutch.doors.rep.graph import CONTROL, order
from hutch.doors.rep.problems import VERSION, InvalidFlow, Problem, kind_of


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A step."""

    id: str
    kind: str
    with_: dict[str, Any]
    timeout_ms: int = 0
    """0 for none."""
    retry_max: int = 0
    """How often it is tried again: attempts are one more."""
    backoff_ms: int = 0
    place: int = 0
    """Its number in `graph.nodes`."""

    @property
    def path(self) -> str:
        return f"graph.nodes[{self.place}]"


class Edge(msgspec.Struct, frozen=True, kw_only=True):
    """Which step comes after which."""

    source: str
    target: str
    on: Literal["success", "failure"]
    case: str | None = None
    """Of a switch: taken if this is the case. None: whatever the case is."""


class Flow:
    """A flow that is whole: its steps have ids of their own, its edges lead somewhere and never back."""

    def __init__(self, document: dict[str, Any], decoded: shape.Document) -> None:
        self.document = document
        self.name = decoded.flow.name
        self.timeout_ms = decoded.flow.timeout_ms
        """0 for none."""
        self.constants: dict[str, Any] = document["constants"]
        self.inputs_schema = decoded.inputs_schema
        self.metadata: dict[str, Any] = document["metadata"]
        self.nodes: Mapping[str, Node] = {
            each.id: Node(
                id=each.id,
                kind=each.type,
                with_=each.with_,
                timeout_ms=each.timeout_ms,
                retry_max=each.retry.max,
                backoff_ms=each.retry.backoff_ms,
                place=number,
            )
            for number, each in enumerate(decoded.graph.nodes)
        }
        self.edges = tuple(
            Edge(source=each.source, target=each.target, on=each.on, case=each.case)
            for each in decoded.graph.edges
        )
        self._outgoing: dict[str, list[Edge]] = {name: [] for name in self.nodes}
        self._incoming: dict[str, list[Edge]] = {name: [] for name in self.nodes}
        for edge in self.edges:
            self._outgoing[edge.source].append(edge)
            self._incoming[edge.target].append(edge)

    def __repr__(self) -> str:
        return f"Flow({self.name!r}, {len(self.nodes)} steps)"

    def entries(self) -> list[str]:
        """The steps that nothing comes before, as they are written."""
        return [name for name in self.nodes if not self._incoming[name]]

    def outgoing(self, step_id: str) -> list[Edge]:
        return self._outgoing[step_id]

    def incoming(self, step_id: str) -> list[Edge]:
        return self._incoming[step_id]

    def successors(self, step_id: str) -> list[str]:
        """The ids of the steps that may come right after one, each once."""
        return list(dict.fromkeys(edge.target for edge in self._outgoing[step_id]))

    def order(self) -> list[str]:
        """All ids, each after all that may come before it."""
        return order(self.nodes, [(edge.source, edge.target) for edge in self.edges])

    def step_kinds(self) -> list[str]:
        """The kinds that a runtime must have, sorted: without those that only direct the flow."""
        return sorted({node.kind for node in self.nodes.values()} - CONTROL)

    @property
    def compiled(self) -> bool:
        """Whether the public compiler made it, which leaves parameters as they stand in its source (WDL)."""
        return ".wdl" in Path(self.metadata["source_file"]).suffixes


def read(document: object) -> Flow:
    """The flow that a JSON value is. Raises InvalidFlow with all that is wrong."""
    from hutch.doors.rep.rules import beyond_shape

    if not isinstance(document, dict):
        raise InvalidFlow(
            [Problem("", f"expected an object with Flow IR {VERSION}, got {kind_of(document)}")]
        )
    version = document.get("version")
    if isinstance(version, str) and version != VERSION:
        # Whatever else is different is right in that version, for all we know.
        problem = Problem("version", f'expected "{VERSION}", got {kind_of(version)}')
        raise InvalidFlow([problem], received_version=version)
    too_much = files.fault(document)
    if too_much is not None:
        raise InvalidFlow([too_much])
    problems: list[Problem] = []
    decoded = None
    try:
        decoded = shape.decode(document)
    except msgspec.ValidationError as error:
        problems = _misshapen(document, error)
    problems += beyond_shape(document)
    if decoded is None or problems:
        raise InvalidFlow(problems)
    return Flow(document, decoded)


def _misshapen(document: dict[str, Any], first: msgspec.ValidationError) -> list[Problem]:
    """Everything that is wrong with the shape, where decoding stops at the first."""
    from hutch.doors.rep.schema import check

    return check(shape.json_schema(), document) or [Problem("", str(first))]


def load(path: Path) -> Flow:
    """The flow in a file: JSON, or YAML if its name ends so. Raises InvalidFlow."""
    return read(files.load(path))
