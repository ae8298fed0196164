"""The runs of a server: each on a runtime in a process of its own, gone on with after a crash of either."""

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

from hutch.doors.rep import holders
from hutch.doors.rep.care import Care, Complaints, Said
from hutch.doors.rep.choice import own
from hutch.doors.rep.codes import (
    BROKEN_TRANSPORT,
    CANCELLED,
    INVALID_IR,
    PANIC,
    STEP_FAILED,
    TIMEOUT,
    RpcError,
    failure,
)
from hutch.doors.rep.continuing import given
from hutch.doors.rep.executor import TransportBroken
from hutch.doors.rep.journal import OPERATOR
from hutch.doors.rep.orchestrator import FlowDrive
from hutch.doors.rep.problems import InvalidFlow
from hutch.doors.rep.records import record_of
from hutch.doors.rep.steps import Summary
from hutch.doors.rep.waiting import waiting
from hutch.doors.rep.watching import Watch
from hutch.errors import Busy, HutchError, VaultError
from hutch.settings import as_environ
from hutch.store.rows import FlowRunHead, FlowRunRow, now

if TYPE_CHECKING:
    from hutch.doors.rep.outcome import RunEnd, RunOptions
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.rep")

ORIGIN = "server"
SWEEP_SECONDS = 2.0
"""How often we look for runs that nobody goes on with."""
MOST_LOST = 5
"""How many runtimes a run may lose without getting a step further, also over several servers."""
AGAIN_SECONDS = 0.5
"""After a runtime was lost, before the next is started; longer every time."""
ASIDE_SECONDS = 60.0
"""After so long, a run that only waits for approvals is ended, and gone on with when there is one."""
SHUT_SECONDS = 300.0
"""After so long, a run that did not open is tried again: its keys may be there by then."""
_LOOK_SECONDS = 0.1
_ANSWER_SECONDS = 30.0


class NotWaiting(HutchError):
    """The step waits for no approval."""

    code = "conflict"


