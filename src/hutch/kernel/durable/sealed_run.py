"""Sealed runs: a suspended run as bytes, which any process with the same master key can continue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import ResumeError, VaultError
from hutch.kernel.durable import checkpoint as checkpoints
from hutch.kernel.durable.calls.pending_calls import PendingCalls
from hutch.kernel.durable.checkpoint_storage import CheckpointStorage
from hutch.kernel.durable.resume_errors import expired, not_found
from hutch.kernel.durable.run_ends import RunEnds
from hutch.store.models import now
from hutch.store.tables.durable.checkpoints import CheckpointRow
from hutch.vault import crypto

if TYPE_CHECKING:
    from hutch.kernel.state_memory import StateCharge
    from hutch.settings import Settings
    from hutch.store.store import Store

MAGIC = b"hutch-run-2:"
_CONTEXT = "sealed run"
# Upper bound for the size of a sealed run divided by the size of its state. Base64, the header and the
# authentication of the parts add less.
_MAX_EXPANSION = 1.4
_MAX_HEADER_BYTES = 64 * 1024
# Upper bounds for the lines of a sealed run. Without them, a client's bytes could need twenty times their
# size in memory, and one call could hold Python's lock for seconds.
_MAX_LINES = 100_000
_MIN_LINE_LIMIT_BYTES = 16 * 1024 * 1024
_MAX_RUN_ID_BYTES = 128
_COUNTED_BYTES = 1024 * 1024


class SealedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a sealed run. The row tells whether the run may be continued, without decoding its state."""

    row: CheckpointRow
    state: list[bytes]
    """Parts of an encoded `Checkpoint`."""
    answers: dict[str, bytes]
    """Results that the guest has not received yet, encoded by `encode_answer`, by call id."""


class SealedRuns:
    """Makes sealed copies of the suspended runs of one store, and adds sealed runs to it."""

    def __init__(
        self,
        settings: Settings,
        storage: CheckpointStorage,
        ends: RunEnds,
        calls: PendingCalls,
        reserve: Callable[[str], Awaitable[StateCharge]],
        open_store: Callable[[], Awaitable[Store]],
    ) -> None:
        """`reserve` waits until an owner has memory for a suspended run."""
        self._settings = settings
        self._checkpoints = storage
        self._ends = ends
        self._calls = calls
        self._reserve = reserve
        self._open_store = open_store

    async def seal(self, run_id: str, owner: str) -> bytes:
        """Returns a suspended run as sealed bytes. Raises ResumeError and VaultError."""
        store = await self._open_store()
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner or row.state != "suspended":
            raise await self._ends.refusal(store, run_id, owner)
        answers = await store.checkpoints.answers(run_id)
        sealed = SealedRun(
            row=row,
            state=await store.checkpoints.state(row),
            answers={call_id: data for call_id, data in answers.items() if data is not None},
        )
        return await seal(sealed, self._settings.home_path)

    async def add(self, data: bytes | bytearray, owner: str, *, needs_client_tools: bool = False) -> str:
        """Adds a sealed run to the store unless the store already has it. Returns its id. With
        `needs_client_tools`, refuses runs that were not started by a client with its own tools. Raises
        ResumeError and VaultError.
        """
        charge = await self._reserve(owner)
        try:
            return await self._add(data, owner, needs_client_tools=needs_client_tools)
        finally:
            charge.release()

    async def _add(self, data: bytes | bytearray, owner: str, *, needs_client_tools: bool) -> str:
        sealed = await unseal(
            data, self._settings.home_path, self._checkpoints.max_bytes, self._settings.max_result_bytes
        )
        row, run_id = sealed.row, sealed.row.run_id
        if row.owner != owner:
            raise not_found(run_id)
        if needs_client_tools:
            checkpoints.check_client_tools(row)
        if row.expires_at < now():
            raise expired(row)
        checkpoints.check_bundle(row.bundle)
        store = await self._open_store()
        stored = await store.checkpoints.get(run_id)
        if stored is None:
            await self._checkpoints.insert(
                store, await self._checkpoints.decode(sealed.state), sealed.state, None
            )
            stored = await store.checkpoints.get(run_id)
        if stored is None or stored.owner != owner:
            raise not_found(run_id)
        if stored.state != "ended" and stored.generation != row.generation:
            raise ResumeError(
                "checkpoint_superseded", f"The run {run_id} has continued since this checkpoint was taken."
            )
        # Results that are already in the store stay unchanged.
        await self._calls.store_answers(store, stored, sealed.answers)
        return run_id


