"""Supervises the runs of a server. Each run has its own runtime process and is resumed after a crash."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import Busy, HutchError, VaultError
from hutch.protocols.rep.ir.budget import UNLIMITED, ValidationBudget
from hutch.protocols.rep.ir.flow import count_steps
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.jsonrpc import (
    BROKEN_TRANSPORT,
    INVALID_IR,
    PANIC,
    TIMEOUT,
    RpcError,
    cancelled_error,
    rep_error,
)
from hutch.protocols.rep.orchestrator.client import RuntimeTransportError
from hutch.protocols.rep.orchestrator.options import RunOptions
from hutch.protocols.rep.orchestrator.orchestrator import Orchestrator
from hutch.protocols.rep.orchestrator.runtime_choice import builtin_runtime
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.runtime.context import ApprovalDecision
from hutch.protocols.rep.runtime.journal import OPERATOR_OWNERS, run_record
from hutch.protocols.rep.runtime.models import RunSummary
from hutch.protocols.rep.server.run_retry import RetryPlan, RunInProgress, restart_run
from hutch.protocols.rep.server.supervised_run import (
    RunObserver,
    StderrLog,
    SupervisedRun,
    approval_questions,
)
from hutch.protocols.rep.server.validation import ValidationPool
from hutch.session.json_value import decode_value
from hutch.settings import as_environ
from hutch.store.models import FlowRunHead, FlowRunRow, now
from hutch.telemetry.trace_context import parse_context

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.orchestrator.options import RunOutcome
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.rep")

ORIGIN = lease.SERVER_ORIGIN
SWEEP_SECONDS = 2.0
"""Interval for looking up runs that no process executes."""
MAX_LOST_RUNTIMES = 5
"""Maximum number of runtimes that a run may lose without finishing a step, counted across servers."""
RESTART_SECONDS = 0.5
"""Delay before the next runtime starts. The delay doubles after each loss."""
PARK_SECONDS = 60.0
"""Time after which a run that only waits for approvals is stopped. The decision resumes the run."""
UNREADABLE_SECONDS = 300.0
"""Time after which a run that cannot be decrypted is tried again, because its key may be available by then.
"""
_DRAIN_POLL_SECONDS = 0.1
_APPROVE_SECONDS = 30.0


class NotWaiting(HutchError):
    """The step is not waiting for an approval."""

    code = "conflict"


class FlowSupervisor:
    """Starts, resumes and stops the runs of this server. Belongs to one event loop."""

    def __init__(self, settings: Settings, store: Callable[[], Awaitable[Store]]) -> None:
        self.settings = settings
        self.store = store
        """Opens the store. Raises StoreError."""
        self.validation = ValidationPool()
        # Log only warnings and errors, because the output and parameters of steps do not belong in the
        # server's log.
        level = "error" if settings.log_level == "error" else "warning"
        env = as_environ(msgspec.structs.replace(settings, log_level=level))
        self._choice = msgspec.structs.replace(builtin_runtime(), env=env)
        self._slots = asyncio.Semaphore(settings.max_flows)
        self._owner_slots: dict[str, asyncio.Semaphore] = {}
        """Slots per owner. A user gets half of all slots. The operator may use all slots."""
        self._supervised_runs: dict[str, SupervisedRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parked: dict[str, dict[str, dict[str, Any]]] = {}
        """Questions of the runs that were stopped while they wait for approvals, by run id and step id."""
        self._unreadable: dict[str, float] = {}
        """Runs that cannot be decrypted, with the time of the next attempt."""
        self._sweep_task: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Starts a task that resumes interrupted runs: first the runs of earlier servers, then each run whose
        process dies.
        """
        self._sweep_task = asyncio.create_task(self._sweep(), name="hutch flows: sweep")

    async def drain(self, seconds: float) -> None:
        """Starts no further runs, and waits for the current runs except those that only wait for approvals.
        The next server resumes the waiting runs.
        """
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._has_working_runs():  # noqa: ASYNC110 - events change the state
                    await asyncio.sleep(_DRAIN_POLL_SECONDS)

    async def close(self) -> None:
        """Stops the runtimes. The next server resumes the stopped runs."""
        self._closing = True
        tasks = [*self._tasks.values(), *([self._sweep_task] if self._sweep_task else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.validation.close()

    # --- requests ---

    async def start_run(self, row: FlowRunRow) -> FlowRunRow:
        """Starts a run, or returns the existing one with this id. Raises Busy."""
        self._admit(row.owner)
        journal = (await self.store()).journal
        if await journal.add(row):
            self._supervise(row)
            return row
        return await journal.get(row.run_id) or row

    async def cancel(self, run_id: str) -> None:
        """Cancels the run, whichever process executes it. Does nothing after the end of the run."""
        if self._parked.pop(run_id, None) is not None and (task := self._tasks.get(run_id)) is not None:
            # Wait, because the runtime of the parked run may still be stopping.
            await asyncio.wait((task,))
        supervised = self._supervised_runs.get(run_id)
        if supervised is not None and supervised.orchestrator is not None:
            supervised.orchestrator.cancel()
            return
        journal = (await self.store()).journal
        run = await journal.head(run_id)
        if run is None or run.is_over:
            return
        if lease.is_held(run) or not await self._finish(run, cancelled_error(), cancelled=True):
            await journal.add_request(run_id, '{"type":"cancel"}', now())

    async def resume(self, run: FlowRunHead) -> None:
        """Resumes a failed or interrupted run. Does nothing if the run is running."""
        self._admit(run.owner)
        journal = (await self.store()).journal
        can_start = not lease.is_held(run) and run.run_id not in self._parked
        if can_start and (supervised := self._supervised_runs.get(run.run_id)) is not None:
            # The current supervision may be about to store the outcome of the previous attempt. Set the flag
            # before the run is reopened, so that this outcome does not end the reopened run.
            supervised.is_reopened = True
        if run.is_over:
            await journal.reopen(run.run_id, ORIGIN)
        if can_start:
            self._supervise(run)

    async def retry(self, run: FlowRunHead, flow: Flow, from_step: str) -> RetryPlan:
        """Runs a flow run again from a step. Raises InvalidInput and RunInProgress."""
        self._admit(run.owner)
        if run.run_id in self._parked:
            raise RunInProgress()
        if (supervised := self._supervised_runs.get(run.run_id)) is not None and not lease.is_held(run):
            supervised.is_reopened = True  # see `resume`
        plan = await restart_run((await self.store()).journal, run, flow, from_step, origin=ORIGIN)
        self._supervise(run)
        return plan

    async def questions(self, run: FlowRunHead, limit: int = 100, offset: int = 0) -> list[dict[str, Any]]:
        """Returns the questions of steps that wait for an approval, whichever process executes the run."""
        if (parked := self._parked.get(run.run_id)) is not None:
            return list(islice(parked.values(), offset, offset + limit))
        if not lease.is_held(run):
            return []
        journal = (await self.store()).journal
        return approval_questions(await journal.open_approvals(run.run_id, limit=limit, offset=offset))

    async def count_questions(self, run: FlowRunHead) -> int:
        if (parked := self._parked.get(run.run_id)) is not None:
            return len(parked)
        if not lease.is_held(run):
            return 0
        return await (await self.store()).journal.count_open_approvals(run.run_id)

    async def is_asking(self, run: FlowRunHead, step_id: str) -> bool:
        if (parked := self._parked.get(run.run_id)) is not None:
            return step_id in parked
        if not lease.is_held(run):
            return False
        return bool(await (await self.store()).journal.open_approvals(run.run_id, step=step_id, limit=1))

    async def approve(self, run: FlowRunHead, step_id: str, decision: ApprovalDecision) -> None:
        """Passes a decision to a waiting step. Raises NotWaiting."""
        if (parked := self._parked.pop(run.run_id, None)) is not None:
            if step_id not in parked:
                self._parked[run.run_id] = parked
                raise NotWaiting(f"Step {step_id!r} is not waiting for an approval.")
            self._supervise(run).decisions[step_id] = decision
            return
        supervised = self._supervised_runs.get(run.run_id)
        if supervised is None or supervised.orchestrator is None:
            if not lease.is_held(run):
                raise NotWaiting(f"Run {run.run_id} is not running.")
            body = json.dumps({"type": "approve", "step_id": step_id, **decision._asdict()})
            await (await self.store()).journal.add_request(run.run_id, body, now())
            return
        try:
            async with asyncio.timeout(_APPROVE_SECONDS):
                await supervised.orchestrator.approve(
                    step_id, decision.approved, by=decision.by, reason=decision.reason
                )
        except (RpcError, RuntimeTransportError, TimeoutError):
            raise NotWaiting(f"Step {step_id!r} is not waiting for an approval.") from None

    # --- supervision ---

    def _has_working_runs(self) -> bool:
        return any(supervised.is_working for supervised in self._supervised_runs.values())

    async def _sweep(self) -> None:
        while True:
            try:
                unfinished = await (await self.store()).journal.unfinished(ORIGIN)
                self._unreadable = {
                    run_id: until for run_id, until in self._unreadable.items() if until > monotonic()
                }
                for run in unfinished:
                    is_skipped = run.run_id in self._parked or run.run_id in self._unreadable
                    if not is_skipped and not lease.is_held(run):
                        self._supervise(run)
            except HutchError as error:
                logger.warning("interrupted runs could not be looked up: %s", error)
            except Exception:
                logger.exception("interrupted runs could not be looked up")
            await asyncio.sleep(SWEEP_SECONDS)

    def _admit(self, owner: str) -> None:
        """Raises Busy if the queue is full, or if the runs of this user fill half of it."""
        max_queue = self.settings.max_queue
        if self._closing or len(self._tasks) >= max_queue:
            raise Busy("Too many flow runs are waiting.", retry_after=5)
        own_runs = sum(supervised.owner == owner for supervised in self._supervised_runs.values())
        if owner not in OPERATOR_OWNERS and 2 * own_runs > max_queue:
            raise Busy("Too many of your flow runs are waiting.", retry_after=5)

    def _supervise(self, run: FlowRunHead) -> SupervisedRun:
        run_id = run.run_id
        if run_id not in self._supervised_runs:
            supervised = self._supervised_runs[run_id] = SupervisedRun(run.owner)
            if not self._closing:
                task = asyncio.create_task(
                    self._run_to_end(run_id, supervised), name=f"hutch flow run {run_id}"
                )
                self._tasks[run_id] = task
                task.add_done_callback(lambda _: self._on_supervision_end(run))
        return self._supervised_runs[run_id]

    def _on_supervision_end(self, run: FlowRunHead) -> None:
        del self._tasks[run.run_id]
        supervised = self._supervised_runs.pop(run.run_id)
        if supervised.decisions or supervised.is_reopened:
            # Continue, because decisions arrived while the run was being parked, or the run was resumed after
            # its end.
            self._supervise(run).decisions |= supervised.decisions
        if all(other.owner != run.owner for other in self._supervised_runs.values()):
            self._owner_slots.pop(run.owner, None)

    def _slots_of(self, owner: str) -> asyncio.Semaphore:
        max_flows = self.settings.max_flows
        slots = max_flows if owner in OPERATOR_OWNERS else (max_flows + 1) // 2
        return self._owner_slots.setdefault(owner, asyncio.Semaphore(slots))

    async def _run_to_end(self, run_id: str, supervised: SupervisedRun) -> None:
        """Runs a flow to its end, on as many runtimes as necessary."""
        try:
            async with self._slots_of(supervised.owner), self._slots:
                lost, steps = 0, -1
                while await self._run_once(run_id, supervised, lost):
                    before, steps = steps, await (await self.store()).journal.count_results(run_id)
                    lost = lost + 1 if steps == before else 1
                    await asyncio.sleep(RESTART_SECONDS * 2 ** (lost - 1))
        except VaultError as error:
            # Let sweeps skip this run for a while, because they could not decrypt it either. A user's request
            # to resume the run is still tried. Drop pending decisions, because they would trigger an
            # immediate retry. The steps ask again when the run can be decrypted.
            self._unreadable[run_id] = monotonic() + UNREADABLE_SECONDS
            supervised.decisions.clear()
            logger.error("run %s cannot be resumed: %s", run_id, error)
        except HutchError as error:
            # Only log the error, because the next sweep tries again.
            logger.error("run %s cannot be resumed: %s", run_id, error)
        except Exception as error:
            # End the run, because the same unexpected error would probably occur in every sweep.
            logger.exception("run %s cannot be resumed", run_id)
            await self._abort(run_id, rep_error(PANIC, "The server failed.", cause=type(error).__name__))

    async def _abort(self, run_id: str, error: dict[str, Any]) -> None:
        with contextlib.suppress(HutchError):
            run = await (await self.store()).journal.head(run_id)
            if run is not None and not run.is_over:
                await self._finish(run, error)

    async def _run_once(self, run_id: str, supervised: SupervisedRun, lost: int) -> bool:
        """Runs a flow on one runtime. Returns True if another runtime has to continue the run.

        `lost` is the number of runtimes that this run has lost without progress. Raises VaultError if this
        server or the runtime cannot decrypt the run.
        """
        journal = (await self.store()).journal
        run = await journal.get(run_id)
        if self._closing or run is None or run.is_over or lease.is_held(run):
            return False
        if max(run.claims, lost) >= MAX_LOST_RUNTIMES:
            await self._finish(run, _lost_runtimes_error())
            return False
        try:
            flow, inputs, options = await self.validation.run(
                run.owner, lambda budget: restore_run(run, resume=False, budget=budget)
            )
        except InvalidFlow as error:
            await self._finish(run, rep_error(INVALID_IR, error.message, details=error.details))
            return False
        # Do not request the outputs, because decoding them here would block the event loop. The journal
        # contains them.
        options = msgspec.structs.replace(options, extra={**options.extra, "outputs": False})
        stderr = StderrLog(run_id)
        supervised.observer = RunObserver(flow, options)
        supervised.orchestrator = Orchestrator(
            flow, inputs, self._choice, options, on_event=supervised.on_event, on_stderr=stderr.write
        )
        try:
            outcome = await self._run_orchestrator(run_id, supervised.orchestrator, supervised.observer)
        finally:
            supervised.orchestrator = None
        if outcome is None or supervised.is_reopened:
            return False
        head = await journal.head(run_id)
        if head is None or head.is_over or lease.is_held(head):
            return False
        # At this point the run has not ended, and no process executes it.
        if outcome.cancelled:
            return not await self._finish(head, cancelled_error(), cancelled=True)
        if outcome.error is not None and _is_unreadable(outcome.error):
            raise VaultError(outcome.error["message"])
        if outcome.error is None or _is_worth_retrying(outcome.error, options):
            logger.warning(
                "the runtime of run %s was lost: %s", run_id, outcome.error or "it stored no result"
            )
            return True
        return not await self._finish(head, outcome.error)

    async def _run_orchestrator(
        self, run_id: str, orchestrator: Orchestrator, observer: RunObserver
    ) -> RunOutcome | None:
        """Runs the orchestrator and returns the outcome. Returns None if the run was parked to wait for
        approvals.
        """
        running = asyncio.create_task(orchestrator.run())
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=PARK_SECONDS / 4)
                if not running.done() and observer.can_be_parked(PARK_SECONDS):
                    self._parked[run_id] = dict(observer.questions)
                    return None
            return running.result()
        finally:
            running.cancel()
            await asyncio.wait((running,))

    async def _finish(self, run: FlowRunHead, error: dict[str, Any], *, cancelled: bool = False) -> bool:
        """Stores the end of a run that no process executes. Returns False if a process executes it again."""
        journal = (await self.store()).journal
        counts = await journal.step_counts(run.run_id)
        stored = await self._stored(run.run_id)
        options = {} if stored is None else json.loads(stored.options)
        trace = parse_context(options.get)
        summary = RunSummary(
            completed_steps=counts.completed,
            failed_steps=counts.failed,
            skipped_steps=0,
            total_steps=0 if stored is None else count_steps(stored.document),
            error=error,
            cancelled=cancelled,
        )
        at = now()
        record = run_record(
            run,
            summary,
            at,
            self.settings,
            key=options.get("key"),
            trace_id=None if trace is None else trace.trace_id,
        )
        return await journal.finish(run, record, json.dumps(summary.wire), at)

    async def _stored(self, run_id: str) -> FlowRunRow | None:
        """Returns a run. Returns None if the run cannot be decrypted, because callers can end such a run
        without its content.
        """
        try:
            return await (await self.store()).journal.get(run_id)
        except VaultError:
            return None


def _is_unreadable(error: dict[str, Any]) -> bool:
    """Returns True if the runtime could not decrypt the journal, because the key is missing or the data was
    altered.
    """
    return (error["code"], error["data"].get("cause")) == (PANIC, VaultError.__name__)


def _is_worth_retrying(error: dict[str, Any], options: RunOptions) -> bool:
    """Returns True if another runtime may succeed. A timeout of the run or a refusal is final."""
    if error["data"]["details"].get("held"):
        return True
    timed_out = options.timeout is not None and error["data"].get("cause") == TIMEOUT
    return error["code"] in (BROKEN_TRANSPORT, PANIC) and not timed_out


def _lost_runtimes_error() -> dict[str, Any]:
    message = f"The runtime was lost {MAX_LOST_RUNTIMES} times without progress; see the server's log."
    return rep_error(BROKEN_TRANSPORT, message, cause="Ended")


def restore_run(
    run: FlowRunRow,
    *,
    timeout: float | None = None,
    log_json: bool = False,
    resume: bool = True,
    budget: ValidationBudget = UNLIMITED,
) -> tuple[Flow, dict[str, Any], RunOptions]:
    """Returns the flow, the inputs and the options of a stored run.

    `timeout` overrides the timeout of the run. With `resume`, a failed or cancelled run is resumed too.
    Raises InvalidFlow if this version of Hutch cannot read the flow.
    """
    stored = json.loads(run.options)
    stored_timeout = stored.pop("timeout", None)
    fields = {"trace_id": stored.pop("trace_id", None), "allow_shell": stored.pop("allow_shell", None)}
    options = RunOptions(
        run_id=run.run_id,
        timeout=timeout or stored_timeout,
        log_json=log_json,
        extra={**stored, "journal": True, "resume": resume},
        **{name: value for name, value in fields.items() if value is not None},
    )
    document = msgspec.json.decode(run.document)
    return parse_flow(document, budget), decode_value(run.inputs.encode()), options
