"""What may be written a moment later: many at once, so that no run waits for a disk."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

from hutch.errors import HutchError
from hutch.store.database import Database
from hutch.store.rows import RunRow
from hutch.store.runs import Runs

logger = logging.getLogger("hutch.store")

PAUSE_SECONDS = 0.25
"""How long a first one waits for company."""
RETRY_SECONDS = 5.0
MOST_AT_ONCE = 1_000
MOST_WAITING = 50_000
"""Runs that wait while the database does not answer; then the oldest are given up."""


class Later:
    """Takes runs and uses of keys, and writes them in the background and at the end."""

    def __init__(self, database: Database, *, most_waiting: int = MOST_WAITING) -> None:
        self._database = database
        self._runs: deque[RunRow] = deque()
        self._uses: dict[str, str] = {}
        self._most = most_waiting
        self._lost = 0
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task = asyncio.create_task(self._work(), name="hutch store: later")

    def run(self, row: RunRow) -> None:
        """Takes a run. Never waits and never fails."""
        if len(self._runs) >= self._most:
            self._runs.popleft()
            self._lost += 1
        self._runs.append(row)
        self._wake.set()

    def key_used(self, id: str, at: str) -> None:
        self._uses[id] = at
        self._wake.set()

    async def flush(self) -> None:
        """Writes what is waiting. Raises StoreError; then it goes on waiting."""
        async with self._writing:
            while self._runs:
                batch = [self._runs[number] for number in range(min(len(self._runs), MOST_AT_ONCE))]
                await Runs(self._database).add_many(batch)
                written = {row.run_id for row in batch}
                # Meanwhile the oldest may have been given up.
                while self._runs and self._runs[0].run_id in written:
                    self._runs.popleft()
            if self._uses:
                uses, self._uses = self._uses, {}
                try:
                    await self._write_uses(uses)
                except BaseException:
                    self._uses = uses | self._uses
                    raise

    async def close(self) -> None:
        """Writes what is waiting; what cannot be written is lost, and the log says so."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        try:
            await self.flush()
        except HutchError as error:
            logger.error("%d records of runs could not be kept: %s", len(self._runs) + self._lost, error)

    async def _work(self) -> None:
        failing = False
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(RETRY_SECONDS if failing else PAUSE_SECONDS)
            try:
                await self.flush()
            except Exception as error:
                if not failing:
                    unforeseen = None if isinstance(error, HutchError) else error
                    logger.error("records of runs cannot be kept for now: %s", error, exc_info=unforeseen)
                failing = True
                self._wake.set()
            else:
                if failing:
                    logger.warning("records of runs are kept again; %d were lost", self._lost)
                    self._lost = 0
                failing = False

    async def _write_uses(self, uses: dict[str, str]) -> None:
        sql = """
            UPDATE api_keys SET last_used_at = :at
            WHERE id = :id AND (last_used_at IS NULL OR last_used_at < :at)
        """
        await self._database.write_many(sql, [{"id": id, "at": at} for id, at in uses.items()])
