"""A runtime under test: how to start it, what it is to be asked to run, and the conversation with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import Any, NamedTuple

from hutch.doors.rep.answers import Mismatch, Poll, poll
from hutch.doors.rep.checks.outcome import Failed, NotTested
from hutch.doors.rep.checks.talk import Talk
from hutch.doors.rep.choice import RuntimeChoice
from hutch.doors.rep.launch import CannotStart, launch
from hutch.doors.rep.outcome import RunOptions

SECONDS = 10.0


class Samples(NamedTuple):
    """Flows that the runtime is known to run: to the end, into a failure, for long. None: made up here."""

    completing: dict[str, Any] | None = None
    failing: dict[str, Any] | None = None
    lasting: dict[str, Any] | None = None
    inputs: Mapping[str, Any] = {}


class Seen(NamedTuple):
    """A run that is over, as who polled saw it."""

    run_id: str
    last: Poll
    events: list[Any]
    polls: int


class Subject:
    """A runtime under test. One process serves many checks, as long as it does what it should."""

    def __init__(
        self, choice: RuntimeChoice, samples: Samples | None = None, *, seconds: float = SECONDS
    ) -> None:
        self.choice = choice
        self.samples = samples or Samples()
        self.seconds = seconds
        self.capabilities: dict[str, Any] = {}
        """What it said that it can, once it did."""
        self._talk: Talk | None = None
        self._runs = 0

    async def fresh(self) -> Talk:
        """A process of this check's own. Raises Failed."""
        options = RunOptions(timeout=None)
        try:
            launched = launch(self.choice, options)
        except CannotStart as error:
            raise Failed(str(error)) from None
        return Talk(launched, self.seconds)

    async def talk(self) -> Talk:
        """One that other checks have used too. Raises Failed."""
        if self._talk is not None and self._talk.is_over:
            await self.drop()
        if self._talk is None:
            self._talk = await self.fresh()
        return self._talk

    async def drop(self) -> None:
        """Nobody knows what it will say next."""
        talk, self._talk = self._talk, None
        if talk is not None:
            await talk.close()

    # --- what it is to run ---

    @property
    def kinds(self) -> list[str]:
        told = self.capabilities.get("step_kinds")
        return told if isinstance(told, list) else []

    def completing(self) -> dict[str, Any]:
        """Control kinds need not be declared (decision 7), so there is always something to try."""
        if self.samples.completing is not None:
            return self.samples.completing
        return document([node("only", "dsl.emit" if "dsl.emit" in self.kinds else "finish")])

    def failing(self) -> dict[str, Any]:
        """Raises NotTested."""
        if self.samples.failing is not None:
            return self.samples.failing
        if "code.run" in self.kinds:
            return document([node("failing", "code.run", code='throw new Error("as asked")')])
        if "http.get" in self.kinds:
            return document([node("failing", "http.get", url="http://127.0.0.1:9/")])
        raise NotTested("say with --failing FILE which flow fails on this runtime")

    def lasting(self) -> dict[str, Any]:
        """Raises NotTested."""
        if self.samples.lasting is not None:
            return self.samples.lasting
        if "wait" in self.kinds:
            return document([node("lasting", "wait", seconds=600)])
        raise NotTested("say with --lasting FILE which flow takes long on this runtime")

    # --- runs ---

    def new_id(self) -> str:
        self._runs += 1
        return f"check-{self._runs}"

    async def start(self, talk: Talk, ir: dict[str, Any], run_id: str | None) -> str:
        """The run's id. Raises Failed."""
        options = {"run_id": run_id, "trace_id": "check", "allow_shell": False}
        result = await talk.result("StartRun", ir=ir, inputs=dict(self.samples.inputs), options=options)
        given = result.get("run_id")
        if not isinstance(given, str) or not given:
            raise Failed("StartRun: run_id: expected a text")
        return given

    async def completed(self, talk: Talk) -> Seen:
        """A run of the flow that completes. Raises Failed, NotTested."""
        seen = await self.to_the_end(talk, await self.start(talk, self.completing(), self.new_id()))
        if seen.last.status != "completed" and self.samples.completing is None:
            raise NotTested("say with --flow FILE which flow completes on this runtime")
        return seen

    async def to_the_end(self, talk: Talk, run_id: str) -> Seen:
        """Polls until the run is over. Raises Failed."""
        events: list[Any] = []
        deadline = monotonic() + self.seconds
        polls = 0
        while True:
            result = await talk.result("Poll", run_id=run_id)
            polls += 1
            try:
                last = poll(result)
            except Mismatch as mismatch:
                raise Failed(str(mismatch)) from None
            events += result.get("events") or []
            if last.is_over:
                return Seen(run_id, last, events, polls)
            if monotonic() > deadline:
                raise Failed(f"Poll: status: still {last.status!r} after {self.seconds:g} s")
            await asyncio.sleep(0.01)


def node(id: str, kind: str, **given: Any) -> dict[str, Any]:
    return {
        "id": id,
        "type": kind,
        "with": given,
        "timeout_ms": 0,
        "retry": {"max": 0, "backoff_ms": 0},
    }


def document(nodes: list[dict[str, Any]], edges: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Flow IR."""
    return {
        "version": "1.0.0",
        "flow": {"name": "check", "timeout_ms": 0},
        "constants": {"policyRef": "check", "policy": {}},
        "inputs_schema": {},
        "graph": {"nodes": nodes, "edges": edges or []},
        "metadata": {"generated_at": "2026-01-01T00:00:00Z", "source_file": "check.json"},
    }
