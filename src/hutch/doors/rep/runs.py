"""The runs of a runtime process: begun, looked at, cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from hutch.doors.rep.codes import PANIC, failure
from hutch.doors.rep.context import Approval, Context
from hutch.doors.rep.engine import FlowRun
from hutch.doors.rep.events import Events
from hutch.doors.rep.prepare import NotRunnable
from hutch.doors.rep.steps import Journal, StepResult, Summary
from hutch.errors import HutchError
from hutch.session.jsonvalue import encode_value

if TYPE_CHECKING:
    from hutch.doors.rep.flow import Flow
    from hutch.doors.rep.kinds.registry import Registry

logger = logging.getLogger("hutch.rep")

Status = Literal["pending", "running", "completed", "failed"]


class Opened(NamedTuple):
    """What is written down of a run already."""

    journal: Journal | None
    """None where nothing can be kept."""
    finished: Mapping[str, StepResult] = {}
    """The steps that are over."""
    ended: Summary | None = None
    """How it ended, if it did: then there is nothing to do."""


class Journals(Protocol):
    """Where runs are written down."""

    async def open(
        self,
        run_id: str,
        flow: Flow,
        inputs: Mapping[str, Any],
        *,
        options: Mapping[str, Any],
        on_asked: Callable[[Mapping[str, Any]], None],
    ) -> Opened:
        """A run's journal, for the options that `Runtime.StartRun` got.

        `on_asked` is given what others ask of the run: `{"type": "cancel"}`, or `approve` with what
        `Runtime.Approve` takes. Raises NotRunnable, and HutchError.
        """


class Run:
    """A run as those see it who poll for it."""

    def __init__(
        self,
        flow: Flow,
        inputs: Mapping[str, Any],
        registry: Registry,
        context: Context,
        *,
        concurrency: int,
        journals: Journals | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.context = context
        self.status: Status = "pending"
        self._flow = flow
        self._inputs = inputs
        self._registry = registry
        self._concurrency = concurrency
        self._journals = journals
        self._options = options or {}
        self._journal: Journal | None = None
        self._events = Events(context.allowance.take)
        self._engine: FlowRun | None = None
        self._is_cancelled = False
        self._summary: Summary | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_over(self) -> bool:
        return self._summary is not None

    def poll(self) -> dict[str, Any]:
        """Its end is told once there is nothing left to tell of its way there."""
        events = self._events.drain()
        status = "running" if self.is_over and len(self._events) else self.status
        if self._summary is not None and status == self.status:
            summary = self._summary.wire
        else:
            summary = self._so_far()
        return {"status": status, "events": events, "summary": summary}

    def cancel(self) -> None:
        """Nothing happens if it is over."""
        self._is_cancelled = True
        if self._engine is not None:
            self._engine.cancel()

    def approve(self, step_id: str, approval: Approval) -> bool:
        """Whether a step waited for it."""
        waited = self.context.approvals.decide(step_id, approval)
        if waited:
            self._tell("approved", step_id=step_id, approved=approval.approved, by=approval.by)
        return waited

    async def end(self) -> None:
        """Cancels it and waits until its steps have let go."""
        self._task.cancel()
        await asyncio.wait((self._task,))

    def _so_far(self) -> dict[str, Any]:
        counts = None if self._engine is None else self._engine.summary()
        told = (counts or self._nothing_done()).wire
        told.pop("error", None)
        return told

    def _nothing_done(self, error: dict[str, Any] | None = None) -> Summary:
        total = len(self._flow.nodes)
        return Summary(completed_steps=0, failed_steps=0, skipped_steps=0, total_steps=total, error=error)

    async def _run(self) -> None:
        try:
            summary = await self._through()
        except asyncio.CancelledError:
            raise
        except NotRunnable as error:
            summary = self._nothing_done(error.wire)
        except Exception as error:
            # What was foreseen says itself what it is.
            traceback = None if isinstance(error, HutchError) else error
            logger.error("the run %s failed: %s", self.context.run_id, error, exc_info=traceback)
            wire = failure(PANIC, f"The runtime failed: {error}", cause=type(error).__name__)
            summary = self._nothing_done(wire)
        self.status = "completed" if summary.error is None else "failed"
        self._summary = summary

    async def _through(self) -> Summary:
        finished: Mapping[str, StepResult] = {}
        if self._journals is not None:
            # A process that starts while the journal is opened is there when that is.
            await self._expect()
            opened = await self._journals.open(
                self.context.run_id,
                self._flow,
                self._inputs,
                options=self._options,
                on_asked=self._asked,
            )
            if opened.ended is not None:
                return opened.ended
            self._journal, finished = opened.journal, opened.finished
            self.context.allowance.take(sum(len(encode_value(each.output)) for each in finished.values()))
        self._engine = FlowRun(
            self._flow,
            self._inputs,
            self._registry,
            self.context,
            concurrency=self._concurrency,
            finished=finished,
            on_event=self._tell,
            journal=self._journal,
        )
        self.status = "running"
        if known := self._engine.restored:
            over = "1 step is" if known == 1 else f"{known} steps are"
            self._tell("log", level="info", message=f"goes on: {over} over already")
        running = asyncio.ensure_future(self._engine.run())
        await asyncio.sleep(0)
        if self._is_cancelled:
            self._engine.cancel()
        try:
            summary = await running
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait((running,))
            raise
        if self._journal is not None:
            try:
                await self._journal.finished(self.context.run_id, summary)
            except HutchError as error:
                # It ended as it did all the same.
                logger.error("the end of run %s could not be written: %s", self.context.run_id, error)
        return summary

    async def _expect(self) -> None:
        """Has what the first step needs got ready."""
        for id in self._flow.entries():
            node = self._flow.nodes[id]
            if (expect := self._registry.get(node.kind).expect) is not None:
                # What cannot be had the step finds too, and tells.
                with contextlib.suppress(HutchError):
                    await expect(self.context, node)
                return

    def _asked(self, request: Mapping[str, Any]) -> None:
        """Somebody elsewhere wants something of the run; what cannot be is nothing."""
        if request.get("type") == "cancel":
            self.cancel()
        elif request.get("type") == "approve":
            approval = Approval(bool(request["approved"]), by=request.get("by"), reason=request.get("reason"))
            self.approve(str(request["step_id"]), approval)

    def _tell(self, type: str, **fields: Any) -> None:
        event = self._events.add(type, **fields)
        if event is None:
            return
        if self._journal is not None:
            self._journal.event(self.context.run_id, event)
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", type, extra={"fields": {"run_id": self.context.run_id, **event}})
