"""Checkpoint of a suspended run: everything that is needed to continue it, and its compressed encoding."""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from importlib import import_module
from typing import Any

import msgspec

from hutch.errors import ResumeError
from hutch.sandbox.deno_binary import BUNDLE_FOLDER
from hutch.session.limits import Limits
from hutch.session.suspension import SavedSession

LARGE_BYTES = 256 * 1024
"""Size above which memory is compressed in a thread."""
COMPRESSION_LEVEL = 1
"""Higher levels make large checkpoints a few percent smaller and take ten times as long."""
# Files of the guest bundle that determine the meaning of a VM's memory.
_BUNDLE_FILES = ("quickjs.wasm", "image.bin", "image.json")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    owner: str
    bundle: str
    generation: int
    """Counts how often the run was suspended, beginning with 1."""
    protocol: str
    label: str | None
    parent_run_id: str | None
    code: str
    limits: Limits
    created_at: float
    """Unix time at which the run was created."""
    expires_at: float
    session: SavedSession
    record_level: str | None = None
    """Level of the record that the request for the run asked for."""


@cache
def bundle_digest() -> str:
    """Returns the digest of the guest bundle. A checkpoint can be continued only with the same bundle."""
    digest = hashlib.sha256()
    for name in _BUNDLE_FILES:
        digest.update(hashlib.sha256((BUNDLE_FOLDER / name).read_bytes()).digest())
    return digest.hexdigest()


def _zstd() -> Any:
    # Imported late, because most processes never suspend a run.
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def encode(checkpoint: Checkpoint, max_bytes: int) -> bytes:
    """Encodes a checkpoint. Raises ResumeError if it is too large or has lone surrogates."""
    try:
        data = msgspec.msgpack.encode(checkpoint)
    except UnicodeEncodeError:
        message = "The code or a token has half of a surrogate pair, which cannot be stored."
        raise ResumeError("checkpoint_invalid", message) from None
    if len(data) > max_bytes:
        message = f"The code, the inputs of pending calls and the memory have more than {max_bytes} bytes."
        raise ResumeError("checkpoint_invalid", message)
    return compress(data)


def decode(data: bytes, max_bytes: int) -> Checkpoint:
    """Decodes a checkpoint whose authenticity was checked. Raises ResumeError."""
    try:
        return msgspec.msgpack.decode(decompress(data, max_bytes), type=Checkpoint)
    except msgspec.DecodeError:
        raise ResumeError("checkpoint_invalid", "The checkpoint cannot be read.") from None


def compress(data: bytes) -> bytes:
    return bytes(_zstd().compress(data, COMPRESSION_LEVEL))


def decompress(data: bytes, max_bytes: int) -> bytes:
    """Decompresses data. Raises ResumeError if the data is invalid or longer than `max_bytes`."""
    zstd = _zstd()
    try:
        decompressor = zstd.ZstdDecompressor()
        text = decompressor.decompress(data, max_bytes)
    except zstd.ZstdError:
        raise ResumeError("checkpoint_invalid", "The checkpoint cannot be read.") from None
    if decompressor.needs_input or not decompressor.eof:
        raise ResumeError("checkpoint_invalid", f"The checkpoint has more than {max_bytes} bytes.")
    return bytes(text)


def check_bundle(digest: str) -> None:
    """Raises ResumeError if a checkpoint belongs to another version of the guest bundle."""
    if digest != bundle_digest():
        raise ResumeError(
            "checkpoint_incompatible",
            "The run was suspended by another version of Hutch, and only that version can continue it.",
        )
