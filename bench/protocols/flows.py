"""Flows: start of a runtime process, a long chain, many requests at once, and polling."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hutch
from bench.kernel.startup import _hutch, compile_sources
from bench.report import Row, Scale, median, number, percentile

STEPS = 1_000
REQUESTS = 200
AT_ONCE = 50


class Runtime:
    """Sends requests to a runtime."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._id = 0

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._id += 1
        request = {"jsonrpc": "2.0", "id": self._id, "method": f"Runtime.{method}", "params": params}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        result: dict[str, Any] = json.loads(self._process.stdout.readline())["result"]
        return result

    def run(self, ir: dict[str, Any], **options: Any) -> tuple[float, list[dict[str, Any]]]:
        """Returns the duration of a run in seconds, and its events."""
        began = time.perf_counter()
        run_id = self.call("StartRun", ir=ir, options=options)["run_id"]
        events: list[dict[str, Any]] = []
        while True:
            response = self.call("Poll", run_id=run_id)
            events += response["events"]
            if response["status"] == "completed":
                return time.perf_counter() - began, events
            if response["status"] == "failed":
                raise RuntimeError(f"the run failed: {response['summary']}")
            time.sleep(0.005)


@contextlib.contextmanager
def serving(**env: str) -> Iterator[Runtime]:
    command = [*_hutch(), "runtime", "serve"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env={**os.environ, **env}) as process:
        try:
            yield Runtime(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def flow(nodes: list[tuple[str, str, dict[str, Any]]], edges: list[tuple[str, str]]) -> dict[str, Any]:
    none = {"timeout_ms": 0, "retry": {"max": 0, "backoff_ms": 0}}
    return {
        "version": "1.0.0",
        "flow": {"name": "bench", "timeout_ms": 0},
        "constants": {"policyRef": "none", "policy": {}},
        "inputs_schema": {},
        "graph": {
            "nodes": [{"id": id, "type": kind, "with": params, **none} for id, kind, params in nodes],
            "edges": [{"from": one, "to": other, "on": "success"} for one, other in edges],
        },
        "metadata": {"generated_at": "2026-01-01T00:00:00Z", "source_file": "bench.json"},
    }


async def flows(scale: Scale) -> list[Row]:
    compile_sources()
    return [_start(scale), _command(scale), await _chain(scale), _requests(scale), _poll(scale)]


def _start(scale: Scale) -> Row:
    measured, reference = [], []
    for _ in range(scale.of(10, 3)):
        began = time.perf_counter()
        with serving() as runtime:
            runtime.call("Capabilities")
            measured.append(time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "pass"], check=True)
        reference.append(time.perf_counter() - began)
    time_, base = median(measured), median(reference)
    return Row(
        what="`hutch runtime serve` until it has answered `Capabilities`",
        measured=f"{number(time_)} s",
        baseline=f"{number(base)} s: `python -c pass`",
        target="≤ 0.15 s",
        met=time_ <= 0.15,
        data={"seconds": time_, "baseline_seconds": base},
    )


def _command(scale: Scale) -> Row:
    measured, alone = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one.json"
        file.write_text(json.dumps(flow([("only", "code.run", {"code": "6 * 7"})], [])))
        # Run a command that is not measured: the first one in a new home runs the self-test of the jail.
        _timed("eval", "6 * 7", home=folder)
        for _ in range(scale.of(10, 3)):
            measured.append(_timed("flow", "run", str(file), home=folder))
            alone.append(_timed("eval", "6 * 7", home=folder))
    time_, base = median(measured), median(alone)
    return Row(
        what="`hutch flow run` of a flow of one `code.run`, the whole command",
        measured=f"{number(time_)} s",
        baseline=f"{number(base)} s: `hutch eval` of the same code",
        target="≤ 0.5 s",
        met=time_ <= 0.5,
        data={"seconds": measured, "eval_seconds": alone},
    )


def _timed(*command: str, home: str) -> float:
    began = time.perf_counter()
    env = {**os.environ, "HUTCH_HOME": home}
    subprocess.run([*_hutch(), *command], capture_output=True, check=True, env=env)
    return time.perf_counter() - began


async def _chain(scale: Scale) -> Row:
    steps = scale.of(STEPS, 100)
    nodes = [("s0", "code.run", {"code": "input + 1", "input": 0})]
    nodes += [
        (f"s{n}", "code.run", {"code": "input + 1", "input": f"$step.s{n - 1}"}) for n in range(1, steps)
    ]
    chained = flow(nodes, [(f"s{n - 1}", f"s{n}") for n in range(1, steps)])
    with tempfile.TemporaryDirectory() as home, serving(HUTCH_HOME=home) as runtime:
        runtime.run(flow([("warm", "code.run", {"code": "1"})], []))
        measured, _ = runtime.run(chained)
        journaled, _ = runtime.run(chained, journal=True)
    async with hutch.Hutch() as sandbox:
        await sandbox.run("1")
        began = time.perf_counter()
        for n in range(steps):
            await sandbox.run(f"const input = {n}; input + 1")
        reference = time.perf_counter() - began
    step, base, journaled_step = (seconds / steps * 1000 for seconds in (measured, reference, journaled))
    return Row(
        what=f"one step in a chain of {number(steps)} `code.run`, and the engine's share of it",
        measured=f"{number(step)} ms, {number(max(0.0, step - base))} ms; with each step on disk before the"
        f" next: {number(journaled_step)} ms, {number(max(0.0, journaled_step - base))} ms",
        baseline=f"{number(base)} ms: the same code without a flow",
        target="≤ 3 ms",
        met=journaled_step - base <= 3,
        data={"step_ms": step, "journaled_step_ms": journaled_step, "baseline_ms": base, "steps": steps},
    )


def _requests(scale: Scale) -> Row:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "bench.upstream", "0.1"]
    times = []
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as upstream:
        assert upstream.stdin is not None
        assert upstream.stdout is not None
        address = f"127.0.0.1:{int(upstream.stdout.readline())}"
        params = {"url": f"http://{address}/"}
        wide = flow([(f"s{n}", "http.get", params) for n in range(REQUESTS)], [])
        with serving(HUTCH_EGRESS_ALLOW=address) as runtime:
            for _ in range(scale.of(7, 3)):
                times.append(runtime.run(wide, concurrency=AT_ONCE)[0])
        upstream.stdin.close()
    time_, first = median(times), times[0]
    return Row(
        what=f"{REQUESTS} `http.get` of an API that takes 100 ms, {AT_ONCE} at once",
        measured=f"{number(time_)} s; the first run of a process {number(first)} s",
        baseline=f"{number(REQUESTS / AT_ONCE * 0.1)} s: the API alone",
        target="≤ 0.8 s",
        met=time_ <= 0.8,
        data={"seconds": time_, "first_seconds": first},
    )


def _poll(scale: Scale) -> Row:
    times = []
    with serving() as runtime:
        run_id = runtime.call("StartRun", ir=flow([("w", "wait", {"seconds": 600})], []))["run_id"]
        runtime.call("Poll", run_id=run_id)
        for _ in range(scale.of(2_000, 200)):
            began = time.perf_counter()
            runtime.call("Poll", run_id=run_id)
            times.append((time.perf_counter() - began) * 1000)
    time_, slow = median(times), percentile(times, 0.99)
    return Row(
        what="`Poll` round trip",
        measured=f"{number(time_)} ms (99 %: {number(slow)} ms)",
        target="≤ 1 ms",
        met=time_ <= 1,
        data={"ms": time_, "p99_ms": slow},
    )
