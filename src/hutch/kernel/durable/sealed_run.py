"""Sealed runs: a suspended run as bytes, which any process with the same master key can continue."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from hutch.errors import ResumeError, VaultError
from hutch.store.tables.durable.checkpoints import CheckpointRow
from hutch.vault import crypto

MAGIC = b"hutch-run-2:"
_CONTEXT = "sealed run"
# Upper bound for the size of a sealed run divided by the size of its state. Base64, the header and the
# authentication of the parts add less.
_MAX_EXPANSION = 1.4
_MAX_HEADER_BYTES = 64 * 1024


class SealedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a sealed run. The row tells whether the run may be continued, without decoding its state."""

    row: CheckpointRow
    state: list[bytes]
    """Parts of an encoded `Checkpoint`."""
    answers: dict[str, bytes]
    """Results that the guest has not received yet, encoded by `encode_answer`, by call id."""


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


async def unseal(data: bytes, home: Path, max_bytes: int) -> SealedRun:
    """Returns the content of a sealed run. `max_bytes`: maximum size of its state. Raises ResumeError and
    VaultError.
    """
    maximum = int(max_bytes * _MAX_EXPANSION) + _MAX_HEADER_BYTES
    if len(data) > maximum:
        raise _invalid(f"it has {len(data)} bytes; the limit is {maximum} (setting max_checkpoint_bytes)")
    if not data.startswith(MAGIC):
        raise _invalid("expected the bytes that Run.checkpoint() returned")
    return await asyncio.to_thread(_unseal, data, home)


def _unseal(data: bytes, home: Path) -> SealedRun:
    keys = crypto.load_master_keys(home, os.environ, create=False)
    try:
        start, *texts = data.split(b"\n")
        run_id = start[len(MAGIC) :].decode()
        header, *parts = (
            crypto.decrypt(keys, text.decode("ascii"), _CONTEXT, run_id, f"{number}/{len(texts)}")
            for number, text in enumerate(texts)
        )
        row, call_ids = msgspec.msgpack.decode(header, type=tuple[CheckpointRow, list[str]])
    except (ValueError, VaultError, msgspec.DecodeError):
        raise _invalid("it was altered, or sealed with another master key") from None
    answers = dict(zip(call_ids, parts, strict=False))
    return SealedRun(row=row, state=parts[len(answers) :], answers=answers)


def _invalid(reason: str) -> ResumeError:
    return ResumeError("checkpoint_invalid", f"The checkpoint cannot be used: {reason}.")
