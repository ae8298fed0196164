"""StepSlots: a nested flow that ends returns its slots to its parent."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.protocols.rep.flow_harness import FlowHarness, NoServices
from tests.support.flows import flow, node

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.runtime.context import PendingApprovals, RunContext
from hutch.protocols.rep.runtime.scheduler import FlowRun, StepSlots


async def test_slot_of_a_step_cancelled_before_its_first_turn_is_released() -> None:
    harness, slots = FlowHarness(), StepSlots(1)
    context = RunContext(run_id="r", services=NoServices(), approvals=PendingApprovals(), folder=Path())
    steps = parse_flow(flow([node("a", "hold"), node("b", "hold")]))
    running = asyncio.create_task(FlowRun(steps, {}, harness.registry, context, slots=slots).run())
    await harness.until_running("a")
    # Let `a` end and cancel the flow in the same iteration of the event loop. Then `b` gets the slot of `a`,
    # but the task of `b` never starts.
    harness.release_event("a").set()
    running.cancel()
    await asyncio.wait((running,))
    assert harness.attempts["b"] == 0
    started: list[str] = []
    slots.request(lambda: started.append("next") is None)
    assert started == ["next"]
