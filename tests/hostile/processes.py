"""The processes that hold guests, as the host sees them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import anyio
from tests.processes import PATIENCE
from tests.sandbox.jails import descendants

import hutch


def runners(sandbox: hutch.Hutch) -> set[int]:
    """The runner processes of a sandbox that hold guests: Deno itself, not what started it."""
    pool = sandbox._kernel.pool  # type: ignore[union-attr]
    held = [*pool._busy, *(each for mine in pool._shared.values() for each in mine if each.owner)]
    return {pid for runner in held for pid in descendants(runner.pid)[-1:]}


async def gone(pid: int) -> None:
    """Waits for a process to end."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with anyio.fail_after(PATIENCE):
            await anyio.wait_readable(handle)
    finally:
        os.close(handle)


def resident_bytes(pid: int) -> int:
    """Anonymous memory in use; what of it is Deno's own binary is shared."""
    _, resident, shared, *_ = map(int, Path(f"/proc/{pid}/statm").read_text().split())
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def groups(pid: int) -> set[str]:
    """The control groups that a host has made. Other hosts' come and go while we look."""
    found = (name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names)
    return {name for name in found if re.fullmatch(rf"hutch-\d+-{pid}-\d+-\d+", name)}


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
