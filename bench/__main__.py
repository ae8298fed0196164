"""Runs benchmarks: `python -m bench [--quick] [--repeat N] [--json FILE] [--only NAME …]`.

Prints the table of docs/benchmarks.md and writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop

from bench import machine
from bench.kernel import checkpoints, deno, flatness, quickjs, sessions, startup, suspended, tool_calls
from bench.protocols import abilities, context, flows, scripts, search, tools
from bench.recording import by_protocol, in_kernel
from bench.report import Row, Scale, markdown, merge
from bench.server import async_runs, cluster, console, fairness, run_search

RESULTS = Path(__file__).parent / "results"
BENCHES: dict[str, Callable[[Scale], Coroutine[Any, Any, list[Row]]]] = {
    "warm": quickjs.warm,
    "at-once": quickjs.at_once,
    "tool-calls": tool_calls.tool_calls,
    "recording": by_protocol.by_protocol,
    "recording-kernel": in_kernel.in_kernel,
    "deno": deno.warm,
    "deno-sustained": deno.sustained,
    "suspended": suspended.suspended,
    "checkpoints": checkpoints.checkpoints,
    "sessions": sessions.sessions,
    "command": startup.command,
    "import": startup.imported,
    "flatness": flatness.flatness,
    "tools": tools.tools,
    "scripts": scripts.scripts,
    "abilities": abilities.abilities,
    "flows": flows.flows,
    "context": context.context,
    "search": search.search,
    "fairness": fairness.fairness,
    "runs": run_search.run_search,
    "console": console.console,
    "async": async_runs.async_runs,
    "cluster": cluster.cluster,
}
# These benchmarks run with both event loops: with asyncio's own loop, as in the README's example, and with
# uvloop, as in the server. All others run with uvloop only.
BOTH_LOOPS = ("warm", "at-once", "tool-calls")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, to see that it works")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="repeat all rows; print medians and ranges"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="file for the numbers [default: bench/results/DATE.json]"
    )
    parser.add_argument("--only", nargs="+", choices=BENCHES, metavar="NAME", help=", ".join(BENCHES))
    return parser.parse_args()


def main() -> None:
    options = arguments()
    facts = machine.describe()
    busy = float(str(facts["load_average"])) > machine.BUSY_LOAD
    log(machine.sentence(facts))
    if busy:
        log("WARNING: this machine is busy; do not quote these figures.")
    runs = [run(options.only or list(BENCHES), Scale(options.quick)) for _ in range(options.repeat)]
    rows = merge(runs)
    print(f"\n{machine.sentence(facts)}")
    if busy or options.quick:
        reasons = ["busy machine"] * busy + ["quick run"] * options.quick
        print(f"Do not quote these figures: {' and '.join(reasons)}.")
    print(f"\n{markdown(rows)}\n")
    file = options.json or RESULTS / f"{facts['date']}.json".replace(":", "")
    file.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": facts,
        "quick": options.quick,
        "busy": busy,
        "runs": len(runs),
        "rows": [asdict(row) for row in rows],
    }
    file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    log(f"the numbers are in {file}")


def run(names: Sequence[str], scale: Scale) -> list[Row]:
    rows: list[Row] = []
    for name in names:
        log(f"{name} …")
        if name in BOTH_LOOPS:
            rows += asyncio.run(BENCHES[name](scale))
        rows += uvloop.run(BENCHES[name](scale))
    return rows


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
