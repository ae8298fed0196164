"""State of a run that is derived from its events."""

from __future__ import annotations

import time

from tests.protocols.rep.flows import document, step

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.orchestrator.options import RunOptions
from hutch.protocols.rep.server.supervised_run import RunObserver


def observer(*kinds: str) -> RunObserver:
    nodes = [step(f"s{number}", kind) for number, kind in enumerate(kinds)]
    return RunObserver(parse_flow(document(nodes)), RunOptions(timeout=None))


def test_run_only_waits_if_every_running_step_asks() -> None:
    run = observer("approve", "flow.run", "wait")
    assert not run.only_waits_for_approvals
    run.on_event({"type": "step", "state": "started", "step_id": "s0"})
    run.on_event({"type": "approval", "step_id": "s0", "timestamp": "t"})
    assert run.only_waits_for_approvals
    run.on_event({"type": "step", "state": "started", "step_id": "s1"})
    run.on_event({"type": "step", "state": "started", "step_id": "s1/inner/ask"})
    assert not run.only_waits_for_approvals
    run.on_event({"type": "approval", "step_id": "s1/inner/ask", "timestamp": "t"})
    assert run.only_waits_for_approvals
    run.on_event({"type": "step", "state": "started", "step_id": "s"})
    assert not run.only_waits_for_approvals


def test_thousands_of_questions_are_examined_in_time() -> None:
    """Every few seconds, the server examines every run on its event loop. So the examination of a run must be
    short.
    """
    count = 10_000
    run = observer(*["approve"] * count)
    for number in range(count):
        run.on_event({"type": "step", "state": "started", "step_id": f"s{number}"})
        run.on_event({"type": "approval", "step_id": f"s{number}", "timestamp": "t"})
    began = time.process_time()
    assert run.only_waits_for_approvals
    assert time.process_time() - began < 0.5
