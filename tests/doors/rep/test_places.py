"""Places for steps: those of a flow that ends are free for the flow that it is in."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.doors.rep.boards import Board, NoRooms
from tests.flows import flow, node

from hutch.doors.rep.context import Approvals, Context
from hutch.doors.rep.engine import FlowRun
from hutch.doors.rep.flow import read
from hutch.doors.rep.places import Places


async def test_place_of_a_step_that_was_cancelled_before_it_began_is_free_again() -> None:
    board, places = Board(), Places(1)
    context = Context(run_id="r", rooms=NoRooms(), approvals=Approvals(), folder=Path())
    steps = read(flow([node("a", "hold"), node("b", "hold")]))
    running = asyncio.create_task(FlowRun(steps, {}, board.registry, context, places=places).run())
    await board.until_running("a")
    # In the same turn of the loop: `a` ends and its place goes to `b`, which then never has a turn.
    board.gate("a").set()
    running.cancel()
    await asyncio.wait((running,))
    assert board.attempts["b"] == 0
    begun: list[str] = []
    places.ask(lambda: begun.append("next") is None)
    assert begun == ["next"]
