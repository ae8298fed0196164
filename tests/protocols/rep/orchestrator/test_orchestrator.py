"""The orchestrator with the built-in runtime, in an existing event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.protocols.rep.flows import chain, document, step

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.jsonrpc import RpcError
from hutch.protocols.rep.orchestrator.client import RuntimeTransportError
from hutch.protocols.rep.orchestrator.options import RunOptions
from hutch.protocols.rep.orchestrator.orchestrator import Orchestrator
from hutch.protocols.rep.orchestrator.runtime_choice import builtin_runtime

ASKS = parse_flow(
    document(
        [step("ask", "approve", {"message": "?"}), step("end", "finish", {"outputs": "$step.ask"})],
        chain("ask", "end"),
    )
)


class EventLog:
    """Collects the events of a run and waits for a type of event."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._changed = asyncio.Event()

    def append(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._changed.set()

    async def until(self, type: str) -> None:
        async with asyncio.timeout(60):
            while type not in [event["type"] for event in self.events]:
                self._changed.clear()
                await self._changed.wait()


async def test_run_reports_events_and_outputs() -> None:
    log = EventLog()
    flow = parse_flow(document([step("a", "finish", {"outputs": {"text": "$input.text"}})]))
    text = "é\u2028\ud800" + "x" * 2_000_000
    options = RunOptions(run_id="r")
    outcome = await Orchestrator(flow, {"text": text}, builtin_runtime(), options, on_event=log.append).run()
    assert (outcome.status, outcome.exit_code, outcome.run_id) == ("completed", 0, "r")
    assert outcome.outputs == {"text": text}
    states = [event["state"] for event in log.events if event["type"] == "step"]
    assert states == ["started", "succeeded"]


async def test_approvals_are_passed_on() -> None:
    log = EventLog()
    orchestrator = Orchestrator(ASKS, {}, builtin_runtime(), on_event=log.append)
    running = asyncio.create_task(orchestrator.run())
    await log.until("approval")
    with pytest.raises(RpcError, match="is not waiting for an approval"):
        await orchestrator.approve("end", True)
    await orchestrator.approve("ask", True, by="Ada")
    outcome = await running
    assert outcome.exit_code == 0
    assert outcome.outputs["by"] == "Ada"
    with pytest.raises(RuntimeTransportError, match="The run is over"):
        await orchestrator.approve("ask", True)


async def test_cancellation_reaches_the_step() -> None:
    log = EventLog()
    orchestrator = Orchestrator(
        parse_flow(document([step("a", "wait", {"seconds": 600})])),
        {},
        builtin_runtime(),
        on_event=log.append,
    )
    running = asyncio.create_task(orchestrator.run())
    await log.until("step")
    orchestrator.cancel()
    outcome = await running
    assert (outcome.status, outcome.exit_code, outcome.cancelled) == ("failed", 130, True)
    assert outcome.summary["total_steps"] == 1, "the summary comes from the runtime"


async def test_refusal_lists_the_problems() -> None:
    flow = parse_flow(document([step("a", "wait", {"hours": 1})]))
    outcome = await Orchestrator(flow, {}, builtin_runtime()).run()
    assert (outcome.exit_code, outcome.status) == (3, "failed")
    assert outcome.error is not None
    assert outcome.error["code"] == 1003
    problems = outcome.error["data"]["details"]["problems"]
    assert all(problem["path"].startswith("graph.nodes[0].with") for problem in problems), problems
