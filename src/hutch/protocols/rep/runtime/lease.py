"""Leases of runs. A lease names the process that executes a run."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from pathlib import Path

from hutch.sandbox import temp_dirs
from hutch.store.models import FlowRunHead, now

SERVER_ORIGIN = "server"
"""Origin of runs that a server resumes by itself."""
RENEW_SECONDS = 10.0
"""Interval at which a holder renews its lease."""
LEASE_SECONDS = 60.0
"""Time without a renewal after which a holder on another machine is considered dead."""


@cache
def this_holder() -> str:
    """Returns an id of this process that is unique across machines."""
    return f"{_boot_id()} {temp_dirs.host_id()}"


def is_held(run: FlowRunHead) -> bool:
    """Returns True if a live process executes the run.

    A process of this machine is looked up directly. For other machines, the time of the last renewal decides.
    """
    if not run.holder or run.is_over:
        return False
    boot_id, _, process_id = run.holder.partition(" ")
    if boot_id == _boot_id() and _pid_namespace(process_id) == _pid_namespace(temp_dirs.host_id()):
        return not temp_dirs.has_host_exited(process_id)
    return (run.seen_at or "") > now(plus_seconds=-LEASE_SECONDS)


def _pid_namespace(process_id: str) -> str:
    return process_id.partition("-")[0]


def run_state(run: FlowRunHead, waiting_for: Collection[str] = ()) -> str:
    """Returns the state of a run as users see it. It is the stored status, or `cancelled`, `interrupted` if
    no process executes the run, or `waiting` if steps wait for an approval.

    `waiting_for` are the waiting steps. A waiting run of a server is not `interrupted`, because the server
    resumes it when an answer arrives.
    """
    if run.outcome == "cancelled":
        return "cancelled"
    if run.status != "running":
        return run.status
    can_continue = is_held(run)
    if waiting_for and (can_continue or run.origin == SERVER_ORIGIN):
        return "waiting"
    return "running" if can_continue else "interrupted"


@cache
def _boot_id() -> str:
    """Returns an id that changes at every boot, so that processes of an earlier boot are considered dead."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
