"""Faulty runtimes, and flows for them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from tests.protocols.rep.flows import document, step
from tests.support.processes import arguments_of, descendants

from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.orchestrator.options import RunOptions, RunOutcome
from hutch.protocols.rep.orchestrator.orchestrator import Orchestrator
from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice

FILE = Path(__file__).with_name("faulty_runtime.py")
TIMEOUT_SECONDS = 30.0


def command(*fault: str) -> tuple[str, ...]:
    """Returns the command of a faulty runtime. The options `-I -S` make Python start faster."""
    return (sys.executable, "-I", "-S", str(FILE), *fault)


def faulty(*fault: str) -> RuntimeChoice:
    return RuntimeChoice(engine="bad", command=command(*fault))


def one_step(kind: str = "test.step", **parameters: Any) -> Flow:
    return parse_flow(document([step("a", kind, parameters)]))


class FaultyRun:
    """A run on a faulty runtime. Collects its events and its stderr."""

    def __init__(
        self, *fault: str, timeout: float | None = TIMEOUT_SECONDS, flow: Flow | None = None
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.stderr = b""
        self.has_output = asyncio.Event()
        """Set by the first event or stderr output."""
        self.orchestrator = Orchestrator(
            flow or one_step(),
            {},
            faulty(*fault),
            RunOptions(timeout=timeout),
            on_event=self.on_event,
            on_stderr=self.on_stderr,
        )

    def on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.has_output.set()

    def on_stderr(self, data: bytes) -> None:
        self.stderr += data
        self.has_output.set()

    async def run(self) -> RunOutcome:
        return await self.orchestrator.run()


def assert_no_processes_left() -> None:
    """Checks that neither a process nor a zombie is left."""
    left = [pid for pid in descendants(os.getpid()) if FILE.name in " ".join(arguments_of(pid))]
    assert left == []
