"""`hutch cluster status`: lists the machines of a cluster."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

from hutch._version import __version__
from hutch.cli.support import event_loop
from hutch.cli.support.console import print_json_value, print_note, print_table
from hutch.cluster.connection import ClusterConnection, check_settings
from hutch.cluster.membership import worker_problem
from hutch.cluster.messages import PLACE_KINDS, FrontAnnouncement, WorkerAnnouncement
from hutch.cluster.node import ANNOUNCE_SECONDS, Node
from hutch.errors import SettingError
from hutch.settings import Settings, load_settings

# Time to wait for announcements. Every machine announces itself within this time.
LISTEN_SECONDS = ANNOUNCE_SECONDS * 2 + 0.5


def show_status(url: str | None, *, as_json: bool) -> int:
    settings = load_settings({"cluster_url": url})
    if settings.cluster_url is None:
        raise SettingError(
            "cluster_url: expected the address of a NATS server. Use --cluster nats://HOST:4222."
        )
    rows = event_loop.run_async(_listen(settings))
    if as_json:
        print_json_value({"nodes": rows})
    elif rows:
        headers = ("kind", "name", "version", "isolation", "places", "used", "heartbeat", "state")
        print_table(headers, [_cells(row) for row in rows])
    else:
        print_note("no machine of this cluster has announced itself; do all have the same name and secret?")
    return 0 if any(row["kind"] == "worker" and row["state"] == "ok" for row in rows) else 1


async def _listen(settings: Settings) -> list[dict[str, Any]]:
    check_settings(settings)
    connection = await ClusterConnection.open(settings, "hutch cluster status")
    node = Node(settings, connection, __version__)
    workers: dict[str, tuple[WorkerAnnouncement, float]] = {}
    fronts: dict[str, tuple[FrontAnnouncement, float]] = {}

    def worker_heard(announcement: WorkerAnnouncement) -> None:
        workers[announcement.id] = announcement, monotonic()
        if announcement.is_leaving:
            del workers[announcement.id]

    def front_heard(announcement: FrontAnnouncement) -> None:
        fronts[announcement.id] = announcement, monotonic()
        if announcement.is_leaving:
            del fronts[announcement.id]

    try:
        await node.follow_workers(worker_heard)
        await node.follow_fronts(front_heard)
        await asyncio.sleep(LISTEN_SECONDS)
    finally:
        await connection.close()
    rows = [_front_row(*heard) for heard in fronts.values()]
    rows += [_worker_row(settings, *heard) for heard in workers.values()]
    return sorted(rows, key=lambda row: (row["kind"], row["name"], row["id"]))


def _front_row(front: FrontAnnouncement, heard_at: float) -> dict[str, Any]:
    return {
        "kind": "front",
        "id": front.id,
        "name": front.node,
        "version": front.version,
        "isolation": None,
        "places": {},
        "used": front.wanted,
        "heartbeat_seconds": round(monotonic() - heard_at, 2),
        "state": "ok",
    }


def _worker_row(settings: Settings, worker: WorkerAnnouncement, heard_at: float) -> dict[str, Any]:
    used = {kind: sum(counts.get(kind, 0) for counts in worker.used.values()) for kind in PLACE_KINDS}
    state = worker_problem(worker, __version__, settings) or ("draining" if worker.is_draining else "ok")
    return {
        "kind": "worker",
        "id": worker.id,
        "name": worker.node,
        "version": worker.version,
        "isolation": worker.isolation,
        "places": worker.places,
        "used": used,
        "heartbeat_seconds": round(monotonic() - heard_at, 2),
        "state": state,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    def counts(values: dict[str, int]) -> str:
        return ", ".join(f"{count} {kind}" for kind, count in values.items()) or "-"

    return (
        row["kind"],
        row["name"],
        row["version"],
        row["isolation"] or "-",
        counts(row["places"]),
        counts(row["used"]),
        f"{row['heartbeat_seconds']:.1f} s ago",
        row["state"],
    )
