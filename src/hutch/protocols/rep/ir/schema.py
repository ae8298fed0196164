"""Types of Flow IR 1.0.0. Flows are decoded with these types."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

MAX_NODES = 10_000
MAX_EDGES = 20_000
MAX_ID_CHARS = 200
FOR_EACH = "for_each"
"""Kind of a step that runs its inner step for every item of a list. An extension of Hutch."""
MAX_PARALLEL_ITEMS = 64
MAX_NESTED_FLOWS = 8
"""Maximum number of flows that a flow is nested in."""
_INT32_MAX = 2**31 - 1

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=MAX_ID_CHARS)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Timestamp: TypeAlias = Annotated[datetime, Meta(tz=True)]


class FlowHeader(Struct, forbid_unknown_fields=True):
    name: Name
    timeout_ms: Milliseconds


class FlowConstants(Struct, forbid_unknown_fields=True):
    policyRef: Text
    policy: dict[str, Any]


class RetryPolicy(Struct, forbid_unknown_fields=True):
    max: Count
    backoff_ms: Milliseconds


class GraphNode(Struct, rename={"with_": "with"}):
    id: Name
    type: Text
    with_: dict[str, Any]
    timeout_ms: Milliseconds
    retry: RetryPolicy
    interpolate: Any = False
    """True if strings in `with` may contain `${…}`. An extension of Hutch. Values other than `true` are
    ignored and not refused, because unknown keys of a node are allowed.
    """


class ItemStep(Struct, forbid_unknown_fields=True, rename={"with_": "with"}):
    """Inner step of a `for_each`. Its timeout and its retries apply to each item."""

    type: Text
    with_: dict[str, Any] = {}
    timeout_ms: Milliseconds = 0
    retry: RetryPolicy = msgspec.field(default_factory=lambda: RetryPolicy(max=0, backoff_ms=0))
    interpolate: bool = False


class ForEachParams(Struct, forbid_unknown_fields=True):
    """Parameters of a `for_each`."""

    items: list[Any]
    step: ItemStep
    max_parallel: Annotated[int, Meta(ge=1, le=MAX_PARALLEL_ITEMS)] = 4


class GraphEdge(Struct, rename={"source": "from", "target": "to"}):
    source: Name
    target: Name
    on: Literal["success", "failure"]
    case: str | None = None
    """Case in which a switch takes this edge. The public compiler adds this field."""


class FlowGraph(Struct, forbid_unknown_fields=True):
    nodes: Annotated[list[GraphNode], Meta(min_length=1, max_length=MAX_NODES)]
    edges: Annotated[list[GraphEdge], Meta(max_length=MAX_EDGES)]


class FlowMetadata(Struct):
    generated_at: Timestamp
    source_file: Text


class FlowDocument(Struct):
    version: Literal["1.0.0"]
    flow: FlowHeader
    constants: FlowConstants
    inputs_schema: dict[str, Any]
    graph: FlowGraph
    metadata: FlowMetadata


def decode_flow(document: object) -> FlowDocument:
    """Decodes Flow IR. Raises msgspec.ValidationError with the first error."""
    return msgspec.convert(document, FlowDocument)
