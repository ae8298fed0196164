"""Runs flows in this process, with step kinds that echo, fail or block under the control of a test."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.flows import PolledRun

from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.kinds.registry import Call, Kind, Registry, StepFailed
from hutch.protocols.rep.runtime import handshake
from hutch.protocols.rep.runtime.context import PendingApprovals, RunContext
from hutch.protocols.rep.runtime.events import RunEventBuffer
from hutch.protocols.rep.runtime.models import JournalWriter, StepResult
from hutch.protocols.rep.runtime.scheduler import FlowRun


class NoServices:
    """Services for flows whose steps use no services. The test fails if a step uses one."""

    tracer = None

    @property
    def settings(self) -> Any:
        raise AssertionError("this flow must not need settings")

    def http_client(self) -> Any:
        raise AssertionError("this flow must not need an HTTP client")

    async def for_steps(self, egress_allow: tuple[str, ...]) -> Any:
        raise AssertionError("this flow must not need step services")


class FlowHarness:
    """Provides the kinds `echo`, `fail` and `hold`, and records which steps run."""

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()
        self.running: set[str] = set()
        self.max_running = 0
        self.cancelled: list[str] = []
        self.release_events: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        kinds: dict[str, Kind | str] = {
            **handshake.builtin_kinds({}),
            "echo": Kind("echo", self._echo),
            "fail": Kind("fail", self._fail),
            "hold": Kind("hold", self._hold),
        }
        self.registry = Registry(kinds, {})

    def release_event(self, id: str) -> asyncio.Event:
        return self.release_events.setdefault(id, asyncio.Event())

    async def until_running(self, *ids: str) -> None:
        async with asyncio.timeout(30):
            while not self.running >= {*ids}:
                self._changed.clear()
                await self._changed.wait()

    async def _echo(self, call: Call) -> Any:
        self.attempts[call.step_id] += 1
        return call.params.get("value")

    async def _fail(self, call: Call) -> Any:
        """Fails `times` attempts, then returns the number of attempts."""
        self.attempts[call.step_id] += 1
        if call.attempt < call.params.get("times", 1_000):
            raise StepFailed(
                "failed on request", retriable=call.params.get("retriable", True), details={"a": 1}
            )
        return self.attempts[call.step_id]

    async def _hold(self, call: Call) -> Any:
        """Blocks until the test sets the event of this step."""
        self.attempts[call.step_id] += 1
        self.running.add(call.step_id)
        self.max_running = max(self.max_running, len(self.running))
        self._changed.set()
        try:
            await self.release_event(call.step_id).wait()
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
        finished_steps: Mapping[str, StepResult] | None = None,
        journal: JournalWriter | None = None,
        events: RunEventBuffer | None = None,
        folder: Path | None = None,
        flows: Mapping[str, Any] | None = None,
    ) -> FlowRun:
        buffer = events if events is not None else RunEventBuffer()
        context = RunContext(
            run_id="r", services=NoServices(), approvals=PendingApprovals(), folder=folder, flows=flows or {}
        )
        return FlowRun(
            parse_flow(document),
            inputs or {},
            self.registry,
            context,
            concurrency=concurrency,
            finished_steps=finished_steps,
            journal=journal,
            on_event=buffer.add,
        )

    async def run(
        self, document: dict[str, Any], inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> PolledRun:
        events = options.setdefault("events", RunEventBuffer())
        async with asyncio.timeout(60):
            summary = await self.flow_run(document, inputs, **options).run()
        status = "completed" if summary.error is None else "failed"
        return PolledRun(status, summary.wire, events.drain())
