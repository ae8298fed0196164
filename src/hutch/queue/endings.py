"""Decides how an attempt ends: with a result, with another attempt, or as a dead letter."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hutch.errors import ExecutionError, HutchError, StoreError
from hutch.kernel.execution import Execution
from hutch.queue.backoff import retry_delay_ms
from hutch.queue.models import HandlerResult
from hutch.sandbox.runner.profile import Profile
from hutch.session.run import RunHandle
from hutch.store.tables.queue.queued_runs import EndOfRun
from hutch.tasks import finish

if TYPE_CHECKING:
    from hutch.kernel.kernel import Kernel
    from hutch.queue.attempt import Attempt
    from hutch.store.backends.base import SqlStatement
    from hutch.store.store import Store
    from hutch.store.tables.queue.queued_runs import QueuedRunRow

logger = logging.getLogger("hutch.queue")

T = TypeVar("T")

FINAL_OUTCOMES = frozenset(("cancelled", "deadline_exceeded", "invalid_request", "unauthorized"))
"""Failures after which another attempt makes no sense."""
MAX_WRITE_PAUSE_SECONDS = 5.0
_ENGINES = {"tool": "npm", "script": "script"}

ReportEnd = Callable[["QueuedRunRow", EndOfRun], Awaitable["SqlStatement | None"]]
"""Returns the statement that adds the webhook message about the end of a run; None if the run has no webhook.
"""


class Endings:
    def __init__(
        self, kernel: Kernel, store: Store, report_end: ReportEnd, on_message: Callable[[], None]
    ) -> None:
        """`on_message` is called after a webhook message was added."""
        self._kernel = kernel
        self._store = store
        self._report_end = report_end
        self._on_message = on_message
        self.is_closing = False

    async def finish(self, attempt: Attempt, result: HandlerResult) -> None:
        """Stores the result of an attempt, or queues the run again. Does nothing if another server has the
        run.
        """
        row = attempt.row
        if attempt.is_cancelled and not result.ok:
            result = failure("cancelled", "The run was cancelled")
        if attempt.handle is None and row.kind != "flow":
            self.record_unstarted(row, result.outcome, _message_of(result))
        max_attempts = row.max_attempts or 1
        if not result.ok and row.attempts < max_attempts and result.outcome not in FINAL_OUTCOMES:
            await self._retry(attempt)
            return
        is_dead = not result.ok and row.max_attempts is not None and result.outcome not in FINAL_OUTCOMES
        end = EndOfRun(state="dead" if is_dead else "ended", outcome=result.outcome, result=result.body)
        await self.end(row, end)

    async def _retry(self, attempt: Attempt) -> None:
        await self.put_back(attempt.row, retry_delay_ms(attempt.row.attempts), counts=True)

    async def put_back(
        self, row: QueuedRunRow, delay_ms: int, *, counts: bool, keeps_effects: bool = False
    ) -> None:
        """Queues a run again. Marks the record of this attempt, so that the record of the next attempt
        replaces it.
        """
        await self._write(self._store.write_behind.flush)
        await self._write(lambda: self._store.runs.mark_retrying(row.run_id))
        is_held = await self._write(
            lambda: self._store.queued_runs.put_back(
                row.run_id, row.generation, delay_ms, counts=counts, keeps_effects=keeps_effects
            )
        )
        if not is_held:
            _log_lost(row)

    async def end(self, row: QueuedRunRow, end: EndOfRun, *, is_waiting: bool = False) -> bool:
        """Stores the end of a run. Returns False if another server has the run."""

        async def write() -> bool:
            reported = msgspec.structs.replace(end, delivery=await self._report_end(row, end))
            is_held = await self._store.queued_runs.end(
                row.run_id, row.generation, reported, is_waiting=is_waiting
            )
            if reported.delivery is not None:
                self._on_message()
            return is_held

        is_held = await self._write(write)
        if not is_held and not is_waiting:
            _log_lost(row)
        return bool(is_held)

    async def end_waiting(self, row: QueuedRunRow, outcome: str, message: str) -> bool:
        """Ends a run that has not started. Returns False if it has started meanwhile."""
        end = EndOfRun(outcome=outcome, result=failure(outcome, message).body)
        return await finish(self._end_unstarted(row, end, message, is_waiting=True))

    async def end_lost(self, row: QueuedRunRow, message: str) -> None:
        """Ends a run whose server has died."""
        result = failure("interrupted", message)
        is_dead = row.max_attempts is not None or not row.has_effects
        end = EndOfRun(state="dead" if is_dead else "ended", outcome="interrupted", result=result.body)
        await finish(self._end_unstarted(row, end, message))

    async def _end_unstarted(
        self, row: QueuedRunRow, end: EndOfRun, message: str, *, is_waiting: bool = False
    ) -> bool:
        is_held = await self.end(row, end, is_waiting=is_waiting)
        if is_held:
            self.record_unstarted(row, end.outcome, message)
        return is_held

    def record_unstarted(self, row: QueuedRunRow, outcome: str, message: str) -> None:
        """Writes the record of a run that has ended before the kernel executed it."""
        run = RunHandle(id=row.run_id, started_at=row.created_at / 1000)
        execution = Execution(
            code="",
            profile=Profile(_ENGINES.get(row.kind, "quickjs")),  # type: ignore[arg-type]
            owner=row.owner,
            protocol=row.protocol,
            label=row.label,
        )
        self._kernel.record_unstarted(execution, run, ExecutionError(outcome, message))

    async def _write(self, write: Callable[[], Awaitable[T]]) -> T | None:
        """Writes to the store. Retries while the database is unavailable, until the server stops. If the
        lease expires during the retries, the write has no effect.
        """
        pause = 0.2
        while True:
            try:
                return await write()
            except StoreError as error:
                if self.is_closing:
                    logger.error("the end of an asynchronous run could not be stored: %s", error)
                    return None
                logger.warning("the end of an asynchronous run cannot be stored yet: %s", error)
            except HutchError as error:
                logger.error("the end of an asynchronous run cannot be stored: %s", error)
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_WRITE_PAUSE_SECONDS)


def failure(outcome: str, message: str) -> HandlerResult:
    """Returns the result of a run that the queue itself has ended."""
    body = {"ok": False, "error": {"code": outcome, "message": message}}
    return HandlerResult(ok=False, outcome=outcome, body=msgspec.json.encode(body))


def _message_of(result: HandlerResult) -> str:
    try:
        error = msgspec.json.decode(result.body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)
    except (msgspec.DecodeError, KeyError, TypeError):
        return result.outcome


def _log_lost(row: QueuedRunRow) -> None:
    logger.warning(
        "a result of the run %s was refused: another server has taken it over (generation %d)",
        row.run_id,
        row.generation,
    )
