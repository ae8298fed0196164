"""Runs a flow: steps as soon as what they wait for is over, so many at once, with time limits and retries."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep.attempt import Attempt, Failed, Succeeded
from hutch.doors.rep.capabilities import CONCURRENCY
from hutch.doors.rep.codes import BROKEN_TRANSPORT, CANCELLED, PANIC, STEP_FAILED, TIMEOUT, failure
from hutch.doors.rep.outputs import outputs_of
from hutch.doors.rep.places import Places
from hutch.doors.rep.progress import Progress
from hutch.doors.rep.steps import StepResult, Summary

if TYPE_CHECKING:
    from hutch.doors.rep.context import Context
    from hutch.doors.rep.flow import Flow, Node
    from hutch.doors.rep.kinds.registry import Registry
    from hutch.doors.rep.steps import Journal

logger = logging.getLogger("hutch.rep")

OnEvent = Callable[..., None]
"""Gets the type of an event and, by name, what is in it."""

# How long steps that were cancelled may take to go.
GRACE_SECONDS = 2.0


class FlowRun:
    """One run of one flow. `run` it once, in the event loop that made it."""

    def __init__(
        self,
        flow: Flow,
        inputs: Mapping[str, Any],
        registry: Registry,
        context: Context,
        *,
        concurrency: int = CONCURRENCY,
        finished: Mapping[str, StepResult] | None = None,
        on_event: OnEvent = lambda type, **fields: None,
        journal: Journal | None = None,
        places: Places | None = None,
        prefix: str = "",
    ) -> None:
        """`finished` are the steps of an earlier try at the same run, which are not done again.

        `places` and `prefix` are a sub-flow's: it shares those of the flow it is in, and its steps are named
        after the step that it is.
        """
        self.flow = flow
        self.inputs = inputs
        self.context = context
        self.registry = registry
        self.prefix = prefix
        self.outputs: dict[str, Any] = {}
        self.results: dict[str, StepResult] = {}
        self.deadline: float | None = None
        self.emit = on_event
        self._finished = dict(finished or {})
        self._journal = journal
        self._places = places or Places(concurrency)
        self._progress = Progress(flow)
        self._skipped = 0
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_place: set[asyncio.Task[None]] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self._error: dict[str, Any] | None = None
        self._cancelled = False
        self._over: asyncio.Future[None] | None = None

    async def run(self) -> Summary:
        """To the end, whatever it is. Cancelling the caller cancels the run."""
        assert self._over is None, "a flow run is run once"
        self._over = asyncio.get_running_loop().create_future()
        seconds = self.flow.timeout_ms / 1000 or None
        self.deadline = None if seconds is None else monotonic() + seconds
        try:
            self._begin(self.flow.entries())
            async with asyncio.timeout(seconds):
                # Not awaited itself: it would be cancelled with us.
                await asyncio.wait((self._over,))
        except TimeoutError:
            message = f"The flow {self.flow.name} took longer than its {self.flow.timeout_ms} ms."
            self._stop(failure(BROKEN_TRANSPORT, message, cause=TIMEOUT))
        except asyncio.CancelledError:
            self.cancel()
            raise
        finally:
            await self._let_go()
        return self._last()

    def cancel(self) -> None:
        """Ends the run as soon as its steps have let go. Nothing happens if it is over."""
        if self._over is not None and not self._over.done():
            self._cancelled = True
            self._stop(failure(STEP_FAILED, "The run was cancelled.", cause=CANCELLED))

    def summary(self) -> Summary:
        """How far it is."""
        states = [each.state for each in self.results.values()]
        return Summary(
            completed_steps=states.count("succeeded"),
            failed_steps=states.count("failed"),
            skipped_steps=self._skipped,
            total_steps=len(self.flow.nodes),
            error=self._error,
            cancelled=self._cancelled,
        )

    def is_last(self, id: str) -> bool:
        """Whether nothing comes after a step but the end."""
        return self._progress.is_last(id)

    async def nested(self, flow: Flow, inputs: Mapping[str, Any], within: str, context: Context) -> Summary:
        """Runs another flow as a step of this one."""
        own = f"{within.removeprefix(self.prefix)}/"
        # Given to the first attempt only: a later one begins anew.
        known = [id for id in self._finished if id.startswith(own)]
        inner = FlowRun(
            flow,
            inputs,
            self.registry,
            context,
            finished={id.removeprefix(own): self._finished.pop(id) for id in known},
            on_event=self.emit,
            journal=self._journal,
            places=self._places,
            prefix=f"{within}/",
        )
        return await inner.run()

    # --- steps ---

    def _begin(self, ids: list[str]) -> None:
        """Begins steps; those that were over before, and what follows from them, without further ado."""
        waiting = list(reversed(ids))
        while waiting:
            id = waiting.pop()
            known = self._finished.get(id)
            if known is not None and self._stands(id, known):
                self._tell_again(id, known)
                waiting += reversed(self._settle(id, known))
                continue
            self._open += 1
            self._ask(self.flow.nodes[id], 0)
        if not self._open and self._over is not None and not self._over.done():
            self._over.set_result(None)

    @property
    def restored(self) -> int:
        """How many of its steps were over before, and are not done again."""
        own = [(id, known) for id, known in self._finished.items() if id in self.flow.nodes]
        return sum(self._stands(id, known) for id, known in own)

    def _stands(self, id: str, known: StepResult) -> bool:
        """Whether a step is over for good: what failed without a way on is tried again."""
        return known.state == "succeeded" or self._progress.has_handler(id)

    def _tell_again(self, id: str, known: StepResult) -> None:
        """For who looks on now, and did not then."""
        error = {} if known.error is None else {"error": known.error}
        self.emit(
            "step",
            state=known.state,
            step_id=self.prefix + id,
            kind=self.flow.nodes[id].kind,
            attempt=known.attempts - 1,
            restored=True,
            **error,
        )

    def _ask(self, node: Node, attempt: int) -> None:
        kind = self.registry.get(node.kind)
        begin = partial(self._start, node, attempt, has_place=not kind.waits)
        if kind.waits:
            begin()
        else:
            self._places.ask(begin)

    def _start(self, node: Node, attempt: int, *, has_place: bool) -> bool:
        """Whether there is anything to do still."""
        if self._is_over:
            return False
        task = asyncio.get_running_loop().create_task(self._attempt(node, attempt))
        self._tasks.add(task)
        if has_place:
            self._has_place.add(task)
        task.add_done_callback(self._gone)
        return True

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        # One that was cancelled before it had a turn could not do it itself.
        self._give_back(task)

    def _give_back(self, task: asyncio.Task[None] | None) -> None:
        """The place of a step, if it has one still."""
        if task in self._has_place:
            self._has_place.remove(task)
            self._places.give_back()

    @property
    def _is_over(self) -> bool:
        return self._over is None or self._over.done()

    async def _attempt(self, node: Node, attempt: int) -> None:
        try:
            try:
                end = await Attempt(self, node, attempt).run()
            finally:
                self._give_back(asyncio.current_task())
            await self._ended(node, attempt, end)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # No step's fault: without an end here, the run would have none.
            logger.exception("the engine failed at step %s", node.id)
            message = f"The runtime failed at step {node.id}: {type(error).__name__}: {error}"
            self._stop(failure(PANIC, message, step_id=self.prefix + node.id, cause=type(error).__name__))

    async def _ended(self, node: Node, attempt: int, end: Succeeded | Failed) -> None:
        if isinstance(end, Failed) and end.again and attempt < node.retry_max and not self._is_over:
            self._later(node, attempt + 1)
            return
        result = end.result
        if self._journal is not None:
            await self._journal.step_finished(self.context.run_id, self.prefix + node.id, result)
        end.tell(self.emit)
        if self._is_over:
            return
        self._open -= 1
        ready = self._settle(node.id, result)
        if result.state == "failed" and not self._progress.has_handler(node.id):
            self._stop(result.error)
        else:
            self._begin(ready)

    def _later(self, node: Node, attempt: int) -> None:
        def again() -> None:
            self._timers.discard(timer)
            self._ask(node, attempt)

        seconds = node.backoff_ms / 1000
        message = f"trying again in {seconds:g} s" if seconds else "trying again"
        self.emit("log", level="warning", message=message, step_id=self.prefix + node.id, attempt=attempt)
        timer = asyncio.get_running_loop().call_later(seconds, again)
        self._timers.add(timer)

    def _settle(self, id: str, result: StepResult) -> list[str]:
        """A step is over: what may begin now."""
        self.results[id] = result
        self.outputs[id] = result.seen
        ready, skipped = self._progress.ended(id, result)
        self._skipped += len(skipped)
        for each in skipped:
            self.emit("skipped", step_id=self.prefix + each)
        return ready

    # --- the end ---

    def _stop(self, error: dict[str, Any] | None) -> None:
        """The first reason is the run's."""
        if self._error is None and not self._is_over:
            self._error = error
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    async def _let_go(self) -> None:
        if self._over is not None and not self._over.done():
            self._over.cancel()
        for timer in self._timers:
            timer.cancel()
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=GRACE_SECONDS)
            for task in left:
                logger.warning("a step does not end although it was cancelled: %s", task.get_name())

    def _last(self) -> Summary:
        if self._error is None:
            outputs, self._error = outputs_of(self)
        else:
            outputs = None
        return msgspec.structs.replace(self.summary(), outputs=outputs)
