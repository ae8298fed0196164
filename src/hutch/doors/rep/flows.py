"""The runs of a server: each on a runtime in a process of its own, gone on with after a crash of either."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep import holders
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
from hutch.doors.rep.orchestrator import FlowDrive
from hutch.doors.rep.problems import InvalidFlow
from hutch.doors.rep.records import record_of
from hutch.doors.rep.steps import Summary
from hutch.errors import Busy, HutchError
from hutch.settings import as_environ
from hutch.store.rows import FlowRunHead, FlowRunRow, now

if TYPE_CHECKING:
    from hutch.doors.rep.outcome import RunOptions
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.rep")

ORIGIN = "server"
SWEEP_SECONDS = 2.0
"""How often we look for runs that nobody goes on with."""
MOST_CLAIMS = 5
"""How often a run is begun again without getting a step further."""
AGAIN_SECONDS = 1.0
"""After a runtime was lost, before the next is started; longer every time."""
# Of what runtimes write to stderr, for each run.
MOST_STDERR_BYTES = 48 * 1024


class NotWaiting(HutchError):
    """The step waits for no approval."""

    code = "conflict"


class Flows:
    """Runs of flows, in this process's care. They belong to its event loop."""

    def __init__(self, settings: Settings, store: Callable[[], Awaitable[Store]]) -> None:
        self.settings = settings
        self.store = store
        """Raises StoreError."""
        self._choice = msgspec.structs.replace(own(), env=as_environ(settings))
        self._places = asyncio.Semaphore(settings.max_flows)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._drives: dict[str, FlowDrive] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._closing = False

    def start(self) -> None:
        """Goes on with what an earlier server left, and from now on with whatever is left by anybody."""
        self._sweeping = asyncio.create_task(self._sweep(), name="hutch flows: sweep")

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
        if self._closing or len(self._tasks) >= self.settings.max_queue:
            raise Busy("Too many runs of flows are waiting.", retry_after=5)
        journal = (await self.store()).journal
        if await journal.add(row):
            self._care_for(row.run_id)
            return row
        return await journal.get(row.run_id) or row

    async def cancel(self, run_id: str) -> None:
        """Wherever it runs. Nothing happens if it is over."""
        if (drive := self._drives.get(run_id)) is not None:
            drive.cancel()
            return
        journal = (await self.store()).journal
        run = await journal.head(run_id)
        if run is None or run.is_over:
            return
        if holders.is_held(run):
            await journal.ask(run_id, '{"type":"cancel"}', now())
        elif not await self._finish(run, _cancelled(), cancelled=True):
            # Somebody began it at this very moment.
            await journal.ask(run_id, '{"type":"cancel"}', now())

    async def resume(self, run: FlowRunHead) -> None:
        """Goes on with a run that failed or was interrupted. Nothing happens if it is under way."""
        journal = (await self.store()).journal
        if run.is_over:
            await journal.reopen(run.run_id, ORIGIN)
        if not holders.is_held(run):
            self._care_for(run.run_id)

    async def approve(
        self, run: FlowRunHead, step_id: str, approved: bool, by: str | None, reason: str | None
    ) -> None:
        """Somebody's word for a step that waits for it. Raises NotWaiting."""
        told = {"step_id": step_id, "approved": approved, "by": by, "reason": reason}
        drive = self._drives.get(run.run_id)
        if drive is None:
            if not holders.is_held(run):
                raise NotWaiting(f"Run {run.run_id} is not under way.")
            body = json.dumps({"type": "approve", **told})
            await (await self.store()).journal.ask(run.run_id, body, now())
            return
        try:
            await drive.approve(step_id, approved, by=by, reason=reason)
        except RpcError:
            raise NotWaiting(f"Step {step_id!r} waits for no approval.") from None
        except TransportBroken:
            raise NotWaiting(f"Run {run.run_id} is not under way.") from None

    # --- runs ---

    async def _sweep(self) -> None:
        while True:
            try:
                for run in await (await self.store()).journal.unfinished(ORIGIN):
                    if not holders.is_held(run):
                        self._care_for(run.run_id)
            except HutchError as error:
                logger.warning("flows that nobody goes on with were not looked for: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    def _care_for(self, run_id: str) -> None:
        if run_id not in self._tasks and not self._closing:
            task = asyncio.create_task(self._see_through(run_id), name=f"hutch flow run {run_id}")
            self._tasks[run_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(run_id))

    async def _see_through(self, run_id: str) -> None:
        """To its end, over as many runtimes as that takes."""
        try:
            async with self._places:
                pause = AGAIN_SECONDS
                while await self._go_on(run_id):
                    await asyncio.sleep(pause)
                    pause *= 2
        except HutchError as error:
            # The next sweep finds it.
            logger.error("run %s cannot be gone on with: %s", run_id, error)
        except Exception:
            logger.exception("run %s cannot be gone on with", run_id)

    async def _go_on(self, run_id: str) -> bool:
        """On one runtime. Whether it is worth another."""
        journal = (await self.store()).journal
        run = await journal.get(run_id)
        if run is None or run.is_over or holders.is_held(run):
            return False
        if run.claims >= MOST_CLAIMS:
            await self._finish(run, _hopeless())
            return False
        try:
            flow, inputs, options = given(run, resume=False)
        except InvalidFlow as error:
            await self._finish(run, failure(INVALID_IR, error.message, details=error.details))
            return False
        complaints = Complaints(run_id)
        drive = FlowDrive(flow, inputs, self._choice, options, on_stderr=complaints.hear)
        self._drives[run_id] = drive
        try:
            end = await drive.run()
        finally:
            del self._drives[run_id]
        left = await journal.head(run_id)
        if left is None or left.is_over or holders.is_held(left):
            return False
        # It is not over, says the journal, and nobody has it.
        if end.cancelled:
            return not await self._finish(left, _cancelled(), cancelled=True)
        if end.error is None or _may_be_mended(end.error, options):
            logger.warning("the runtime of run %s was lost: %s", run_id, end.error or "no end was written")
            return True
        return not await self._finish(left, end.error)

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
        found = await (await self.store()).journal.get(run.run_id)
        return 0 if found is None else len(json.loads(found.document)["graph"]["nodes"])


class Complaints:
    """What a runtime writes to stderr, for the log: the server's own lines stay whole."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._room = MOST_STDERR_BYTES
        self._rest = b""

    def hear(self, data: bytes) -> None:
        self._room -= len(data)
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-4096:]
        for line in lines if self._room > 0 else ():
            logger.warning("run %s: %s", self._run_id, line[:4096].decode(errors="replace"))


def _may_be_mended(error: dict[str, Any], options: RunOptions) -> bool:
    """Whether another runtime may get further: not if the run's time is over, or it is refused."""
    if error["data"]["details"].get("held"):
        return True
    timed_out = options.timeout is not None and error["data"].get("cause") == TIMEOUT
    return error["code"] in (BROKEN_TRANSPORT, PANIC) and not timed_out


def _cancelled() -> dict[str, Any]:
    return failure(STEP_FAILED, "The run was cancelled.", cause=CANCELLED)


def _hopeless() -> dict[str, Any]:
    message = f"The runtime was lost {MOST_CLAIMS} times at the same place; the server's log says how."
    return failure(BROKEN_TRANSPORT, message, cause="Ended")
