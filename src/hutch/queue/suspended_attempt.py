"""Waits for queued runs that are suspended."""

from __future__ import annotations

from functools import partial

from hutch.errors import ExecutionError, HutchError, ResumeError
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.queue.attempt import Attempt
from hutch.queue.models import RunReleased
from hutch.session.run import Result


async def continue_suspended(attempt: Attempt, runs: SuspendedRuns) -> Result | None:
    """If an earlier attempt has stored the run as a checkpoint, recovers the run and waits for its end.
    Returns None if there is no checkpoint. Raises RunReleased.
    """
    state = await runs.state(attempt.run_id)
    if state == "ended" and not attempt.row.has_effects:
        # The result belongs to an earlier attempt. Delete it, so that this one can be suspended too.
        await runs.ends.forget(attempt.run_id, attempt.row.owner)
        return None
    if state is None:
        return None
    try:
        await runs.background.recover(attempt.run_id)
    except HutchError as error:
        raise RunReleased(str(error)) from None
    return await wait_suspended(attempt, runs)


async def wait_suspended(attempt: Attempt, runs: SuspendedRuns) -> Result:
    """Waits for the end of a suspended run, on this server or on another one. Raises RunReleased."""
    attempt.on_cancel = partial(runs.ends.stop, attempt.run_id, attempt.row.owner)
    attempt.park()
    try:
        result = await runs.ends.wait(
            attempt.run_id, attempt.row.owner, [], lambda: attempt.is_draining() or attempt.is_lost
        )
    except ResumeError as error:
        return Result(ok=False, error=ExecutionError(error.code, str(error)), run_id=attempt.run_id)
    if result is None:
        raise RunReleased
    return result