async def seal(run: SealedRun, home: Path) -> bytes:
    """Encrypts a run with the master key of HUTCH_HOME. Raises VaultError."""
    return await asyncio.to_thread(_seal, run, home)


def _seal(run: SealedRun, home: Path) -> bytes:
    # Encrypt in parts: a single call would hold Python's lock, and so stall the event loop.
    keys = crypto.load_master_keys(home, os.environ, create=False)
    header = msgspec.msgpack.encode((run.row, list(run.answers)))
    parts = [header, *run.answers.values(), *run.state]
    run_id = run.row.run_id
    texts = [
        crypto.encrypt(keys, part, _CONTEXT, run_id, f"{number}/{len(parts)}").encode()
        for number, part in enumerate(parts)
    ]
    return b"\n".join((MAGIC + run_id.encode(), *texts))


async def unseal(data: bytes | bytearray, home: Path, max_bytes: int, max_result_bytes: int = 0) -> SealedRun:
    """Returns the content of a sealed run. `max_bytes`: maximum size of its state. `max_result_bytes`:
    maximum size of the result of a call. Raises ResumeError and VaultError.
    """
    maximum = int(max_bytes * _MAX_EXPANSION) + _MAX_HEADER_BYTES
    if len(data) > maximum:
        raise _invalid(f"it has {len(data)} bytes; the limit is {maximum} (setting max_checkpoint_bytes)")
    if not data.startswith(MAGIC):
        raise _invalid("expected the bytes that Run.checkpoint() returned")
    max_line = max(_MIN_LINE_LIMIT_BYTES, int(max_result_bytes * _MAX_EXPANSION))
    return await asyncio.to_thread(_unseal, data, home, max_line)


def _unseal(data: bytes | bytearray, home: Path, max_line: int) -> SealedRun:
    keys = crypto.load_master_keys(home, os.environ, create=False)
    end = data.find(b"\n", 0, len(MAGIC) + _MAX_RUN_ID_BYTES + 1)
    if end < 0:
        raise _invalid("expected the bytes that Run.checkpoint() returned")
    count = _count_lines(data, end)
    try:
        run_id = data[len(MAGIC) : end].decode()
        header, *parts = (
            crypto.decrypt(keys, text, _CONTEXT, run_id, f"{number}/{count}")
            for number, text in enumerate(_lines(data, end + 1, max_line))
        )
        row, call_ids = msgspec.msgpack.decode(header, type=tuple[CheckpointRow, list[str]])
    except (ValueError, VaultError, msgspec.DecodeError):
        raise _invalid("it was altered, or sealed with another master key") from None
    answers = dict(zip(call_ids, parts, strict=False))
    return SealedRun(row=row, state=parts[len(answers) :], answers=answers)


def _count_lines(data: bytes | bytearray, start: int) -> int:
    """Returns the number of line breaks. Counts in pieces, because a single call holds Python's lock."""
    count = 0
    for piece in range(start, len(data), _COUNTED_BYTES):
        count += data.count(b"\n", piece, piece + _COUNTED_BYTES)
        if count > _MAX_LINES:
            raise _invalid(f"it has more than {_MAX_LINES} parts")
    return count


def _lines(data: bytes | bytearray, start: int, max_bytes: int) -> Iterator[str]:
    while start <= len(data):
        end = data.find(b"\n", start, start + max_bytes + 1)
        if end < 0:
            end = len(data)
        if end - start > max_bytes:
            raise _invalid(f"a part has more than {max_bytes} bytes")
        yield data[start:end].decode("ascii")
        start = end + 1


def _invalid(reason: str) -> ResumeError:
    return ResumeError("checkpoint_invalid", f"The checkpoint cannot be used: {reason}.")
