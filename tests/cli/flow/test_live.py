"""Tests of the hint that `hutch flow run` prints after a failed run."""

from __future__ import annotations

from typing import Any

import pytest

from hutch.cli.flow.live import next_step_hint
from hutch.protocols.rep.jsonrpc import rep_error
from hutch.protocols.rep.orchestrator.options import RunOptions, RunOutcome

JOURNALED = RunOptions(run_id="r", extra={"journal": True})


def failed(error: dict[str, Any] | None, **more: Any) -> RunOutcome:
    return RunOutcome(
        run_id="r", flow="demo", engine="hutch", status="failed", exit_code=1, error=error, **more
    )


@pytest.mark.parametrize(
    "end",
    [
        failed(rep_error(2001, "503", retriable=True)),
        failed(rep_error(3001, "late", cause="Timeout")),
        failed(rep_error(3001, "gone", cause="Ended")),
        failed(rep_error(2001, "The run was cancelled.", cause="Cancelled"), cancelled=True),
    ],
)
def test_run_that_may_succeed_when_resumed_gets_a_hint_to_resume(end: RunOutcome) -> None:
    assert next_step_hint(end, JOURNALED) == "`hutch flow resume r` resumes it"
    assert next_step_hint(end, RunOptions(run_id="r")) is None


@pytest.mark.parametrize(
    "error",
    [
        rep_error(1003, "inputs.x: is missing"),
        rep_error(3001, "There is no such program", cause="CannotStart"),
        rep_error(3002, "The master key is not the one", cause="VaultError"),
    ],
)
def test_run_that_would_fail_again_gets_no_hint(error: dict[str, Any]) -> None:
    assert next_step_hint(failed(error), JOURNALED) is None


def test_failed_step_gets_a_hint_to_its_values() -> None:
    hint = next_step_hint(failed(rep_error(2001, "SyntaxError", retriable=False)), JOURNALED)
    assert hint == "`hutch flow logs r --values` shows what its steps got and returned"


def test_option_that_would_have_helped_is_named() -> None:
    refused = rep_error(2001, "the operator can allow it with h:9 in the setting egress_allow.")
    hint = "--egress-allow HOST:PORT allows this address for one run"
    assert next_step_hint(failed(refused), JOURNALED) == hint
    shell = failed(rep_error(1002, "has no steps of the kind shell.run", details={"missing": ["shell.run"]}))
    assert "--allow-shell" in (next_step_hint(shell, JOURNALED) or "")
    assert next_step_hint(shell, RunOptions(run_id="r", allow_shell=True)) is None


def test_run_in_another_process_can_be_followed() -> None:
    held = rep_error(1003, "the run 'r' is running in another process", details={"held": True})
    assert next_step_hint(failed(held), JOURNALED) == "`hutch flow logs r --follow` shows its progress"
