"""Tools of npm packages over HTTP, compared with installing and starting a program for every call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx2

from bench.baseline.naive import install, naive_call, program
from bench.client import Client
from bench.report import Row, Scale, median, number, percentile

PACKAGE, VERSION, NAME = "@tpmjs/tools-template-render", "0.1.0", "templateRenderTool"
PARAMS: dict[str, Any] = {"template": "Hello {{name}}!", "data": {"name": "Bo"}}
CALL = {"packageName": PACKAGE, "version": VERSION, "name": NAME, "params": PARAMS}
# Small packages whose tools can be called without a network; their results do not matter here.
MANY = [
    "@tpmjs/tools-template-render", "@tpmjs/tools-markdown-to-html", "@tpmjs/tools-diff-text-unified",
    "@tpmjs/tools-bootstrap-ci", "@tpmjs/tools-recipe-hash", "@tpmjs/tools-recipe-emit",
    "@tpmjs/tools-recipe-generate-from-grammar", "@tpmjs/tools-recipe-publish-manifest",
    "@tpmjs/tools-postmortem-action-extractor", "@tpmjs/official-revenue-breakdown", "@tpmjs/feedback-themes",
    "left-pad", "is-odd", "is-even", "ms", "slugify", "nanoid", "camelcase", "deepmerge", "mitt",
]  # fmt: skip


class Server:
    """A `hutch serve` process with its own home."""

    def __init__(self, client: httpx2.AsyncClient, pid: int, home: Path) -> None:
        self.client = client
        self.pid = pid
        self.home = home

    async def call(self, body: dict[str, Any] = CALL, *, expect_success: bool = True) -> float:
        began = time.perf_counter()
        response = await self.client.post("/execute-tool", json=body)
        seconds = time.perf_counter() - began
        if expect_success and response.json().get("success") is not True:
            raise RuntimeError(f"the tool failed: {response.text}")
        return seconds

    @property
    def port(self) -> int:
        assert self.client.base_url.port is not None
        return self.client.base_url.port

    @contextlib.asynccontextmanager
    async def minimal_client(self) -> AsyncIterator[Client]:
        client = Client(self.port)
        await client.open()
        try:
            yield client
        finally:
            client.close()

    async def wait_for_spare(self) -> None:
        """Waits until a spare has imported the package and no process is being started."""
        while True:
            text = (await self.client.get("/metrics")).text
            if 'hutch_processes_warm{engine="npm"} 1' in text and "hutch_processes_starting 0" in text:
                # The metric counts the spare as warm before it has imported the package.
                return await asyncio.sleep(0.5)
            await asyncio.sleep(0.02)

    async def wait_settled(self) -> None:
        """Waits until no package is being installed in the background."""
        while True:
            if not [*(self.home / "npm" / "staging").iterdir()]:
                return
            await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def serving(
    home: str, hutch: Sequence[str] = (str(Path(sys.executable).parent / "hutch"),), **settings: str
) -> AsyncIterator[Server]:
    """Starts a server. `hutch` is the command."""
    command = [*hutch, "serve", "--port", "0"]
    env = {**os.environ, "HUTCH_HOME": home, "HUTCH_LOG_LEVEL": "error", **settings}
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().split()[2]
        async with httpx2.AsyncClient(base_url=url, timeout=200, trust_env=False) as client:
            yield Server(client, process.pid, Path(home))
    finally:
        process.terminate()
        await process.wait()


async def tools(scale: Scale) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
        rows = [await _first(home, scale)]
        rows += await _repeated(home, scale)
        rows.append(await _without_spare(home, scale))
        rows.append(await _at_once(home))
        rows.append(await _growth(home, scale))
    return rows


async def _first(home: str, scale: Scale) -> Row:
    """Measures the first call of a package. Every sample uses a new home, which has neither the package nor
    the installer's cache.
    """
    measured: list[float] = []
    reference: list[float] = []
    for _ in range(scale.of(9, 1)):
        with tempfile.TemporaryDirectory(prefix="hutch-bench-") as folder:
            reference.append(await install(PACKAGE, VERSION, folder))
        with tempfile.TemporaryDirectory(prefix="hutch-bench-") as folder:
            async with serving(folder) as server:
                measured.append(await server.call())
    async with serving(home) as server:
        await server.call()
    total, registry = median(measured), median(reference)
    # The pairs were measured one after the other, because the registry's latency varies over time by more
    # than the difference between the two.
    difference = median(our - their for our, their in zip(measured, reference, strict=True))
    return Row(
        what="tool: first call of a new package (median of the differences from the baseline)",
        measured=f"{number(total)} s ({number(difference)} s)",
        baseline=f"{number(registry)} s: `deno install` of the same, empty cache, before each call",
        target="≤ 2 s, at most 0.3 s more than the registry",
        met=total <= 2 and difference <= 0.3,
        data={"seconds": measured, "install_seconds": reference},
    )


async def _repeated(home: str, scale: Scale) -> list[Row]:
    spaced: list[float] = []
    async with serving(home) as server, server.minimal_client() as client:
        await server.call()
        for _ in range(scale.of(40, 5)):
            await server.wait_for_spare()
            began = time.perf_counter()
            await client.post("/execute-tool", CALL)
            spaced.append((time.perf_counter() - began) * 1000)
        back_to_back = [await server.call() * 1000 for _ in range(scale.of(40, 5))]
    naive = [await naive_call(PACKAGE, VERSION, NAME, PARAMS) * 1000 for _ in range(scale.of(5, 1))]
    p50, p95, base = median(spaced), percentile(spaced, 0.95), median(naive)
    baseline_label = (
        f"`npm install` and `{program()}`" if program() == "node" else "`deno install` and `deno run`"
    )
    return [
        Row(
            what="tool: repeated call over HTTP, a spare ready: p50 / p95 (back to back: p50)",
            measured=f"{number(p50)} / {number(p95)} ms ({number(median(back_to_back))} ms)",
            baseline=f"{number(base)} ms: {baseline_label} for every call",
            target="p50 ≤ 8 ms",
            met=p50 <= 8,
            data={"spaced_ms": spaced, "back_to_back_ms": back_to_back, "naive_ms": naive},
        )
    ]


async def _without_spare(home: str, scale: Scale) -> Row:
    async with serving(home, HUTCH_MAX_SPARES="0") as server:
        await server.call()
        seconds = [await server.call() for _ in range(scale.of(20, 3))]
    return Row(
        what="tool: package installed, no spare",
        measured=f"{number(median(seconds) * 1000)} ms",
        target="≤ 250 ms",
        met=median(seconds) <= 0.25,
        data={"seconds": seconds},
    )


async def _at_once(home: str) -> Row:
    async with serving(home) as server:
        await server.call()
        await server.wait_for_spare()
        waits: list[float] = []
        began = time.perf_counter()
        calls = asyncio.gather(*(server.call() for _ in range(8)))
        while not calls.done():
            requested = time.perf_counter()
            await server.client.get("/health")
            waits.append((time.perf_counter() - requested) * 1000)
            await asyncio.sleep(0.005)
        await calls
        seconds = time.perf_counter() - began
    p99 = percentile(waits, 0.99)
    return Row(
        what="tool: 8 at once, package installed: total time; `/health` p99 meanwhile",
        measured=f"{number(seconds)} s; {number(p99)} ms",
        target="≤ 1.5 s; ≤ 50 ms",
        met=seconds <= 1.5 and p99 <= 50,
        data={"seconds": seconds, "health_ms": waits},
    )


async def _growth(home: str, scale: Scale) -> Row:
    """Checks that processes, memory and files do not grow in the second half of many calls. In the first
    half, caches fill up.
    """
    order = random.Random(1).choices(MANY, k=scale.of(200, 20))
    async with serving(home) as server:
        for package in [*dict.fromkeys(order)] * 2:
            await server.call({"packageName": package, "name": "default"}, expect_success=False)
        await server.wait_settled()
        seen: list[tuple[int, float, int]] = []
        for index, package in enumerate(order):
            await server.call({"packageName": package, "name": "default"}, expect_success=False)
            if index + 1 in (len(order) // 2, len(order)):
                # Give processes that are ending the time to do so.
                await asyncio.sleep(1)
                seen.append(_footprint(server))
    (processes, memory, files), after = seen
    is_flat = after[0] <= processes + 1 and after[1] <= memory * 1.1 + 10 and after[2] <= files
    return Row(
        what=f"tool: {len(order)} calls of {len({*order})} packages: processes, memory, files at half / end",
        measured=f"{processes} → {after[0]}, {number(memory)} → {number(after[1])} MB, {files} → {after[2]}",
        target="no growth",
        met=is_flat,
        data={"half_way": seen[0], "after": after},
    )


def _footprint(server: Server) -> tuple[int, float, int]:
    """Returns the number of descendants of the server, the server's memory in MB, and the number of files in
    its home.
    """
    waiting, found = [server.pid], 0
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            waiting += map(int, children)
            found += len(children)
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    files = sum(len(names) for _, _, names in os.walk(server.home / "npm"))
    return found, pages * os.sysconf("SC_PAGESIZE") / 1e6, files
