"""Finds out whether the process that holds a lease in a shared store is still alive."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hutch.sandbox import temp_dirs
from hutch.store.models import now

RENEW_SECONDS = 10.0
"""Interval at which a holder renews its lease."""
LEASE_SECONDS = 60.0
"""Time without a renewal after which a holder on another machine is considered dead."""


def this_holder() -> str:
    """Returns an id of this process that is unique across machines."""
    return f"{_boot_id()} {temp_dirs.host_id()}"


def is_alive(holder: str, seen_at: str | None) -> bool:
    """Returns True if the process `holder` is alive. `seen_at` is the time of its last renewal.

    A process of this machine is looked up directly. For other machines, the time of the last renewal decides.
    """
    boot_id, _, process_id = holder.partition(" ")
    if boot_id == _boot_id() and _pid_namespace(process_id) == _pid_namespace(temp_dirs.host_id()):
        return not temp_dirs.has_host_exited(process_id)
    return (seen_at or "") > now(plus_seconds=-LEASE_SECONDS)


def _pid_namespace(process_id: str) -> str:
    return process_id.partition("-")[0]


@cache
def _boot_id() -> str:
    """Returns an id that changes at every boot, so that processes of an earlier boot are considered dead."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
