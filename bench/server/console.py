"""The web console in a browser while the server runs many executions: long tasks, and memory of the page.

The browser measures long tasks by the clock, so on a busy machine a task may be long because it waited for a
core. So a trace of the last minute also shows the CPU time of its longest task.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
from typing import Any

from playwright.async_api import Browser, Page, async_playwright

from bench.client import Client
from bench.protocols.tools import serving
from bench.report import Row, Scale, number

CLIENTS = 16
BODY = {"code": "1 + 1"}
MAX_TRACE_SECONDS = 60
# One view of each kind that the server updates live.
VIEWS = ("", "runs")
OBSERVE_LONG_TASKS = """
globalThis.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => duration)))
  .observe({ entryTypes: ["longtask"] });
"""


async def console(scale: Scale) -> list[Row]:
    return [await measure(scale.of(600, 20))]


async def measure(seconds: float) -> Row:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        raise RuntimeError("the console is measured in Chromium: run `apt install chromium`")
    with tempfile.TemporaryDirectory(prefix="hutch-bench-") as home:
        async with serving(home) as server, async_playwright() as playwright:
            arguments = ["--no-sandbox"] if os.getuid() == 0 else []
            browser = await playwright.chromium.launch(executable_path=program, args=arguments)
            try:
                pages = [await _open(await browser.new_page(), server.port, view) for view in VIEWS]
                # Remove the tasks of loading the pages from the list: only tasks under load count.
                at_start = [task for page in pages for task in await page.evaluate("longTasks.splice(0)")]
                load = asyncio.create_task(_load(server.port, seconds))
                # Lists and charts fill up in the first tenth of the time. Memory is compared with the memory
                # after that.
                await asyncio.sleep(seconds / 10)
                before = await _heap_bytes(pages)
                await asyncio.sleep(max(0.0, seconds * 0.9 - MAX_TRACE_SECONDS))
                await browser.start_tracing(page=pages[0], categories=["toplevel"])
                executions = await load
                cpu_ms = await _longest_cpu_ms(browser)
                after = await _heap_bytes(pages)
                long_tasks = [task for page in pages for task in await page.evaluate("longTasks")]
            finally:
                await browser.close()
    longest = max(long_tasks, default=0.0)
    return Row(
        what=f"console, 2 pages open for {number(seconds)} s: executions/s, longest task (CPU time), memory",
        measured=f"{number(executions / seconds)}/s; {number(float(longest))} ms ({number(cpu_ms)} ms);"
        f" {number(before / 1e6)} → {number(after / 1e6)} MB",
        target="500/s; no task over 100 ms; at most 10 MB more",
        met=executions / seconds >= 500 and longest <= 100 and after - before <= 10e6,
        data={
            "executions": executions,
            "long_tasks_ms": long_tasks,
            "long_tasks_at_start_ms": at_start,
            "longest_cpu_ms": cpu_ms,
            "heap_bytes": [before, after],
        },
    )


async def _open(page: Page, port: int, view: str) -> Page:
    await page.add_init_script(OBSERVE_LONG_TASKS)
    await page.goto(f"http://127.0.0.1:{port}/#/{view}")
    await page.get_by_role("heading", level=1).wait_for()
    return page


async def _longest_cpu_ms(browser: Browser) -> float:
    """Ends the trace. Returns the CPU time of the longest task in the main thread of a page."""
    events = json.loads(await browser.stop_tracing())["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event["name"] == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    times = [
        event.get("tdur", 0)
        for event in events
        if event["ph"] == "X" and "RunTask" in event["name"] and (event["pid"], event["tid"]) in threads
    ]
    return max(times, default=0) / 1_000


async def _load(port: int, seconds: float) -> int:
    """Sends at most 500 executions per second. Returns their number."""
    end = time.perf_counter() + seconds
    return sum(await asyncio.gather(*(_send(port, end) for _ in range(CLIENTS))))


async def _send(port: int, end: float) -> int:
    client = Client(port)
    await client.open()
    interval, sent = CLIENTS / 500, 0
    following = time.perf_counter()
    while time.perf_counter() < end:
        await client.post("/run", BODY)
        sent += 1
        following += interval
        await asyncio.sleep(max(0.0, following - time.perf_counter()))
    client.close()
    return sent


async def _heap_bytes(pages: list[Page]) -> float:
    """Returns the size of the live objects of all pages, after a garbage collection."""
    total = 0.0
    for page in pages:
        session: Any = await page.context.new_cdp_session(page)
        await session.send("HeapProfiler.collectGarbage")
        total += (await session.send("Runtime.getHeapUsage"))["usedSize"]
        await session.detach()
    return total
