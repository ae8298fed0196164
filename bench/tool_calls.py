"""Cost of a tool call: many sequential calls in one execution."""

from __future__ import annotations

import hutch
from bench.baseline import FreshVms
from bench.baseline.echo import echo
from bench.report import Row, Scale, median, number

CALLS = 1_000
CODE = f"for (let n = 0; n < {CALLS};) n = await tools.next({{ n }})"


async def next_number(n: int) -> int:
    """Return n + 1."""
    return n + 1


async def tool_calls(scale: Scale) -> list[Row]:
    """Measures calls with validated input and output in both engines; the baseline is a bare round trip."""
    tools = [hutch.tool(next_number, name="next")]
    times: dict[str, list[float]] = {"quickjs": [], "deno": [], "baseline": [], "echo": []}
    async with hutch.Hutch() as h, FreshVms() as fresh:
        for _ in range(scale.of(15, 4)):
            for engine in ("quickjs", "deno"):
                result = await h.run(CODE, tools=tools, engine=engine, timeout_ms=60_000)
                if not result.ok:
                    raise RuntimeError(f"{engine}: {result.error}")
                times[engine].append(result.duration_ms / CALLS)
            times["baseline"].append(await fresh.call(CALLS) / CALLS)
            # The first round warms up.
            times["echo"] += (await echo(CALLS, 3))[1:]
    cost = {name: median(each) for name, each in times.items()}
    return [
        Row(
            what=f"a tool call ({CALLS:,} sequential in one execution)".replace(",", " "),
            measured=f"{number(cost['quickjs'])} ms; deno {number(cost['deno'])} ms",
            baseline=f"{number(cost['echo'])} ms: a message of that size to a bare Deno and back;"
            f" {number(cost['baseline'])} ms: an async function in the same process, without validation",
            target="≤ 0.15 ms",
            met=cost["quickjs"] <= 0.15,
            data={f"{name}_ms": value for name, value in cost.items()},
        )
    ]
