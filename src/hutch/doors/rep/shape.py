"""The shape of Flow IR 1.0.0, said once: flows are decoded with these types and checked with their schema."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

MOST_NODES = 10_000
MOST_EDGES = 100_000
_MOST = 2**31 - 1

Name: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+$", max_length=200)]
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST)]
Moment: TypeAlias = Annotated[datetime, Meta(tz=True)]


class Header(Struct, forbid_unknown_fields=True):
    name: Name
    timeout_ms: Milliseconds


class Constants(Struct, forbid_unknown_fields=True):
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


class GraphEdge(Struct, rename={"source": "from", "target": "to"}):
    source: Name
    target: Name
    on: Literal["success", "failure"]
    case: str | None = None
    """Which case of a switch takes this edge: the public compiler's own addition."""


class Graph(Struct, forbid_unknown_fields=True):
    nodes: Annotated[list[GraphNode], Meta(min_length=1, max_length=MOST_NODES)]
    edges: Annotated[list[GraphEdge], Meta(max_length=MOST_EDGES)]


class Metadata(Struct):
    generated_at: Moment
    source_file: Text


class Document(Struct):
    """A flow as it is written down."""

    version: Literal["1.0.0"]
    flow: Header
    constants: Constants
    inputs_schema: dict[str, Any]
    graph: Graph
    metadata: Metadata


def decode(document: object) -> Document:
    """Raises msgspec.ValidationError with the first of what is wrong."""
    return msgspec.convert(document, Document)


@cache
def json_schema() -> dict[str, Any]:
    """The JSON Schema of a flow."""
    return msgspec.json.schema(Document)
