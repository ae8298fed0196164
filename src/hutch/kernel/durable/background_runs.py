"""Continues suspended runs in the background, after their pending calls got results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from hutch.errors import HutchError, ResumeError
from hutch.kernel.durable import checkpoint as checkpoints
from hutch.kernel.durable.calls.pending_calls import PendingCalls
from hutch.kernel.durable.replayed_runs import FORMAT, RunReplayer
from hutch.kernel.durable.resume_errors import not_found
from hutch.kernel.durable.run_ends import RunEnds
from hutch.owner_shares import RESERVE_ONE_IN
from hutch.session.run import SUSPENDED, Result
from hutch.session.suspension import Answer
from hutch.session.tools.provider import Provider

if TYPE_CHECKING:
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")

MAX_CONTINUING = 16
"""Maximum number of runs that a server continues at once without a caller."""


class BackgroundRuns:
    """Runs that continue without a caller, with the tools of this server."""

    def __init__(
        self,
        calls: PendingCalls,
        ends: RunEnds,
        continue_run: Callable[[str, str, Sequence[Provider]], Awaitable[Result]],
        open_store: Callable[[], Awaitable[Store]],
    ) -> None:
        """`continue_run` continues the run with this id, of this owner and with these tools, until it ends or
        is suspended again.
        """
        self._calls = calls
        self._ends = ends
        self._continue_run = continue_run
        self._open_store = open_store
        self.provide_tools: Callable[[], Awaitable[Sequence[Provider]]] | None = None
        """Returns the tools for runs that continue without a caller. None if only callers have tools."""
        self.continued_protocols: frozenset[str] = frozenset()
        """Protocols whose runs can continue with the tools of `provide_tools`."""
        self.runs_again: RunReplayer | None = None
        """Continues runs whose code runs again from its beginning. None if this process cannot run it."""
        self.is_draining = False
        """True after `drain` or `close`. Then no further run is continued."""
        self._continuing = asyncio.Semaphore(MAX_CONTINUING)
        self._continuing_by_owner: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Limits the runs of each owner to four fifths of MAX_CONTINUING, so that other owners get places."""
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, run_id: str, owner: str) -> None:
        """Continues a run in the background after one of its calls got a result, if this server has the run's
        tools.
        """
        if self.provide_tools is None or self.is_draining:
            return
        task = asyncio.get_running_loop().create_task(self._continue(run_id, owner, self.provide_tools))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def start_answered_run(self, run_id: str) -> None:
        """Continues a run after one of its calls got a result, if this server has the run's tools."""
        row = await (await self._open_store()).checkpoints.get(run_id)
        if row is not None and row.protocol in self.continued_protocols:
            self.start(run_id, row.owner)

    async def recover(self, run_id: str) -> None:
        """Takes over a run whose server has died. Ends the run if it cannot be continued. Otherwise continues
        it as soon as a pending call has a result. Raises HutchError.
        """
        await self._ends.end_interrupted()
        if await self._has_answers(run_id):
            await self.start_answered_run(run_id)

    async def is_continued_here(self, run_id: str) -> bool:
        """Returns False if only the program that started a suspended run can continue it."""
        row = await (await self._open_store()).checkpoints.get(run_id)
        return row is None or (self.provide_tools is not None and row.protocol in self.continued_protocols)

    async def continue_with(self, run_id: str, owner: str, answers: Mapping[str, Answer]) -> None:
        """Stores results of pending calls, and continues the run in the background with the tools of this
        server. Raises ResumeError and InvalidExecution.
        """
        store = await self._open_store()
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner:
            raise not_found(run_id)
        if row.state != "suspended":
            raise await self._ends.refusal(store, run_id, owner)
        if self.provide_tools is None or row.protocol not in self.continued_protocols:
            raise ResumeError(
                "tools_elsewhere", f"Only the program that started the run {run_id} has its tools."
            )
        if row.bundle != FORMAT:
            checkpoints.check_bundle(row.bundle)
        calls = await store.checkpoints.calls(run_id)
        for call in calls:
            if call.call_id in answers and call.is_question:
                raise ResumeError(
                    "approval_needed", f"The call {call.call_id} waits for a decision at /approvals."
                )
        if answers:
            await self._calls.answer(run_id, owner, answers, await self.provide_tools())
        elif calls and not any(call.has_answer for call in calls):
            waiting = ", ".join(call.call_id for call in calls)
            raise ResumeError("unknown_call", f"The run {run_id} waits for results of {waiting}.")
        self.start(run_id, owner)

    async def _continue(
        self, run_id: str, owner: str, provide_tools: Callable[[], Awaitable[Sequence[Provider]]]
    ) -> None:
        share = self._continuing_by_owner.get(owner)
        if share is None:
            share = asyncio.Semaphore(MAX_CONTINUING - MAX_CONTINUING // RESERVE_ONE_IN)
            self._continuing_by_owner[owner] = share
        try:
            if await self._run_again(run_id, share):
                return
            has_answers = True
            while has_answers and not self.is_draining:
                async with share, self._continuing:
                    result = await self._continue_run(run_id, owner, await provide_tools())
                # Continue the run once more if results arrived meanwhile, because a result that arrives while
                # the run is in progress reaches the guest only at the next continuation.
                is_suspended = result.error is not None and result.error.code == SUSPENDED
                has_answers = is_suspended and await self._has_answers(run_id)
        except ResumeError as error:
            # Another server was first, or the run was cancelled.
            logger.info("the run %s was not continued: %s", run_id, error)
        except HutchError as error:
            logger.warning("the run %s could not be continued: %s", run_id, error)

    async def _run_again(self, run_id: str, share: asyncio.Semaphore) -> bool:
        """Continues a run whose code runs again from its beginning. Returns False for other runs."""
        row = await (await self._open_store()).checkpoints.get(run_id)
        if row is None or row.bundle != FORMAT:
            return False
        if self.runs_again is not None and not await self.runs_again.deliver(run_id):
            async with share, self._continuing:
                await self.runs_again.run_again(row)
        return True

    async def _has_answers(self, run_id: str) -> bool:
        answers = await (await self._open_store()).checkpoints.answers(run_id)
        return any(answer is not None for answer in answers.values())

    async def start_answered_runs(self) -> None:
        """Continues all runs whose calls have results. Needed after a restart, after the death of another
        server, or if an earlier attempt failed.
        """
        if self.provide_tools is None:
            return
        store = await self._open_store()
        bundles = (checkpoints.bundle_digest(), FORMAT)
        for row in await store.checkpoints.with_answers(bundles, self.continued_protocols):
            self.start(row.run_id, row.owner)

    async def drain(self, seconds: float) -> None:
        """Continues no further runs in the background, and waits for the runs in progress."""
        self.is_draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    async def close(self) -> None:
        self.is_draining = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
