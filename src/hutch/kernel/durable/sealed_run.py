"""Sealed runs: a suspended run as bytes, which any process with the same master key can continue."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from hutch.errors import ResumeError, VaultError
from hutch.store.tables.durable.checkpoints import CheckpointRow
from hutch.vault import crypto

MAGIC = b"hutch-run-1:"
_CONTEXT = "sealed run"
# Upper bound for the overhead of Base64, the header and the authentication tag.
_MAX_EXPANSION = 1.4
_MAX_HEADER_BYTES = 64 * 1024


class SealedRun(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a sealed run. The row tells whether the run may be continued, without decoding its state."""

    row: CheckpointRow
    state: bytes
    """Encoded `Checkpoint`."""
    answers: dict[str, str]
    """Unused results of pending calls, by call id, as JSON text of an `Answer`."""


async def seal(run: SealedRun, home: Path) -> bytes:
    """Encrypts a run with the master key of HUTCH_HOME. Raises VaultError."""
    return await asyncio.to_thread(_seal, run, home)


def _seal(run: SealedRun, home: Path) -> bytes:
    keys = crypto.load_master_keys(home, os.environ, create=False)
    return MAGIC + crypto.encrypt(keys, msgspec.msgpack.encode(run), _CONTEXT).encode()


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
        text = data[len(MAGIC) :].decode("ascii")
        return msgspec.msgpack.decode(crypto.decrypt(keys, text, _CONTEXT), type=SealedRun)
    except (UnicodeDecodeError, VaultError, msgspec.DecodeError):
        raise _invalid("it was altered, or sealed with another master key") from None


def _invalid(reason: str) -> ResumeError:
    return ResumeError("checkpoint_invalid", f"The checkpoint cannot be used: {reason}.")
