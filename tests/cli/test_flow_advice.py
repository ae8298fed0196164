"""What is said after a run that did not end well: a command that helps, or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from hutch.cli.flow_advice import advice, approval_route
from hutch.doors.rep.codes import failure
from hutch.doors.rep.outcome import RunEnd, RunOptions

OURS = RunOptions(run_id="r", more={"journal": True})


def failed(error: dict[str, Any] | None, **more: Any) -> RunEnd:
    return RunEnd(run_id="r", flow="demo", engine="hutch", status="failed", exit_code=1, error=error, **more)


@pytest.mark.parametrize(
    "end",
    [
        failed(failure(2001, "503", retriable=True)),
        failed(failure(3001, "late", cause="Timeout")),
        failed(failure(3001, "gone", cause="Ended")),
        failed(failure(2001, "The run was cancelled.", cause="Cancelled"), cancelled=True),
    ],
)
def test_run_that_may_get_further_is_to_be_resumed_if_it_was_written_down(end: RunEnd) -> None:
    assert advice(end, OURS) == "`hutch flow resume r` goes on with it"
    assert advice(end, RunOptions(run_id="r")) is None


@pytest.mark.parametrize(
    "error",
    [
        failure(2001, "SyntaxError", retriable=False),
        failure(1003, "inputs.x: is missing"),
        failure(3001, "There is no such program", cause="CannotStart"),
        failure(3002, "The master key is not the one", cause="VaultError"),
    ],
)
def test_run_that_would_fail_again_is_not(error: dict[str, Any]) -> None:
    assert advice(failed(error), OURS) is None


def test_flag_that_would_have_helped_is_named() -> None:
    refused = failure(2001, "the operator can allow it with h:9 in the setting egress_allow.")
    assert advice(failed(refused), OURS) == "--egress-allow HOST:PORT allows it for one run"
    shell = failed(failure(1002, "has no steps of the kind shell.run", details={"missing": ["shell.run"]}))
    assert "--allow-shell" in (advice(shell, OURS) or "")
    assert advice(shell, RunOptions(run_id="r", allow_shell=True)) is None


def test_run_that_another_process_has_can_be_watched() -> None:
    held = failure(1003, "the run 'r' is under way in another process", details={"held": True})
    assert advice(failed(held), OURS) == "`hutch flow logs r --follow` shows how it goes there"


def test_step_of_a_flow_inside_has_a_route_for_its_approval() -> None:
    assert approval_route("a b", "outer/inner") == "POST /runs/a%20b/approvals/outer/inner"
