"""What to do next after a run that did not end well, where that is a command of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

if TYPE_CHECKING:
    from hutch.doors.rep.outcome import RunEnd, RunOptions

_FOR_GOOD = ("CannotStart", "ProtocolMismatch", "VaultError")


def advice(end: RunEnd, options: RunOptions) -> str | None:
    """One line, or None where there is nothing that would help."""
    if end.status == "completed":
        return None
    error = end.error or {}
    data = error.get("data") or {}
    details = data.get("details")
    details = details if isinstance(details, dict) else {}
    missing = details.get("missing")
    if isinstance(missing, list) and "shell.run" in missing and not options.allow_shell:
        return "--allow-shell lets steps run programs, in the jail"
    if "journal" not in options.more:
        return None
    if details.get("held"):
        return f"`hutch flow logs {end.run_id} --follow` shows how it goes there"
    if "egress_allow" in str(error.get("message")):
        return "--egress-allow HOST:PORT allows it for one run"
    # What no retry can mend would fail again: a run goes on with the flow as it was.
    is_lost = error.get("code", 0) >= 3000 and data.get("cause") not in _FOR_GOOD
    if end.cancelled or data.get("retriable") or is_lost:
        return f"`hutch flow resume {end.run_id}` goes on with it"
    return None


def approval_route(run_id: str, step_id: str) -> str:
    return f"POST /runs/{quote(run_id, safe='')}/approvals/{quote(step_id)}"
