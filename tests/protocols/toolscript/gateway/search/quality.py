"""Measures the quality of the tool search with queries for the tools of published MCP servers.

`queries.json` contains the names and arguments of the tools, with descriptions written for this test. The
weights of the search were tuned with half of the queries ("tuning"). The other half is not used for tuning
("kept"). But the list of synonyms was written after all queries, so the figures of both halves are better
than those of other people's queries.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from tests.protocols.toolscript.fakes import FakeTool

from hutch.protocols.toolscript.gateway.gateway import SEARCH_THRESHOLD
from hutch.protocols.toolscript.gateway.search.index import SearchIndex


class Query(msgspec.Struct, frozen=True):
    query: str
    expected: list[str]
    """Tools that are right answers. One of them is enough."""
    half: Literal["tuning", "kept"]


class Tool(msgspec.Struct, frozen=True):
    server: str
    name: str
    description: str
    arguments: list[str]


class Data(msgspec.Struct, frozen=True):
    tools: list[Tool]
    queries: list[Query]


class Quality(NamedTuple):
    recall: float
    """Share of the queries with an expected tool among the first five results (recall@5)."""
    mrr: float
    """Mean of 1 / position of the first expected tool, 0 if it is not among the first five."""
    missed: list[str]


_DATA = msgspec.json.decode((Path(__file__).parent / "queries.json").read_bytes(), type=Data)
QUERIES = _DATA.queries
TOOLS_OF_PUBLISHED_SERVERS = [
    FakeTool(
        tool.server,
        tool.name,
        tool.description,
        {"type": "object", "properties": {name: {} for name in tool.arguments}},
    )
    for tool in _DATA.tools
]


def measure(index: SearchIndex, half: str) -> Quality:
    queries = [query for query in QUERIES if query.half == half]
    reciprocal = 0.0
    missed = []
    for query in queries:
        results = index.search(query.query, limit=5, threshold=SEARCH_THRESHOLD)
        names = [result.entry.qualified for result in results]
        position = next((n for n, name in enumerate(names, 1) if name in query.expected), None)
        if position is None:
            missed.append(query.query)
        else:
            reciprocal += 1 / position
    return Quality(1 - len(missed) / len(queries), reciprocal / len(queries), missed)
