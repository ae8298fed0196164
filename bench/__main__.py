"""`python -m bench [--quick] [--json FILE] [--only NAME …]`: the README's table, and JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path

import uvloop

from bench import (
    abilities,
    deno,
    flatness,
    flows,
    machine,
    quickjs,
    scripts,
    startup,
    suspended,
    tool_calls,
    tools,
)
from bench.report import Row, Scale, markdown

RESULTS = Path(__file__).parent / "results"
BENCHES: dict[str, Callable[[Scale], Awaitable[list[Row]]]] = {
    "warm": quickjs.warm,
    "at-once": quickjs.at_once,
    "tool-calls": tool_calls.tool_calls,
    "deno": deno.warm,
    "deno-sustained": deno.sustained,
    "suspended": suspended.suspended,
    "command": startup.command,
    "import": startup.imported,
    "flatness": flatness.flatness,
    "tools": tools.tools,
    "scripts": scripts.scripts,
    "abilities": abilities.abilities,
    "flows": flows.flows,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: to see that it works")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where the numbers go [bench/results/DATE.json]"
    )
    parser.add_argument("--only", nargs="+", choices=BENCHES, metavar="NAME", help=", ".join(BENCHES))
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    where = machine.describe()
    busy = float(str(where["load_average"])) > machine.BUSY_LOAD
    tell(machine.sentence(where))
    if busy:
        tell("WARNING: something else keeps this machine busy; these figures are not worth quoting.")
    rows: list[Row] = []
    for name in chosen.only or BENCHES:
        tell(f"{name} …")
        rows += uvloop.run(BENCHES[name](Scale(chosen.quick)))
    print(f"\n{machine.sentence(where)}")
    if busy or chosen.quick:
        print(
            "Not to be quoted: " + " and ".join(["busy machine"] * busy + ["quick run"] * chosen.quick) + "."
        )
    print(f"\n{markdown(rows)}\n")
    file = chosen.json or RESULTS / f"{where['date']}.json".replace(":", "")
    file.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": where, "quick": chosen.quick, "busy": busy, "rows": [asdict(row) for row in rows]}
    file.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    tell(f"the numbers are in {file}")


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