class Flows:
    """Runs of flows, in this process's care. They belong to its event loop."""

    def __init__(self, settings: Settings, store: Callable[[], Awaitable[Store]]) -> None:
        self.settings = settings
        self.store = store
        """Raises StoreError."""
        # Not finer: what steps print, and what they are given, is no matter of the server's log.
        level = "error" if settings.log_level == "error" else "warning"
        env = as_environ(msgspec.structs.replace(settings, log_level=level))
        self._choice = msgspec.structs.replace(own(), env=env)
        self._places = asyncio.Semaphore(settings.max_flows)
        self._shares: dict[str, asyncio.Semaphore] = {}
        """Of these places, so many are any one user's at a time; whoever runs the server may have all."""
        self._cares: dict[str, Care] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._aside: dict[str, dict[str, dict[str, Any]]] = {}
        """Runs that only wait, and have no process any more; what their steps ask."""
        self._shut: dict[str, float] = {}
        """Runs that do not open, and until when they are left: they were altered, or their keys are gone."""
        self._sweeping: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Goes on with what an earlier server left, and from now on with whatever is left by anybody."""
        self._sweeping = asyncio.create_task(self._sweep(), name="hutch flows: sweep")

    async def drain(self, seconds: float) -> None:
        """Begins nothing more, and gives what runs some time. What only waits can go on another day."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while any(care.is_working for care in self._cares.values()):  # noqa: ASYNC110 - as far as we hear
                    await asyncio.sleep(_LOOK_SECONDS)

    async def close(self) -> None:
        """Ends the runtimes. Their runs are gone on with by the next server."""
        self._closing = True
        tasks = [*self._tasks.values(), *([self._sweeping] if self._sweeping else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- what is asked of it ---

    async def begin(self, row: FlowRunRow) -> FlowRunRow:
        """Begins a run, or gives the one that has its id already. Raises Busy."""
        self._admit(row.owner)
        journal = (await self.store()).journal
        if await journal.add(row):
            self._care_for(row)
            return row
        return await journal.get(row.run_id) or row

    async def cancel(self, run_id: str) -> None:
        """Wherever it runs. Nothing happens if it is over."""
        if self._aside.pop(run_id, None) is not None and (task := self._tasks.get(run_id)) is not None:
            # Its process may be on its way out still.
            await asyncio.wait((task,))
        care = self._cares.get(run_id)
        if care is not None and care.drive is not None:
            care.drive.cancel()
            return
        journal = (await self.store()).journal
        run = await journal.head(run_id)
        if run is None or run.is_over:
            return
        if holders.is_held(run) or not await self._finish(run, _cancelled(), cancelled=True):
            await journal.ask(run_id, '{"type":"cancel"}', now())

    async def resume(self, run: FlowRunHead) -> None:
        """Goes on with a run that failed or was interrupted. Nothing happens if it is under way."""
        self._admit(run.owner)
        journal = (await self.store()).journal
        if run.is_over:
            await journal.reopen(run.run_id, ORIGIN)
        if not holders.is_held(run) and run.run_id not in self._aside:
            # Whoever cared for it until now may be about to leave.
            if (care := self._cares.get(run.run_id)) is not None:
                care.is_reopened = True
            self._care_for(run)

    async def questions(self, run: FlowRunHead, limit: int = 100, offset: int = 0) -> list[dict[str, Any]]:
        """What its steps ask, wherever it runs; so many, after so many."""
        if (asked := self._aside.get(run.run_id)) is not None:
            return list(islice(asked.values(), offset, offset + limit))
        if not holders.is_held(run):
            return []
        journal = (await self.store()).journal
        return waiting(await journal.asking(run.run_id, limit=limit, offset=offset))

    async def count_questions(self, run: FlowRunHead) -> int:
        """How many of its steps ask something."""
        if (asked := self._aside.get(run.run_id)) is not None:
            return len(asked)
        if not holders.is_held(run):
            return 0
        return await (await self.store()).journal.count_asking(run.run_id)

    async def asks(self, run: FlowRunHead, step_id: str) -> bool:
        """Whether this step asks something."""
        if (asked := self._aside.get(run.run_id)) is not None:
            return step_id in asked
        if not holders.is_held(run):
            return False
        return bool(await (await self.store()).journal.asking(run.run_id, step=step_id, limit=1))

    async def approve(self, run: FlowRunHead, step_id: str, said: Said) -> None:
        """Somebody's word for a step that waits for it. Raises NotWaiting."""
        if (asked := self._aside.pop(run.run_id, None)) is not None:
            if step_id not in asked:
                self._aside[run.run_id] = asked
                raise NotWaiting(f"Step {step_id!r} waits for no approval.")
            self._care_for(run).words[step_id] = said
            return
        care = self._cares.get(run.run_id)
        if care is None or care.drive is None:
            if not holders.is_held(run):
                raise NotWaiting(f"Run {run.run_id} is not under way.")
            body = json.dumps({"type": "approve", "step_id": step_id, **said._asdict()})
            await (await self.store()).journal.ask(run.run_id, body, now())
            return
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await care.drive.approve(step_id, said.approved, by=said.by, reason=said.reason)
        except (RpcError, TransportBroken, TimeoutError):
            raise NotWaiting(f"Step {step_id!r} waits for no approval.") from None

    def is_aside(self, run_id: str) -> bool:
        """Whether it waits for somebody's word, and nothing else of it is there."""
        return run_id in self._aside

    # --- runs ---

    async def _sweep(self) -> None:
        while True:
            try:
                unfinished = await (await self.store()).journal.unfinished(ORIGIN)
                self._shut = {run_id: until for run_id, until in self._shut.items() if until > monotonic()}
                for run in unfinished:
                    is_left = run.run_id in self._aside or run.run_id in self._shut
                    if not is_left and not holders.is_held(run):
                        self._care_for(run)
            except HutchError as error:
                logger.warning("flows that nobody goes on with were not looked for: %s", error)
            except Exception:
                logger.exception("flows that nobody goes on with were not looked for")
            await asyncio.sleep(SWEEP_SECONDS)

    def _admit(self, owner: str) -> None:
        """Half of the queue is the most that one user may fill. Raises Busy."""
        most = self.settings.max_queue
        if self._closing or len(self._tasks) >= most:
            raise Busy("Too many runs of flows are waiting.", retry_after=5)
        if owner not in OPERATOR and 2 * sum(care.owner == owner for care in self._cares.values()) > most:
            raise Busy("Too many runs of flows of yours are waiting.", retry_after=5)

    def _care_for(self, run: FlowRunHead) -> Care:
        run_id = run.run_id
        if run_id not in self._cares:
            care = self._cares[run_id] = Care(run.owner)
            if not self._closing:
                task = asyncio.create_task(self._see_through(run_id, care), name=f"hutch flow run {run_id}")
                self._tasks[run_id] = task
                task.add_done_callback(lambda _: self._forget(run))
        return self._cares[run_id]

    def _forget(self, run: FlowRunHead) -> None:
        del self._tasks[run.run_id]
        care = self._cares.pop(run.run_id)
        if care.words or care.is_reopened:
            # They came while it was being put aside, or after its end.
            self._care_for(run).words |= care.words
        if all(each.owner != run.owner for each in self._cares.values()):
            self._shares.pop(run.owner, None)

    def _share(self, owner: str) -> asyncio.Semaphore:
        most = self.settings.max_flows
        number = most if owner in OPERATOR else (most + 1) // 2
        return self._shares.setdefault(owner, asyncio.Semaphore(number))

    async def _see_through(self, run_id: str, care: Care) -> None:
        """To its end, over as many runtimes as that takes."""
        try:
            async with self._share(care.owner), self._places:
                lost, steps = 0, -1
                while await self._go_on(run_id, care, lost):
                    before, steps = steps, await self._steps(run_id)
                    lost = lost + 1 if steps == before else 1
                    await asyncio.sleep(AGAIN_SECONDS * 2 ** (lost - 1))
        except VaultError as error:
            # The next sweep would find the same; who asks for it may try. What was said to its steps would
            # have it tried at once, again and again; they ask again when it opens.
            self._shut[run_id] = monotonic() + SHUT_SECONDS
            care.words.clear()
            logger.error("run %s cannot be gone on with: %s", run_id, error)
        except HutchError as error:
            # The next sweep finds it.
            logger.error("run %s cannot be gone on with: %s", run_id, error)
        except Exception as error:
            # It would be the same at every sweep.
            logger.exception("run %s cannot be gone on with", run_id)
            await self._give_up(run_id, failure(PANIC, "The server failed.", cause=type(error).__name__))

    async def _give_up(self, run_id: str, error: dict[str, Any]) -> None:
        with contextlib.suppress(HutchError):
            run = await (await self.store()).journal.head(run_id)
            if run is not None and not run.is_over:
                await self._finish(run, error)

    async def _steps(self, run_id: str) -> int:
        return sum(await (await self.store()).journal.counts(run_id))

    async def _go_on(self, run_id: str, care: Care, lost: int) -> bool:
        """On one runtime. Whether it is worth another, after so many that got no further.

        Raises VaultError if the run does not open, here or there.
        """
        journal = (await self.store()).journal
        run = await journal.get(run_id)
        if self._closing or run is None or run.is_over or holders.is_held(run):
            return False
        if max(run.claims, lost) >= MOST_LOST:
            await self._finish(run, _hopeless())
            return False
        try:
            flow, inputs, options = await asyncio.to_thread(given, run, resume=False)
        except InvalidFlow as error:
            await self._finish(run, failure(INVALID_IR, error.message, details=error.details))
            return False
        complaints = Complaints(run_id)
        care.watch = Watch(flow, options)
        care.drive = FlowDrive(
            flow, inputs, self._choice, options, on_event=care.hear, on_stderr=complaints.hear
        )
        try:
            end = await self._drive(run_id, care.drive, care.watch)
        finally:
            care.drive = None
        if end is None:
            return False
        left = await journal.head(run_id)
        if left is None or left.is_over or holders.is_held(left):
            return False
        # It is not over, says the journal, and nobody has it.
        if end.cancelled:
            return not await self._finish(left, _cancelled(), cancelled=True)
        if end.error is not None and _does_not_open(end.error):
            raise VaultError(end.error["message"])
        if end.error is None or _may_be_mended(end.error, options):
            logger.warning("the runtime of run %s was lost: %s", run_id, end.error or "no end was written")
            return True
        return not await self._finish(left, end.error)

    async def _drive(self, run_id: str, drive: FlowDrive, watch: Watch) -> RunEnd | None:
        """How it ended; None if it was put aside, because it only waits for somebody."""
        running = asyncio.create_task(drive.run())
        try:
            while not running.done():
                await asyncio.wait((running,), timeout=ASIDE_SECONDS / 4)
                if not running.done() and watch.may_be_put_aside(ASIDE_SECONDS):
                    self._aside[run_id] = dict(watch.questions)
                    return None
            return running.result()
        finally:
            running.cancel()
            await asyncio.wait((running,))

    async def _finish(self, run: FlowRunHead, error: dict[str, Any], *, cancelled: bool = False) -> bool:
        """Writes the end of a run that nobody holds. False if somebody does by now."""
        journal = (await self.store()).journal
        counts = await journal.counts(run.run_id)
        summary = Summary(
            completed_steps=counts.completed,
            failed_steps=counts.failed,
            skipped_steps=0,
            total_steps=await self._total(run),
            error=error,
            cancelled=cancelled,
        )
        at = now()
        return await journal.finish(run, record_of(run, summary, at), json.dumps(summary.wire), at)

    async def _total(self, run: FlowRunHead) -> int:
        """0 if it does not open: that is no reason not to end it."""
        try:
            found = await (await self.store()).journal.get(run.run_id)
        except VaultError:
            return 0
        return 0 if found is None else len(json.loads(found.document)["graph"]["nodes"])


def _does_not_open(error: dict[str, Any]) -> bool:
    """Whether the runtime could not read or write the journal for want of keys, or because it was altered."""
    return (error["code"], error["data"].get("cause")) == (PANIC, VaultError.__name__)


def _may_be_mended(error: dict[str, Any], options: RunOptions) -> bool:
    """Whether another runtime may get further: not if the run's time is over, or it is refused."""
    if error["data"]["details"].get("held"):
        return True
    timed_out = options.timeout is not None and error["data"].get("cause") == TIMEOUT
    return error["code"] in (BROKEN_TRANSPORT, PANIC) and not timed_out


def _cancelled() -> dict[str, Any]:
    return failure(STEP_FAILED, "The run was cancelled.", cause=CANCELLED)


def _hopeless() -> dict[str, Any]:
    message = f"The runtime was lost {MOST_LOST} times at the same place; the server's log says how."
    return failure(BROKEN_TRANSPORT, message, cause="Ended")
