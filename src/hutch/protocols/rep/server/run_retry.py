"""Runs a flow run again from one of its steps, with the recorded outputs of the steps before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hutch.errors import HutchError, InvalidInput
from hutch.problems import describe_value
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.runtime.journal import to_json
from hutch.text import cut, did_you_mean, now_rfc3339

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.store.models import FlowRunHead
    from hutch.store.tables.journal import JournalTable

_MAX_NAMED = 20


class RunInProgress(HutchError):
    """The run is running. Cancel it first."""

    code = "conflict"


class RetryPlan(NamedTuple):
    from_step: str
    repeated: list[str]
    """The step and all steps after it, in order."""
    kept: list[str]
    """Finished steps whose outputs are kept, in order."""

    @property
    def text(self) -> str:
        kept = f"keeps the outputs of {_named(self.kept)}" if self.kept else "keeps no outputs"
        return f"retry from {self.from_step}: runs {_named(self.repeated)} again; {kept}"


def plan_retry(flow: Flow, finished: set[str], from_step: str, run_id: str) -> RetryPlan:
    """Returns the steps that a retry repeats and the steps whose results the retry keeps. Raises
    InvalidInput.

    `finished` are the steps with a recorded result.
    """
    if from_step not in flow.nodes:
        outer = from_step.partition("/")[0]
        close = outer if outer in flow.nodes else did_you_mean(from_step, flow.nodes)
        hint = f"did you mean {close}?" if close else f"the steps are {_named(list(flow.nodes))}."
        raise InvalidInput("from", f"there is no step {describe_value(from_step)} in {flow.name}; {hint}")
    if from_step not in finished:
        message = f"{from_step} has not finished in this run, so there is nothing to repeat."
        raise InvalidInput("from", message, remedy=f"`hutch flow resume {run_id}` continues the run.")
    repeated = flow.step_and_later_steps(from_step)
    kept = [step_id for step_id in flow.order() if step_id in finished.difference(repeated)]
    return RetryPlan(from_step, repeated, kept)


async def restart_run(
    journal: JournalTable, run: FlowRunHead, flow: Flow, from_step: str, *, origin: str
) -> RetryPlan:
    """Deletes the results of a step and of all later steps, and makes the run pending, so that it can be
    resumed.

    Raises InvalidInput and RunInProgress; the run is then unchanged.
    """
    plan = plan_retry(flow, await journal.finished_steps(run.run_id), from_step, run.run_id)
    event = {"type": "log", "timestamp": now_rfc3339(), "level": "info", "message": plan.text}
    is_free = not lease.is_held(run)
    if not is_free or not await journal.restart(run, {*plan.repeated}, to_json(event), origin):
        raise RunInProgress()
    return plan


def _named(steps: list[str]) -> str:
    named = ", ".join(cut(step, 60) for step in steps[:_MAX_NAMED])
    more = len(steps) - _MAX_NAMED
    return f"{named} and {more} more" if more > 0 else named
