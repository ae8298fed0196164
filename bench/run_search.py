"""Times `GET /runs` with filters over many stored runs: `python bench/run_search.py [RUNS] [POSTGRES_URL]`.

Fills a new database with RUNS runs (1 000 000 unless given) of 50 owners, then times each search 30 times.
Prints one row per filter: p50 and p95 in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import tempfile
import time

from hutch.settings import Settings
from hutch.store.models import NewRun, RunRow, now
from hutch.store.store import Store
from hutch.store.tables.run_search import Match, RunQuery

OUTCOMES = ["ok"] * 90 + ["runtime_error"] * 6 + ["timeout"] * 3 + ["memory_limit"]
PROTOCOLS = ("execbox", "tpmjs", "toolscript", "abilities", "mcp")
DETAILS = json.dumps({"tool_calls": 1, "calls": [], "queue_ms": 0.2, "log_lines": 3, "limits": {}})
BATCH = 5_000


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
    "failed": RunQuery(is_failed=True),
    "failed of owner": RunQuery(is_failed=True, owner=of("user7")),
    "code": RunQuery(outcome=of("memory_limit")),
    "tool": RunQuery(tool=of("server.tool7")),
    "tool and failed": RunQuery(tool=of("server.tool7"), is_failed=True),
    "host": RunQuery(host=of("api.example.com")),
    "label": RunQuery(label=of("label7")),
    "label and owner": RunQuery(label=of("label7"), owner=of("user7")),
    "protocol, not owner": RunQuery(protocol=of("mcp"), owner=Match((), ("user7",))),
    "text": RunQuery(text=of("label77")),
    "text that is nowhere": RunQuery(text=of("nowhere")),
    "by duration": RunQuery(sort="duration"),
    "by duration, failed": RunQuery(sort="duration", is_failed=True),
}


async def measure(store: Store) -> None:
    for name, query in QUERIES.items():
        for kind, search in (("page", store.runs.search), ("counts", store.runs.count)):
            times = []
            for _ in range(30):
                began = time.perf_counter()
                await search(query)
                times.append((time.perf_counter() - began) * 1_000)
            times.sort()
            print(f"{name:24} {kind:7} p50 {times[15]:7.2f} ms   p95 {times[28]:7.2f} ms", flush=True)


async def main(count: int, url: str | None) -> None:
    with tempfile.TemporaryDirectory() as home:
        async with await Store.open(Settings(home=home, database_url=url)) as store:
            generator = random.Random(1)
            began = time.perf_counter()
            for start in range(0, count, BATCH):
                await store.runs.add_new([make_run(start + each, generator) for each in range(BATCH)])
            print(f"{count} runs written in {time.perf_counter() - began:.0f} s", flush=True)
            if url is not None:
                await store._database.scan("SELECT 1")
            await measure(store)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    asyncio.run(main(int(arguments[0]) if arguments else 1_000_000, (arguments[1:] or [None])[0]))
