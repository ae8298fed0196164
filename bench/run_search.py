"""Search of run records with filters, in databases with many runs of 50 owners."""

from __future__ import annotations

import json
import random
import tempfile
import time

from tests.support.databases import running_postgres

from bench.report import Row, Scale, median, number, percentile
from hutch.settings import Settings
from hutch.store.models import NewRun, RunRow, now
from hutch.store.store import Store
from hutch.store.tables.run_search import Match, RunQuery

OUTCOMES = ["ok"] * 90 + ["runtime_error"] * 6 + ["timeout"] * 3 + ["memory_limit"]
PROTOCOLS = ("execbox", "tpmjs", "toolscript", "abilities", "mcp")
DETAILS = json.dumps({"tool_calls": 1, "calls": [], "queue_ms": 0.2, "log_lines": 3, "limits": {}})
BATCH = 5_000
REPETITIONS = 30


def make_run(number: int, random: random.Random) -> NewRun:
    row = RunRow(
        run_id=f"{random.getrandbits(128):032x}",
        owner=f"user{random.randrange(50)}",
        protocol=random.choice(PROTOCOLS),
        engine="quickjs",
        label=f"label{random.randrange(500)}",
        created_at=now(plus_seconds=-number),
        duration_ms=random.random() * 1_000,
        outcome=random.choice(OUTCOMES),
        details=DETAILS,
    )
    tools = (f"server.tool{random.randrange(200)}",) if number % 2 else ()
    return NewRun(row, None, tools, ("api.example.com",) if number % 20 == 0 else ())


def of(value: str) -> Match:
    return Match((value,))


QUERIES = {
    "no filter": RunQuery(),
    "owner": RunQuery(owner=of("user7")),
    "failed": RunQuery(ended=frozenset({"failed"})),
    "failed of owner": RunQuery(ended=frozenset({"failed"}), owner=of("user7")),
    "code": RunQuery(outcome=of("memory_limit")),
    "tool": RunQuery(tool=of("server.tool7")),
    "tool and failed": RunQuery(tool=of("server.tool7"), ended=frozenset({"failed"})),
    "host": RunQuery(host=of("api.example.com")),
    "label": RunQuery(label=of("label7")),
    "label and owner": RunQuery(label=of("label7"), owner=of("user7")),
    "tool and owner": RunQuery(tool=of("server.tool7"), owner=of("user7")),
    "host and owner": RunQuery(host=of("api.example.com"), owner=of("user7")),
    "protocol, not owner": RunQuery(protocol=of("mcp"), owner=Match((), ("user7",))),
    "text": RunQuery(text=of("label77")),
    "text that is nowhere": RunQuery(text=of("nowhere")),
    "by duration": RunQuery(sort="duration"),
    "by duration, failed": RunQuery(sort="duration", ended=frozenset({"failed"})),
}


async def run_search(scale: Scale) -> list[Row]:
    """Times what `GET /runs` reads from the store: a page and the counts."""
    count = scale.of(1_000_000, 20_000)
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home, running_postgres() as server:
        urls = {"SQLite": None, "PostgreSQL": server.new_database()}
        return [
            await _measure(name, Settings(home=home, database_url=url), count) for name, url in urls.items()
        ]


async def _measure(name: str, settings: Settings, count: int) -> Row:
    async with await Store.open(settings) as store:
        generator = random.Random(1)
        for start in range(0, count, BATCH):
            await store.runs.add_new([make_run(start + each, generator) for each in range(BATCH)])
        times = {filters: await _times(store, query) for filters, query in QUERIES.items()}
    worst = max(times, key=lambda filters: percentile(times[filters], 0.95))
    p95 = percentile(times[worst], 0.95)
    middle = median(median(each) for each in times.values())
    return Row(
        what=f"`GET /runs`, {number(count)} runs, {name}: p50 of {len(QUERIES)} filters; highest p95",
        measured=f"{number(middle)} ms; {number(p95)} ms ({worst})",
        target="p95 ≤ 50 ms",
        met=p95 <= 50,
        data={"milliseconds": times},
    )


async def _times(store: Store, query: RunQuery) -> list[float]:
    times = []
    for _ in range(REPETITIONS):
        began = time.perf_counter()
        await store.runs.search(query)
        await store.runs.count(query)
        times.append((time.perf_counter() - began) * 1_000)
    return times
