"""One run in a runtime process: start, poll, approve, cancel."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from hutch.errors import HutchError
from hutch.kernel.caller import caller_key
from hutch.protocols.rep.jsonrpc import PANIC, rep_error
from hutch.protocols.rep.runtime.context import ApprovalDecision, RunContext
from hutch.protocols.rep.runtime.events import RunEventBuffer
from hutch.protocols.rep.runtime.models import JournalWriter, RunSummary, StepResult
from hutch.protocols.rep.runtime.preflight import NotRunnable
from hutch.protocols.rep.runtime.scheduler import FlowRun
from hutch.protocols.rep.runtime.spans import flow_span
from hutch.session.json_value import encode_value

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.kinds.registry import Registry

logger = logging.getLogger("hutch.rep")

RunStatus = Literal["pending", "running", "completed", "failed"]


class OpenedJournal(NamedTuple):
    """Journal of a run and its stored progress."""

    journal: JournalWriter | None
    """Journal of the run, or None if the run cannot be stored."""
    finished_steps: Mapping[str, StepResult] = {}
    """Results of the finished steps, by step id."""
    summary: RunSummary | None = None
    """Summary of a run that has already ended. None if the run has to be executed."""


class JournalOpener(Protocol):
    """Opens the journal of a run."""

    async def open(
        self,
        run_id: str,
        flow: Flow,
        inputs: Mapping[str, Any],
        *,
        options: Mapping[str, Any],
        on_request: Callable[[Mapping[str, Any]], None],
    ) -> OpenedJournal:
        """Opens the journal of a run. `options` are those of `Runtime.StartRun`.

        `on_request` receives the requests of other processes: `{"type": "cancel"}`, or `approve` with the
        parameters of `Runtime.Approve`. Raises NotRunnable and HutchError.
        """


class RuntimeRun:
    """A run in this runtime, with its events for `Runtime.Poll`."""

    def __init__(
        self,
        flow: Flow,
        inputs: Mapping[str, Any],
        registry: Registry,
        context: RunContext,
        *,
        concurrency: int,
        journals: JournalOpener | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.context = context
        self.status: RunStatus = "pending"
        self._flow = flow
        self._inputs = inputs
        self._registry = registry
        self._concurrency = concurrency
        self._journals = journals
        self._options = options or {}
        self._journal: JournalWriter | None = None
        self._events = RunEventBuffer(context.quota.use_bytes)
        self._flow_run: FlowRun | None = None
        self._is_cancelled = False
        self._is_stopping = False
        self._summary: RunSummary | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def is_over(self) -> bool:
        return self._summary is not None

    def poll(self) -> dict[str, Any]:
        """Returns the status, the next events and the summary. The status stays `running` until all events
        have been returned.
        """
        events = self._events.drain()
        status = "running" if self.is_over and len(self._events) else self.status
        if self._summary is not None and status == self.status:
            summary = self._summary.wire
            if self._options.get("outputs") is False:
                summary.pop("outputs", None)
        else:
            summary = self._current_summary()
        return {"status": status, "events": events, "summary": summary}

    def cancel(self) -> None:
        """Cancels the run. Does nothing after the end."""
        self._is_cancelled = True
        if self._flow_run is not None:
            self._flow_run.cancel()

    def approve(self, step_id: str, approval: ApprovalDecision) -> bool:
        """Passes a decision to a step. Returns False if the step is not waiting."""
        was_waiting = self.context.approvals.decide(step_id, approval)
        if was_waiting:
            self._emit("approved", step_id=step_id, approved=approval.approved, by=approval.by)
        return was_waiting

    async def stop(self) -> None:
        """Stops the run and waits until its steps have stopped. Does not store results for these steps,
        because they have not failed: another runtime continues them.
        """
        self._is_stopping = True
        self._task.cancel()
        await asyncio.wait((self._task,))

    def _current_summary(self) -> dict[str, Any]:
        summary = self._empty_summary() if self._flow_run is None else self._flow_run.summary()
        fields = summary.wire
        fields.pop("error", None)
        return fields

    def _empty_summary(self, error: dict[str, Any] | None = None) -> RunSummary:
        total = len(self._flow.nodes)
        return RunSummary(completed_steps=0, failed_steps=0, skipped_steps=0, total_steps=total, error=error)

    async def _run(self) -> None:
        # Set the id of the API key, because the level at which the executions of steps are recorded may
        # depend on the key.
        caller_key.set(self._options.get("key"))
        try:
            with flow_span(self._flow.name, self.context, self._options) as span:
                summary = span.summary = await self._run_flow()
        except asyncio.CancelledError:
            raise
        except NotRunnable as error:
            summary = self._empty_summary(error.wire)
        except Exception as error:
            # Log a traceback only for unexpected errors. The message of a HutchError is sufficient.
            traceback = None if isinstance(error, HutchError) else error
            logger.error("the run %s failed: %s", self.context.run_id, error, exc_info=traceback)
            wire = rep_error(PANIC, f"The runtime failed: {error}", cause=type(error).__name__)
            summary = self._empty_summary(wire)
        self.status = "completed" if summary.error is None else "failed"
        self._summary = summary

    async def _run_flow(self) -> RunSummary:
        finished_steps: Mapping[str, StepResult] = {}
        if self._journals is not None:
            # Start the first runner before the journal is opened, so that the runner and the journal become
            # ready at about the same time.
            await self._warm_up_first_step()
            opened = await self._journals.open(
                self.context.run_id,
                self._flow,
                self._inputs,
                options=self._options,
                on_request=self._on_request,
            )
            if opened.summary is not None:
                return opened.summary
            self._journal, finished_steps = opened.journal, opened.finished_steps
            self.context.quota.use_bytes(
                sum(len(encode_value(result.output)) for result in finished_steps.values())
            )
        self._flow_run = FlowRun(
            self._flow,
            self._inputs,
            self._registry,
            self.context,
            concurrency=self._concurrency,
            finished_steps=finished_steps,
            on_event=self._emit,
            journal=self._journal,
        )
        self.status = "running"
        if restored := self._flow_run.restored_count:
            steps = "1 step was" if restored == 1 else f"{restored} steps were"
            self._emit("log", level="info", message=f"resumed: {steps} finished before")
        running = asyncio.ensure_future(self._flow_run.run())
        await asyncio.sleep(0)
        if self._is_cancelled:
            self._flow_run.cancel()
        try:
            summary = await running
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait((running,))
            raise
        if self._journal is not None:
            try:
                await self._journal.run_finished(self.context.run_id, summary)
            except HutchError as error:
                # Return the outcome even if it could not be stored.
                logger.error("the end of run %s could not be written: %s", self.context.run_id, error)
        return summary

    async def _warm_up_first_step(self) -> None:
        """Warms up the first entry step whose kind has a `warm_up` function."""
        for id in self._flow.entries():
            node = self._flow.nodes[id]
            if (warm_up := self._registry.get(node.kind).warm_up) is not None:
                # Ignore the error. The step will fail with the same error and report it.
                with contextlib.suppress(HutchError):
                    await warm_up(self.context, node)
                return

    def _on_request(self, request: Mapping[str, Any]) -> None:
        """Handles cancel and approve requests of other processes. Ignores requests that no longer apply."""
        if request.get("type") == "cancel":
            self.cancel()
        elif request.get("type") == "approve":
            approval = ApprovalDecision(
                bool(request["approved"]), by=request.get("by"), reason=request.get("reason")
            )
            self.approve(str(request["step_id"]), approval)

    def _emit(self, type: str, **fields: Any) -> None:
        event = self._events.add(type, **fields)
        if event is None:
            return
        if self._journal is not None and not self._is_stopping:
            self._journal.add_event(self.context.run_id, event)
        if logger.isEnabledFor(logging.INFO):
            logger.info("%s", type, extra={"fields": {"run_id": self.context.run_id, **event}})
