"""Who holds a run of a flow: which process, and whether it is still there."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hutch.sandbox import identity
from hutch.store.rows import FlowRunHead, now

BEAT_SECONDS = 10.0
"""How often a holder says that it is there."""
SILENT_SECONDS = 60.0
"""After so long a silence, a holder that we cannot look for is believed to be gone."""


@cache
def here() -> str:
    """This process; no other has that name, on whatever machine."""
    return f"{_machine()} {identity.of_this_host()}"


def is_held(run: FlowRunHead) -> bool:
    """Whether somebody runs it. Those of our own machine are looked for; others have to say so."""
    if not run.holder or run.is_over:
        return False
    machine, _, process = run.holder.partition(" ")
    if machine == _machine() and _namespace(process) == _namespace(identity.of_this_host()):
        return not identity.is_gone(process)
    return (run.seen_at or "") > now(plus_seconds=-SILENT_SECONDS)


def _namespace(process: str) -> str:
    return process.partition("-")[0]


def state(run: FlowRunHead) -> str:
    """Its status or, finer: `cancelled`, and `interrupted` for one that nobody goes on with."""
    if run.outcome == "cancelled":
        return "cancelled"
    return "interrupted" if run.status == "running" and not is_held(run) else run.status


@cache
def _machine() -> str:
    """Since it was started: processes of before are not there any more."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
