"""Stores suspended runs whose memory cannot be stored, such as toolscripts. To continue, the code runs again
from its beginning, with the recorded results of its calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hutch.kernel.durable.checkpoint_storage import OVERHEAD_BYTES, CheckpointStorage
from hutch.kernel.durable.holds import HOLD_SECONDS, Holds
from hutch.kernel.durable.packing import pack, size_of, unpack
from hutch.kernel.fair_use import DAY_SECONDS
from hutch.sandbox.process_lease import is_alive, this_holder
from hutch.session.suspension import Answer, decode_answer
from hutch.store.models import now
from hutch.store.tables.durable.checkpoints import CheckpointRow, NewPendingCall

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.store.store import Store

FORMAT = "replay 1"
"""Stands in the place of the digest of the guest bundle, which such a run does not depend on. A change of the
stored state needs another number.
"""


class ReplayedState(NamedTuple):
    """Content of a stored run."""

    data: bytes
    answers: dict[str, Answer | None]
    """Results of the pending calls, by call id; None for those that are missing."""


class RunReplayer(Protocol):
    """Continues runs of this format. Implemented by `protocols.toolscript.durable`."""

    async def deliver(self, run_id: str) -> bool:
        """Gives the results of pending calls to a run that waits in this process. Returns False if the run
        is not in this process, and has to be run again.
        """

    async def run_again(self, row: CheckpointRow) -> None:
        """Runs the code of a run again, until it has ended or is suspended. Raises HutchError."""


class ReplayedRuns:
    def __init__(
        self,
        settings: Settings,
        holds: Holds,
        storage: CheckpointStorage,
        open_store: Callable[[], Awaitable[Store]],
    ) -> None:
        self._settings = settings
        self._holds = holds
        self._storage = storage
        self._open_store = open_store

    async def save(
        self,
        run_id: str,
        owner: str,
        protocol: str,
        generation: int,
        data: bytes,
        calls: Sequence[NewPendingCall],
        *,
        is_held: bool,
        is_waiting: bool,
    ) -> bool:
        """Stores a run with its pending calls. It is suspended from then on if `is_waiting`, otherwise still
        held. `is_held` is False if the run was never stored before. Returns False if another process
        continues the run. Raises HutchError.
        """
        store = await self._open_store()
        parts = await asyncio.to_thread(pack, data, ())
        row = CheckpointRow(
            holder=self._holds.holder,
            run_id=run_id,
            owner=owner,
            protocol=protocol,
            bundle=FORMAT,
            generation=generation,
            expires_at=now(plus_seconds=self._settings.checkpoint_days * DAY_SECONDS),
            bytes=size_of(parts),
        )
        holder = self._holds.holder if is_held else None
        is_saved = await self._storage.insert_row(store, row, parts, calls, holder, keeps_hold=not is_waiting)
        if is_saved and is_waiting:
            self._holds.runs.discard(run_id)
        return is_saved

    @property
    def holder(self) -> str:
        """Id of this process in the store."""
        return self._holds.holder

    async def take(self, run_id: str, owner: str, *, is_live: bool) -> CheckpointRow | None:
        """Holds a suspended run in this process. With `is_live`, its code is in this process. Returns None if
        the run is not suspended any more, or if another process has continued a live one. Raises HutchError.
        """
        store = await self._open_store()
        until = now(plus_seconds=HOLD_SECONDS)
        last_holder = self._holds.holder if is_live else ""
        row = await store.checkpoints.take(run_id, owner, self._holds.holder, until, last_holder=last_holder)
        if row is not None:
            self._holds.add_run(run_id)
        return row

    async def release(self, run_id: str) -> None:
        """Lets another process continue a run that this process holds. Raises HutchError."""
        self._holds.runs.discard(run_id)
        await (await self._open_store()).checkpoints.release(run_id, self._holds.holder)

    async def state(self, row: CheckpointRow) -> ReplayedState:
        """Raises ResumeError and VaultError."""
        store = await self._open_store()
        data, _ = await asyncio.to_thread(unpack, await store.checkpoints.state(row), OVERHEAD_BYTES)
        return ReplayedState(data, await self.answers(row.run_id))

    async def answers(self, run_id: str) -> dict[str, Answer | None]:
        """Returns the results of the pending calls of a run. Raises HutchError."""
        found = await (await self._open_store()).checkpoints.answers(run_id)
        return {id: None if data is None else decode_answer(data) for id, data in found.items()}

    async def is_elsewhere(self, run_id: str) -> bool:
        """Returns True if a process that lives has the code of a run in memory. Raises HutchError."""
        found = await (await self._open_store()).running_runs.holder_of(run_id)
        return found is not None and found[0] != this_holder() and is_alive(*found)
