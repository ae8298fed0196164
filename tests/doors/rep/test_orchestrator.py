"""The orchestrator with our own runtime, as the server uses it: in a loop that is not its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.doors.rep.flows import chain, document, step

from hutch.doors.rep import flow as flows
from hutch.doors.rep.choice import own
from hutch.doors.rep.codes import RpcError
from hutch.doors.rep.executor import TransportBroken
from hutch.doors.rep.orchestrator import FlowDrive, run_flow
from hutch.doors.rep.outcome import RunOptions

ASKS = flows.read(
    document(
        [step("ask", "approve", {"message": "?"}), step("end", "finish", {"outputs": "$step.ask"})],
        chain("ask", "end"),
    )
)


class Heard:
    """The events of a run, and a wait for one."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self._more = asyncio.Event()

    def hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, type: str) -> None:
        async with asyncio.timeout(60):
            while type not in [each["type"] for each in self.events]:
                self._more.clear()
                await self._more.wait()


async def test_run_with_its_events_and_outputs() -> None:
    heard = Heard()
    flow = flows.read(document([step("a", "finish", {"outputs": {"text": "$input.text"}})]))
    text = "é\u2028\ud800" + "x" * 2_000_000
    end = await run_flow(flow, {"text": text}, own(), RunOptions(run_id="r"), on_event=heard.hear)
    assert (end.status, end.exit_code, end.run_id) == ("completed", 0, "r")
    assert end.outputs == {"text": text}
    states = [each["state"] for each in heard.events if each["type"] == "step"]
    assert states == ["started", "succeeded"]


async def test_approvals_are_passed_on() -> None:
    heard = Heard()
    drive = FlowDrive(ASKS, {}, own(), on_event=heard.hear)
    running = asyncio.create_task(drive.run())
    await heard.until("approval")
    with pytest.raises(RpcError, match="waits for no approval"):
        await drive.approve("end", True)
    await drive.approve("ask", True, by="somebody")
    end = await running
    assert end.exit_code == 0
    assert end.outputs["by"] == "somebody"
    with pytest.raises(TransportBroken, match="The run is over"):
        await drive.approve("ask", True)


async def test_cancellation_reaches_the_step() -> None:
    heard = Heard()
    drive = FlowDrive(
        flows.read(document([step("a", "wait", {"seconds": 600})])), {}, own(), on_event=heard.hear
    )
    running = asyncio.create_task(drive.run())
    await heard.until("step")
    drive.cancel()
    end = await running
    assert (end.status, end.exit_code, end.cancelled) == ("failed", 130, True)
    assert end.summary["total_steps"] == 1, "it is the runtime that told the end"


async def test_refusal_has_what_is_wrong() -> None:
    flow = flows.read(document([step("a", "wait", {"hours": 1})]))
    end = await run_flow(flow, {}, own())
    assert (end.exit_code, end.status) == (3, "failed")
    assert end.error is not None
    assert end.error["code"] == 1003
    problems = end.error["data"]["details"]["problems"]
    assert all(each["path"].startswith("graph.nodes[0].with") for each in problems), problems
