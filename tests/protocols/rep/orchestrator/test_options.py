"""The outcome of a run as JSON."""

from __future__ import annotations

import pytest

from hutch.protocols.rep.orchestrator.options import RunOutcome


@pytest.mark.parametrize(
    ("status", "cancelled", "state"),
    [("completed", False, "completed"), ("failed", False, "failed"), ("failed", True, "cancelled")],
)
def test_outcome_has_a_state_and_until_0_3_its_former_name(status: str, cancelled: bool, state: str) -> None:
    fields = {"status": status, "cancelled": cancelled}
    outcome = RunOutcome(run_id="r", flow="f", engine="hutch", exit_code=0, **fields).wire  # type: ignore[arg-type]
    assert (outcome["state"], outcome["status"]) == (state, status)
