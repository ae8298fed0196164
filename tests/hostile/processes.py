"""Inspects runner processes from the host's side."""

from __future__ import annotations

import os
import re
from pathlib import Path

import anyio
from tests.sandbox.jails import descendants
from tests.support.processes import TIMEOUT_SECONDS

import hutch


def runners(sandbox: hutch.Hutch) -> set[int]:
    """Returns the ids of the Deno processes that run guests, without the bubblewrap processes around them."""
    pool = sandbox._kernel.pool  # type: ignore[union-attr]
    in_use = [
        *pool.runners.busy,
        *(runner for owned in pool.runners.shared.values() for runner in owned if runner.owner),
    ]
    return {pid for runner in in_use for pid in descendants(runner.pid)[-1:]}


async def wait_for_exit(pid: int) -> None:
    """Waits for a process to exit."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with anyio.fail_after(TIMEOUT_SECONDS):
            await anyio.wait_readable(handle)
    finally:
        os.close(handle)


def resident_bytes(pid: int) -> int:
    """Returns the anonymous memory that a process uses. Deno's binary, which processes share, does
    not count.
    """
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def groups(pid: int) -> set[str]:
    """Returns the control groups of a host."""
    found = (name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    return {name for name in found if re.fullmatch(rf"hutch-\d+-{pid}-\d+-\d+", name)}


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
