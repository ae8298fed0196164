"""Time of `GET /runs` with filters, with databases that contain many runs of 50 owners."""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Iterable
from urllib.parse import urlencode

import httpx2
from tests.support.databases import running_postgres

from bench.protocols.tools import serving
from bench.report import Row, Scale, median, number, percentile
from hutch.settings import Settings
from hutch.store.models import NewRun, RunRow, now
from hutch.vault.flow_keys import open_store

OUTCOMES = ["ok"] * 90 + ["runtime_error"] * 6 + ["timeout"] * 3 + ["memory_limit"]
PROTOCOLS = ("execbox", "tpmjs", "toolscript", "abilities", "mcp")
ENGINES = ("quickjs", "quickjs", "quickjs", "deno")
DETAILS = json.dumps({"tool_calls": 1, "calls": [], "queue_ms": 0.2, "log_lines": 3, "limits": {}})
BATCH = 5_000
REPETITIONS = 40
# Settings with which the server deletes no run because of its age or size.
KEEP = {"HUTCH_KEEP_RUNS_DAYS": "1000", "HUTCH_MAX_RUNS_BYTES": str(10**12)}

QUERIES = {
    "no filter": {},
    "owner": {"owner": "user7"},
    "failed": {"status": "failed"},
    "failed of owner": {"status": "failed", "owner": "user7"},
    "failed, last day": {"status": "failed", "since": "1d"},
    "suspended": {"status": "suspended"},
    "code": {"code": "memory_limit"},
    "engine": {"engine": "deno"},
    "parent": {"parent": "parent7"},
    "tool": {"tool": "server.tool7"},
    "tool and failed": {"tool": "server.tool7", "status": "failed"},
    "tool and owner": {"tool": "server.tool7", "owner": "user7"},
    "not tool": {"tool": "-server.tool7"},
    "host": {"host": "api.example.com"},
    "host and owner": {"host": "api.example.com", "owner": "user7"},
    "label": {"label": "label7"},
    "label and owner": {"label": "label7", "owner": "user7"},
    "label that begins with": {"label": "label7*"},
    "protocol": {"protocol": "mcp"},
    "protocol, not owner": {"protocol": "mcp", "owner": "-user7"},
    "text": {"text": "label77"},
    "text of a message": {"text": "article 777"},
    "text that is nowhere": {"text": "nowhere"},
    "text, failed": {"text": "nowhere", "status": "failed"},
    "text and owner": {"text": "nowhere", "owner": "user7"},
    "not text": {"text": "-label7"},
    "old time": {"since": "20d", "until": "9d"},
    "by duration": {"sort": "duration"},
    "by duration, failed": {"sort": "duration", "status": "failed"},
    "by duration, owner": {"sort": "duration", "owner": "user7"},
    "by duration, tool": {"sort": "duration", "tool": "server.tool7"},
    "all at once": {
        "owner": "user7",
        "protocol": "mcp",
        "status": "failed",
        "tool": "server.tool7",
        "text": "article",
        "since": "30d",
    },
}


def make_run(number: int, random: random.Random) -> NewRun:
    outcome = random.choice(OUTCOMES)
    row = RunRow(
        run_id=f"{random.getrandbits(128):032x}",
        owner=f"user{random.randrange(50)}",
        protocol=random.choice(PROTOCOLS),
        engine=random.choice(ENGINES),
        label=f"label{random.randrange(500)}",
        created_at=now(plus_seconds=-number),
        duration_ms=random.random() * 1_000,
        outcome=outcome,
        details=DETAILS,
        parent_run_id=f"parent{number // 1_000}" if number % 10 == 0 else None,
        error_message=None if outcome == "ok" else f"there is no article {random.randrange(1_000)}",
    )
    tools = (f"server.tool{random.randrange(200)}",) if number % 2 else ()
    return NewRun(row, None, tools, ("api.example.com",) if number % 20 == 0 else ())


async def run_search(scale: Scale) -> list[Row]:
    """Times `GET /runs`: a page of 100 runs with the counts."""
    count = scale.of(1_000_000, 20_000)
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home, running_postgres() as server:
        databases = {"SQLite": {}, "PostgreSQL": {"HUTCH_DATABASE_URL": server.new_database()}}
        rows = []
        for name, variables in databases.items():
            await fill(Settings(home=home, database_url=variables.get("HUTCH_DATABASE_URL")), count)
            rows.append(_row(name, count, await measure(home, QUERIES, **variables)))
        return rows


async def fill(settings: Settings, count: int) -> None:
    generator = random.Random(1)
    async with await open_store(settings) as store:
        for start in range(0, count, BATCH):
            await store.runs.add_new([make_run(start + each, generator) for each in range(BATCH)])


async def measure(home: str, names: Iterable[str], **variables: str) -> dict[str, list[float]]:
    """Returns the times of each query in milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in names}
    async with (
        serving(home, **KEEP, **variables) as server,
        httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60, trust_env=False) as client,
    ):
        # Send each query once per turn, so that a busy moment of the machine affects all queries.
        for turn in range(REPETITIONS + 1):
            for name, measured in times.items():
                began = time.perf_counter()
                response = await client.get(f"/runs?{urlencode(QUERIES[name])}")
                elapsed = (time.perf_counter() - began) * 1_000
                response.raise_for_status()
                if turn:  # Do not count the first turn, which reads the database into memory.
                    measured.append(elapsed)
    return times


def _row(name: str, count: int, times: dict[str, list[float]]) -> Row:
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
