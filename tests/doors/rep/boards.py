"""Runs flows in this process, with kinds of steps that wait for a test and fail as it says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.flows import Ended

from hutch.doors.rep import capabilities
from hutch.doors.rep.context import Approvals, Context
from hutch.doors.rep.engine import FlowRun
from hutch.doors.rep.events import Events
from hutch.doors.rep.flow import read
from hutch.doors.rep.kinds.registry import Call, Kind, Registry, StepFailed
from hutch.doors.rep.steps import Journal, StepResult


class NoRooms:
    """For flows that need nothing of Hutch."""

    @property
    def settings(self) -> Any:
        raise AssertionError("nothing was to be needed")

    def broker(self) -> Any:
        raise AssertionError("no broker was to be needed")

    async def app(self, egress_allow: tuple[str, ...]) -> Any:
        raise AssertionError("no sandbox was to be needed")


class Board:
    """Which steps have begun, and what holds them."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.running: set[str] = set()
        self.most_running = 0
        self.cancelled: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        kinds: dict[str, Kind | str] = {
            **capabilities.own_kinds({}),
            "echo": Kind("echo", self._echo),
            "fail": Kind("fail", self._fail),
            "hold": Kind("hold", self._hold),
        }
        self.registry = Registry(kinds, {})

    def gate(self, id: str) -> asyncio.Event:
        return self.gates.setdefault(id, asyncio.Event())

    async def until_running(self, *ids: str) -> None:
        async with asyncio.timeout(30):
            while not self.running >= {*ids}:
                self._changed.clear()
                await self._changed.wait()

    async def _echo(self, call: Call) -> Any:
        self.attempts[call.step_id] += 1
        return call.params.get("value")

    async def _fail(self, call: Call) -> Any:
        """So many times, then gives how many attempts there were."""
        self.attempts[call.step_id] += 1
        if call.attempt < call.params.get("times", 1_000):
            raise StepFailed(
                "as it was told to", retriable=call.params.get("retriable", True), details={"a": 1}
            )
        return self.attempts[call.step_id]

    async def _hold(self, call: Call) -> Any:
        """Until the test opens its gate."""
        self.attempts[call.step_id] += 1
        self.running.add(call.step_id)
        self.most_running = max(self.most_running, len(self.running))
        self._changed.set()
        try:
            await self.gate(call.step_id).wait()
        except asyncio.CancelledError:
            self.cancelled.append(call.step_id)
            raise
        finally:
            self.running.discard(call.step_id)
        return call.step_id

    def flow_run(
        self,
        document: dict[str, Any],
        inputs: Mapping[str, Any] | None = None,
        *,
        concurrency: int = 64,
        finished: Mapping[str, StepResult] | None = None,
        journal: Journal | None = None,
        events: Events | None = None,
        folder: Path | None = None,
        flows: Mapping[str, Any] | None = None,
    ) -> FlowRun:
        told = events if events is not None else Events()
        context = Context(
            run_id="r", rooms=NoRooms(), approvals=Approvals(), folder=folder, flows=flows or {}
        )
        return FlowRun(
            read(document),
            inputs or {},
            self.registry,
            context,
            concurrency=concurrency,
            finished=finished,
            journal=journal,
            on_event=told.add,
        )

    async def run(
        self, document: dict[str, Any], inputs: Mapping[str, Any] | None = None, **more: Any
    ) -> Ended:
        events = more.setdefault("events", Events())
        async with asyncio.timeout(60):
            summary = await self.flow_run(document, inputs, **more).run()
        status = "completed" if summary.error is None else "failed"
        return Ended(status, summary.wire, events.drain())
