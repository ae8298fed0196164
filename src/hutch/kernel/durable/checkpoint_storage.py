"""Stores checkpoints within the limits of their owner, and encodes large ones in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import AlreadyExists, ResumeError
from hutch.kernel.durable import checkpoint as checkpoints
from hutch.kernel.durable.calls.pending_calls import token_digest
from hutch.kernel.durable.checkpoint import Checkpoint
from hutch.kernel.durable.holds import HOLD_SECONDS
from hutch.kernel.durable.packing import LARGE_BYTES, size_of
from hutch.store.models import now
from hutch.store.tables.durable.checkpoints import CheckpointRow, NewPendingCall
from hutch.text import cut, format_unix_time

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.store.store import Store

MAX_QUESTIONS_PER_OWNER = 200
"""Maximum number of calls of one owner that wait for approvals in the store."""
# Maximum number of characters that the store keeps of the message of a pending call.
MAX_MESSAGE_CHARS = 2_000
# Maximum size of a checkpoint without the memory: the code, the pending calls and the recorded calls.
OVERHEAD_BYTES = 64 * 1024 * 1024


class CheckpointStorage:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def insert(
        self,
        store: Store,
        checkpoint: Checkpoint,
        parts: Sequence[bytes],
        holder: str | None,
        *,
        keeps_hold: bool = False,
    ) -> bool:
        """Stores a checkpoint that was encoded as `parts`. With `keeps_hold`, `holder` continues the run.
        Returns False if the run is already stored and not held by `holder`. Raises ResumeError.
        """
        calls = [
            NewPendingCall(
                call_id=call.call_id,
                provider=call.provider,
                tool=call.tool,
                token_digest=None if call.token is None else token_digest(call.token),
                question=call.question,
                message=cut(call.message, MAX_MESSAGE_CHARS) or None,
                in_flight=call.in_flight,
            )
            for call in (*checkpoint.session.pending, *checkpoint.session.in_flight)
        ]
        row = _row(checkpoint, size_of(parts))
        return await self.insert_row(store, row, parts, calls, holder, keeps_hold=keeps_hold)

    async def insert_row(
        self,
        store: Store,
        row: CheckpointRow,
        parts: Sequence[bytes],
        calls: Sequence[NewPendingCall],
        holder: str | None,
        *,
        keeps_hold: bool = False,
    ) -> bool:
        """Stores a run with its pending calls; see `insert`."""
        maximum = self._settings.max_suspended_bytes_per_owner
        stored_bytes = await store.checkpoints.stored_bytes(row.owner, row.run_id)
        await self._check_questions(store, row, calls)
        if stored_bytes + row.bytes > maximum:
            raise ResumeError(
                "too_many_suspended",
                f"The suspended runs of this owner, and their results, would have more than {maximum} bytes"
                " (setting max_suspended_bytes_per_owner). Continue or cancel some.",
            )
        if keeps_hold:
            row = msgspec.structs.replace(
                row, state="running", holder=holder, held_until=now(plus_seconds=HOLD_SECONDS)
            )
        try:
            return await store.checkpoints.save(row, parts, calls, holder)
        except AlreadyExists:
            raise ResumeError("token_in_use", "Another pending call has the same token.") from None

    async def _check_questions(
        self, store: Store, row: CheckpointRow, calls: Sequence[NewPendingCall]
    ) -> None:
        """Raises ResumeError if too many calls of an owner wait for approvals, because a person has to read
        each call.
        """
        count = sum(call.question is not None for call in calls)
        if count:
            count += await store.checkpoints.count_questions(row.owner, row.run_id)
        if count > MAX_QUESTIONS_PER_OWNER:
            raise ResumeError(
                "too_many_questions",
                f"More than {MAX_QUESTIONS_PER_OWNER} calls of this owner would wait for approvals."
                " Decide on some at /approvals.",
            )

    async def encode(self, checkpoint: Checkpoint) -> list[bytes]:
        files = checkpoint.session.files
        size = checkpoint.session.memory_bytes + (0 if files is None else files.size)
        if size < LARGE_BYTES:
            return checkpoints.encode(checkpoint, self.max_bytes)
        return await asyncio.to_thread(checkpoints.encode, checkpoint, self.max_bytes)

    async def decode(self, parts: Sequence[bytes]) -> Checkpoint:
        # Decode even small checkpoints in a thread, because a few kilobytes may be the compressed form of a
        # large memory.
        return await asyncio.to_thread(checkpoints.decode, parts, self.max_bytes)

    @property
    def max_bytes(self) -> int:
        settings = self._settings
        return settings.max_checkpoint_bytes + 2 * settings.max_file_bytes + OVERHEAD_BYTES


def _row(checkpoint: Checkpoint, size: int) -> CheckpointRow:
    return CheckpointRow(
        run_id=checkpoint.run_id,
        owner=checkpoint.owner,
        protocol=checkpoint.stored_protocol,
        bundle=checkpoint.bundle,
        generation=checkpoint.generation,
        expires_at=format_unix_time(checkpoint.expires_at),
        bytes=size,
    )
