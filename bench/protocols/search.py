"""Tool search: quality with the tools of published MCP servers, and time in a large catalog."""

from __future__ import annotations

import time

from tests.protocols.toolscript.gateway.search.quality import QUERIES, TOOLS_OF_PUBLISHED_SERVERS, measure

from bench.report import Row, Scale, median, number, percentile
from hutch.protocols.toolscript.gateway.catalog import Catalog
from hutch.protocols.toolscript.gateway.gateway import SEARCH_THRESHOLD
from hutch.protocols.toolscript.gateway.search.index import SearchIndex


async def search(scale: Scale) -> list[Row]:
    quality = measure(SearchIndex(Catalog.of(TOOLS_OF_PUBLISHED_SERVERS)), "kept")
    tools = scale.of(5_000, 500)
    originals = TOOLS_OF_PUBLISHED_SERVERS
    copies = [
        originals[n % len(originals)]._replace(name=f"{originals[n % len(originals)].name}_{n}")
        for n in range(tools)
    ]
    index = SearchIndex(Catalog.of(copies))
    times = []
    for query in QUERIES:
        began = time.perf_counter()
        index.search(query.query, limit=5, threshold=SEARCH_THRESHOLD)
        times.append(1000 * (time.perf_counter() - began))
    return [
        Row(
            what=f"tool search: recall@5, {len(QUERIES) // 2} queries that were not used to choose weights",
            measured=f"{quality.recall:.2f}, mean reciprocal rank {quality.mrr:.2f}",
            target="≥ 0.9",
            met=quality.recall >= 0.9,
            data={"recall_at_5": quality.recall, "mrr": quality.mrr, "missed": quality.missed},
        ),
        Row(
            what=f"tool search: one query, {number(tools)} tools",
            measured=f"{number(median(times))} ms, p95 {number(percentile(times, 0.95))} ms",
            data={"tools": tools, "median_ms": median(times), "p95_ms": percentile(times, 0.95)},
        ),
    ]
