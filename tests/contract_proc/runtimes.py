"""Runtimes that do something wrong, and flows for them."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from tests.doors.rep.flows import document, step
from tests.processes import arguments_of, descendants

from hutch.doors.rep import flow as flows
from hutch.doors.rep.choice import RuntimeChoice
from hutch.doors.rep.flow import Flow
from hutch.doors.rep.orchestrator import FlowDrive
from hutch.doors.rep.outcome import RunEnd, RunOptions

FILE = Path(__file__).with_name("bad_runtime.py")
# More than anything here takes, and less than anybody waits.
PATIENCE = 30.0


def command(*fault: str) -> tuple[str, ...]:
    """As little of Python as will do."""
    return (sys.executable, "-I", "-S", str(FILE), *fault)


def bad(*fault: str) -> RuntimeChoice:
    return RuntimeChoice(engine="bad", command=command(*fault))


def one_step(kind: str = "test.step", **given: Any) -> Flow:
    return flows.read(document([step("a", kind, given)]))


class Run:
    """A run on a runtime with a fault, and what was heard of it."""

    def __init__(self, *fault: str, timeout: float | None = PATIENCE, flow: Flow | None = None) -> None:
        self.events: list[dict[str, Any]] = []
        self.stderr = b""
        self.heard = asyncio.Event()
        """Once anything came from it."""
        self.drive = FlowDrive(
            flow or one_step(),
            {},
            bad(*fault),
            RunOptions(timeout=timeout),
            on_event=self.hear,
            on_stderr=self.complain,
        )

    def hear(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        self.heard.set()

    def complain(self, data: bytes) -> None:
        self.stderr += data
        self.heard.set()

    async def end(self) -> RunEnd:
        return await self.drive.run()


def assert_nothing_left() -> None:
    """Neither a process nor a zombie."""
    left = [pid for pid in descendants(os.getpid()) if FILE.name in " ".join(arguments_of(pid))]
    assert left == []
