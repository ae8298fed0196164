"""Leases of runs. A lease names the process that executes a run."""

from __future__ import annotations

from collections.abc import Collection

from hutch.sandbox.process_lease import RENEW_SECONDS, is_alive, this_holder
from hutch.store.models import FlowRunHead

__all__ = ["RENEW_SECONDS", "SERVER_ORIGIN", "is_held", "run_state", "this_holder"]

SERVER_ORIGIN = "server"
"""Origin of runs that a server resumes by itself."""


def is_held(run: FlowRunHead) -> bool:
    """Returns True if a live process executes the run."""
    return bool(run.holder) and not run.is_over and is_alive(run.holder, run.seen_at)


def run_state(run: FlowRunHead, waiting_for: Collection[str] = ()) -> str:
    """Returns the state of a run as users see it: usually the stored status. A run with the outcome
    `cancelled` is `cancelled`. An unfinished run is `waiting` if steps wait for an approval, or `interrupted`
    if no process executes it.

    `waiting_for` are the waiting steps. A waiting run of a server is never `interrupted`, because the server
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
