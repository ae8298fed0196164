"""A kept run made ready to be gone on with: its flow, its inputs, and how it is to be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hutch.doors.rep import flow
from hutch.doors.rep.outcome import RunOptions

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.store.rows import FlowRunRow


def given(
    run: FlowRunRow, *, timeout: float | None = None, log_json: bool = False, resume: bool = True
) -> tuple[Flow, dict[str, Any], RunOptions]:
    """What it was given when it began. Raises InvalidFlow if this Hutch reads flows otherwise.

    `timeout` goes before the run's own. `resume`: also if it failed or was cancelled.
    """
    kept = json.loads(run.options)
    own_timeout = kept.pop("timeout", None)
    named = {"trace_id": kept.pop("trace_id", None), "allow_shell": kept.pop("allow_shell", None)}
    options = RunOptions(
        run_id=run.run_id,
        timeout=timeout or own_timeout,
        log_json=log_json,
        more={**kept, "journal": True, "resume": resume},
        **{name: value for name, value in named.items() if value is not None},
    )
    return flow.read(json.loads(run.document)), json.loads(run.inputs), options
