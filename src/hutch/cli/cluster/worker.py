"""`hutch worker`: runs executions for the servers of a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import uvloop

from hutch import logs
from hutch.app.app import App
from hutch.app.cluster import open_worker
from hutch.cli.support import event_loop
from hutch.cli.support.console import print_line, print_note
from hutch.cli.support.signals import ShutdownSignals
from hutch.cluster.connection import check_settings
from hutch.egress import policy
from hutch.errors import InvalidInput, SettingError
from hutch.sandbox.runner.profile import ENGINES
from hutch.settings import Settings, load_settings

ALIVE_FILE = "worker.alive"
"""File in HUTCH_HOME that a worker touches every second while it is connected, for probes."""


def run_worker(url: str | None, places: Sequence[str], name: str | None) -> int:
    """Serves until a signal. Returns 0 if everything that was running could finish."""
    flags = {"cluster_url": url, "worker_places": parse_places(places) or None, "cluster_node": name}
    settings = load_settings(flags)
    if settings.cluster_url is None:
        raise SettingError(
            "cluster_url: expected the address of a NATS server. Use --cluster nats://HOST:4222."
        )
    check_settings(settings)
    policy.check_settings(settings)
    logs.configure(settings)
    return uvloop.run(_run(settings))


def parse_places(texts: Sequence[str]) -> dict[str, int]:
    """Parses `ENGINE=COUNT`. Raises InvalidInput."""
    places: dict[str, int] = {}
    for text in texts:
        engine, _, count = text.partition("=")
        if engine not in (*ENGINES, "npm", "script") or not count.isdecimal():
            raise InvalidInput("--places", f"expected ENGINE=COUNT, such as quickjs=8, got {text!r}.")
        places[engine] = int(count)
    return places


async def _run(settings: Settings) -> int:
    signals = ShutdownSignals()
    app = await App.create(settings)
    try:
        await app.warm_up()
        worker, connection = await open_worker(app)
        try:
            alive = settings.home_path / ALIVE_FILE
            worker.on_announce = lambda: _touch(alive)
            places = ", ".join(f"{count} {kind}" for kind, count in worker.places.items())
            print_line(f"Hutch worker   isolation: {app.verdict.isolation}   places: {places}")
            event_loop.end_startup()
            await signals.first.wait()
            print_note("draining; send the signal again to stop at once")
            draining = asyncio.create_task(worker.drain(settings.drain_seconds))
            second = asyncio.create_task(signals.second.wait())
            await asyncio.wait({draining, second}, return_when=asyncio.FIRST_COMPLETED)
            second.cancel()
            finished = draining.done() and draining.result()
            draining.cancel()
            return 0 if finished else 1
        finally:
            await worker.close()
            await connection.close()
    finally:
        await app.close()


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.touch()
