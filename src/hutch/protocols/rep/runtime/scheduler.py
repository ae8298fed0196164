"""Schedules the steps of a flow: dependencies, concurrency, timeouts and outputs."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hutch.protocols.rep.ir.inputs import optional_names
from hutch.protocols.rep.ir.resolve import LoopItem, ReferenceValues
from hutch.protocols.rep.ir.switch import taken_edges
from hutch.protocols.rep.jsonrpc import (
    BROKEN_TRANSPORT,
    PANIC,
    STEP_FAILED,
    TIMEOUT,
    cancelled_error,
    rep_error,
)
from hutch.protocols.rep.runtime.handshake import MAX_CONCURRENCY
from hutch.protocols.rep.runtime.models import RunSummary, StepResult
from hutch.protocols.rep.runtime.spans import step_span
from hutch.protocols.rep.runtime.step import MAX_OUTPUT_BYTES, AttemptFailed, AttemptSucceeded, StepAttempt
from hutch.protocols.rep.runtime.step_retry import StepRetries
from hutch.session.json_value import encode_value
from hutch.telemetry.trace_context import TraceContext, current

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow, FlowEdge, FlowNode
    from hutch.protocols.rep.kinds.registry import Registry
    from hutch.protocols.rep.runtime.context import RunContext
    from hutch.protocols.rep.runtime.models import JournalWriter

logger = logging.getLogger("hutch.rep")

# Time that cancelled steps have to end.
CANCEL_GRACE_SECONDS = 2.0

OnEvent = Callable[..., None]
"""Callback that gets the event type, and the fields of the event as keyword arguments."""


class FlowRun:
    """One run of one flow. Call `run` once, in the event loop that created it."""

    def __init__(
        self,
        flow: Flow,
        inputs: Mapping[str, Any],
        registry: Registry,
        context: RunContext,
        *,
        concurrency: int = MAX_CONCURRENCY,
        finished_steps: Mapping[str, StepResult] | None = None,
        on_event: OnEvent = lambda type, **fields: None,
        journal: JournalWriter | None = None,
        slots: StepSlots | None = None,
        prefix: str = "",
        loop: Loop | None = None,
    ) -> None:
        """`finished_steps` are results of an earlier attempt at the same run. These steps are not repeated.

        `slots` and `prefix` are for sub-flows. A sub-flow shares the slots of its parent, and its step ids
        start with the id of the parent step. `loop` is for the items of a `for_each`.
        """
        self.flow = flow
        self.inputs = inputs
        self.context = context
        self.registry = registry
        self.prefix = prefix
        self.outputs: dict[str, Any] = {}
        self.results: dict[str, StepResult] = {}
        self.deadline: float | None = None
        self.trace: TraceContext | None = None
        """Span to which the spans of the steps belong."""
        self.emit = on_event
        self._optional_inputs = optional_names(flow.inputs_schema)
        self._finished_steps = dict(finished_steps or {})
        self._journal = journal
        self._slots = slots or StepSlots(concurrency)
        self._progress = FlowProgress(flow)
        self._counts: Counter[str] = Counter()
        """Number of steps in `results` by state."""
        self._skipped = 0
        self._loop = loop
        self._ready: deque[str] = deque()
        """Steps that may start. They wait only in a `for_each`, while `max_parallel` steps are open."""
        self._open_steps = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_slot: set[asyncio.Task[None]] = set()
        self._retries = StepRetries(self._schedule, on_event, prefix)
        self._error: dict[str, Any] | None = None
        self._cancelled = False
        self._done: asyncio.Future[None] | None = None

    async def run(self) -> RunSummary:
        """Runs the flow to its end. Cancelling the caller cancels the run."""
        assert self._done is None, "a flow run is run once"
        self._done = asyncio.get_running_loop().create_future()
        self.trace = current.get()
        seconds = self.flow.timeout_ms / 1000 or None
        self.deadline = None if seconds is None else monotonic() + seconds
        try:
            self._start_steps(self.flow.entries())
            async with asyncio.timeout(seconds):
                # Do not await the future directly, because cancelling this task would then cancel the future
                # too.
                await asyncio.wait((self._done,))
        except TimeoutError:
            message = f"The flow {self.flow.name} took longer than its {self.flow.timeout_ms} ms."
            self._stop(rep_error(BROKEN_TRANSPORT, message, cause=TIMEOUT))
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            await self._stop_tasks()
        return self._final_summary()

    def cancel(self) -> None:
        """Cancels the run, which ends when its steps have stopped. Does nothing after the end."""
        if self._done is not None and not self._done.done():
            self._cancelled = True
            self._stop(cancelled_error())

    def summary(self) -> RunSummary:
        """Returns the step counts so far."""
        return RunSummary(
            completed_steps=self._counts["succeeded"],
            failed_steps=self._counts["failed"],
            skipped_steps=self._skipped,
            total_steps=len(self.flow.nodes),
            error=self._error,
            cancelled=self._cancelled,
        )

    def reference_values(self, node: FlowNode) -> ReferenceValues:
        """Returns the values that the references of a step resolve to."""
        if self._loop is not None:
            return self._loop.values_for(int(node.id))
        return ReferenceValues(
            self.inputs, self.outputs, self.flow.nodes, optional_inputs=self._optional_inputs
        )

    async def run_nested(
        self, flow: Flow, inputs: Mapping[str, Any], parent_id: str, context: RunContext
    ) -> RunSummary:
        """Runs another flow as a step of this flow."""
        return await self._inner_run(flow, inputs, parent_id, context).run()

    async def run_items(
        self, node: FlowNode, items: Sequence[Any], max_parallel: int, parent_id: str
    ) -> RunSummary:
        """Runs the inner step of a `for_each` for every item. The `outputs` of the summary are the outputs of
        the items as a list.
        """
        loop = Loop(self.reference_values(node), items, max_parallel)
        flow = self.flow.for_items(node, len(items))
        return await self._inner_run(flow, self.inputs, parent_id, self.context, loop).run()

    def _inner_run(
        self,
        flow: Flow,
        inputs: Mapping[str, Any],
        parent_id: str,
        context: RunContext,
        loop: Loop | None = None,
    ) -> FlowRun:
        inner_prefix = f"{parent_id.removeprefix(self.prefix)}/"
        # Remove the restored results, because only the first attempt at the outer step uses them. A retry
        # starts over.
        inner_ids = [id for id in self._finished_steps if id.startswith(inner_prefix)]
        return FlowRun(
            flow,
            inputs,
            self.registry,
            context,
            finished_steps={id.removeprefix(inner_prefix): self._finished_steps.pop(id) for id in inner_ids},
            on_event=self.emit,
            journal=self._journal,
            slots=self._slots,
            prefix=f"{parent_id}/",
            loop=loop,
        )

    # --- steps ---

    def _start_steps(self, ids: list[str]) -> None:
        """Starts steps. If a step has a final result from an earlier attempt at the run, records that result
        instead, and starts the step's successors.
        """
        self._ready.extend(ids)
        while self._ready and (self._loop is None or self._open_steps < self._loop.max_parallel):
            id = self._ready.popleft()
            result = self._finished_steps.get(id)
            if result is not None and self._is_final(id, result):
                self._emit_restored(id, result)
                self._ready.extendleft(reversed(self._record_result(id, result)))
                continue
            self._open_steps += 1
            self._schedule(self.flow.nodes[id], 0)
        if not self._open_steps and self._done is not None and not self._done.done():
            self._done.set_result(None)

    @property
    def restored_count(self) -> int:
        """Number of steps that are not repeated, because an earlier attempt at the run has finished them."""
        return sum(
            self._is_final(id, result) for id, result in self._finished_steps.items() if id in self.flow.nodes
        )

    def _is_final(self, id: str, result: StepResult) -> bool:
        """Returns True if a result from an earlier attempt at the run is kept. Failed steps without a failure
        edge run again.
        """
        return result.state == "succeeded" or self._progress.has_handler(id)

    def _emit_restored(self, id: str, result: StepResult) -> None:
        """Emits the event of a restored step again, for new observers."""
        error = {} if result.error is None else {"error": result.error}
        self.emit(
            "step",
            state=result.state,
            step_id=self.prefix + id,
            kind=self.flow.nodes[id].kind,
            attempt=result.attempts - 1,
            restored=True,
            **error,
        )

    def _schedule(self, node: FlowNode, attempt: int) -> None:
        kind = self.registry.get(node.kind)
        start = partial(self._start_attempt, node, attempt, has_slot=not kind.waits)
        if kind.waits:
            start()
        else:
            self._slots.request(start)

    def _start_attempt(self, node: FlowNode, attempt: int, *, has_slot: bool) -> bool:
        """Starts an attempt at a step. Returns False if the run is over."""
        if self._is_over:
            return False
        task = asyncio.get_running_loop().create_task(self._run_attempt(node, attempt))
        self._tasks.add(task)
        if has_slot:
            self._has_slot.add(task)
        task.add_done_callback(self._on_task_done)
        return True

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # Release the slot here, because a task that is cancelled before it starts cannot do so.
        self._release_slot(task)

    def _release_slot(self, task: asyncio.Task[None] | None) -> None:
        """Releases the slot of a step unless it was released before."""
        if task in self._has_slot:
            self._has_slot.remove(task)
            self._slots.release()

    @property
    def _is_over(self) -> bool:
        return self._done is None or self._done.done()

    async def _run_attempt(self, node: FlowNode, attempt: int) -> None:
        try:
            try:
                with step_span(self.trace, self.context, self.prefix + node.id, node.kind, attempt) as span:
                    step = StepAttempt(self, node, attempt)
                    outcome = await step.run()
                    span.failed = isinstance(outcome, AttemptFailed)
            finally:
                self._release_slot(asyncio.current_task())
            await self._on_attempt_end(node, attempt, outcome, step.clean_up)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # The scheduler failed, not the step. Stop the run, because it would never end otherwise.
            logger.exception("the scheduler failed at step %s", node.id)
            message = f"The runtime failed at step {node.id}: {type(error).__name__}: {error}"
            self._stop(rep_error(PANIC, message, step_id=self.prefix + node.id, cause=type(error).__name__))

    async def _on_attempt_end(
        self,
        node: FlowNode,
        attempt: int,
        outcome: AttemptSucceeded | AttemptFailed,
        clean_up: Callable[[], Awaitable[None]],
    ) -> None:
        if not self._is_over and self._retries.should_retry(node, attempt, outcome):
            self._retries.schedule(node, attempt + 1)
            return
        result = outcome.result
        if self._journal is not None:
            record = outcome.record()
            self.context.quota.use_bytes(len(encode_value(record)))
            await self._journal.step_finished(self.context.run_id, self.prefix + node.id, result, record)
        await clean_up()
        outcome.emit_event(self.emit)
        if self._is_over:
            return
        self._open_steps -= 1
        ready = self._record_result(node.id, result)
        if result.state == "failed" and not self._progress.has_handler(node.id):
            self._stop(result.error)
        else:
            self._start_steps(ready)

    def _record_result(self, id: str, result: StepResult) -> list[str]:
        """Records the result of a step and returns the steps that may start now."""
        self.results[id] = result
        self._counts[result.state] += 1
        self.outputs[id] = result.reference_value
        ready, skipped = self._progress.step_ended(id, result)
        self._skipped += len(skipped)
        for skipped_id in skipped:
            self.emit("skipped", step_id=self.prefix + skipped_id)
        return ready

    # --- the end ---

    def _stop(self, error: dict[str, Any] | None) -> None:
        """Ends the run. Only the first error counts."""
        if self._error is None and not self._is_over:
            self._error = error
        if self._done is not None and not self._done.done():
            self._done.set_result(None)

    async def _stop_tasks(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.cancel()
        self._retries.cancel()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, still_running = await asyncio.wait(tasks, timeout=CANCEL_GRACE_SECONDS)
            for task in still_running:
                logger.warning("a cancelled step does not end: %s", task.get_name())

    def _final_summary(self) -> RunSummary:
        if self._error is None:
            outputs, self._error = self._run_outputs()
        else:
            outputs = None
        return msgspec.structs.replace(self.summary(), outputs=outputs)

    def _run_outputs(self) -> tuple[Any, dict[str, Any] | None]:
        """Returns the outputs of a successful run, or an error if the outputs are too large."""
        if self._loop is not None:
            # Do not check the size here. It is checked as the size of the output of the `for_each` step.
            return [self.outputs[id] for id in self.flow.nodes], None
        outputs = self._finish_outputs()
        if outputs is None:
            outputs = {id: self.outputs[id] for id in self.flow.nodes if self._is_output_step(id)}
        size = len(encode_value(outputs))
        if size > MAX_OUTPUT_BYTES:
            message = (
                f"The outputs of the run have {size} bytes of JSON; the limit is {MAX_OUTPUT_BYTES}."
                " Select the ones that you need with the `outputs` of a finish step."
            )
            return None, rep_error(STEP_FAILED, message)
        return outputs, None

    def _finish_outputs(self) -> Any:
        """Returns the merged outputs of the `finish` steps that were reached, or None if there are none."""
        outputs = [
            self.outputs[id]
            for id, node in self.flow.nodes.items()
            if node.kind == "finish" and id in self.results and self.outputs[id] is not None
        ]
        if len(outputs) <= 1 or not all(isinstance(output, dict) for output in outputs):
            return outputs[-1] if outputs else None
        return {key: value for output in outputs for key, value in output.items()}

    def _is_output_step(self, id: str) -> bool:
        result = self.results.get(id)
        succeeded = result is not None and result.state == "succeeded"
        return succeeded and self.flow.nodes[id].kind != "finish" and self._progress.is_last_step(id)


class Loop(NamedTuple):
    """The items of a `for_each`."""

    values: ReferenceValues
    """Values for the references in the parameters of the `for_each` step."""
    items: Sequence[Any]
    max_parallel: int

    def values_for(self, position: int) -> ReferenceValues:
        return self.values._replace(item=LoopItem(self.items[position], position))


class FlowProgress:
    """State of the edges of a flow.

    Every edge is decided once: it fires or it does not. A step starts when all its incoming edges are decided
    and at least one has fired.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._undecided = {id: len(flow.incoming(id)) for id in flow.nodes}
        self._fired: set[str] = set()

    def has_handler(self, id: str) -> bool:
        """Returns True if the step has a failure edge."""
        return any(edge.on == "failure" for edge in self._flow.outgoing(id))

    def is_last_step(self, id: str) -> bool:
        """Returns True if only `finish` steps follow this step."""
        return all(self._flow.nodes[edge.target].kind == "finish" for edge in self._flow.outgoing(id))

    def step_ended(self, id: str, result: StepResult) -> tuple[list[str], list[str]]:
        """Decides which edges of a finished step are followed. Returns the steps that may start, and the
        skipped steps.
        """
        ready: list[str] = []
        skipped: list[str] = []
        decided_edges = deque(self._decide_edges(id, result))
        while decided_edges:
            edge, fires = decided_edges.popleft()
            target = edge.target
            self._undecided[target] -= 1
            if fires:
                self._fired.add(target)
            if self._undecided[target]:
                continue
            if target in self._fired:
                ready.append(target)
            else:
                skipped.append(target)
                decided_edges.extend((next_edge, False) for next_edge in self._flow.outgoing(target))
        return ready, skipped

    def _decide_edges(self, step_id: str, result: StepResult) -> Iterator[tuple[FlowEdge, bool]]:
        node, edges = self._flow.nodes[step_id], self._flow.outgoing(step_id)
        if node.kind == "switch" and result.state == "succeeded":
            chosen = {id(edge) for edge in taken_edges(self._flow, node, result.output["value"])}
            return ((edge, id(edge) in chosen) for edge in edges)
        on = "failure" if result.state == "failed" else "success"
        return ((edge, edge.on == on) for edge in edges)


class StepSlots:
    """Slots for running steps, given out in the order of the requests.

    The callback of `request` returns True if it uses the slot.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._queue: deque[Callable[[], bool]] = deque()

    def request(self, start: Callable[[], bool]) -> None:
        if self._free and not self._queue:
            if start():
                self._free -= 1
        else:
            self._queue.append(start)

    def release(self) -> None:
        while self._queue:
            if self._queue.popleft()():
                return
        self._free += 1
