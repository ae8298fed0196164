"""Checkpoint of a suspended run: everything that is needed to continue it, and its encoding."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import ResumeError
from hutch.kernel.durable.packing import pack, split_at, take, unpack
from hutch.sandbox.deno_binary import BUNDLE_FOLDER
from hutch.session.limits import Limits
from hutch.session.suspension import SavedSession

if TYPE_CHECKING:
    from hutch.store.tables.durable.checkpoints import CheckpointRow

# Files of the guest bundle that determine what a VM's memory means.
_BUNDLE_FILES = ("quickjs.wasm", "image.bin", "image.json")

CLIENT_TOOLS = "client"
"""Protocol in the store of a run with the tools of a client; see `Checkpoint.stored_protocol`."""


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
    """Record level that the client requested for the run."""
    stores_calls: bool = False
    """See `Execution.stores_calls`."""
    has_client_tools: bool = False
    """See `Execution.has_client_tools`."""

    @property
    def stored_protocol(self) -> str:
        """Protocol in the store. It is CLIENT_TOOLS for a run with the tools of a client, so that no server
        continues the run.
        """
        return CLIENT_TOOLS if self.has_client_tools else self.protocol


@cache
def bundle_digest() -> str:
    """Returns the digest of the guest bundle. A run can continue only with the bundle with which it was
    suspended.
    """
    digest = hashlib.sha256()
    for name in _BUNDLE_FILES:
        digest.update(hashlib.sha256((BUNDLE_FOLDER / name).read_bytes()).digest())
    return digest.hexdigest()


class _Header(msgspec.Struct, frozen=True):
    """A checkpoint without its large data. The memory and then the files follow the header."""

    checkpoint: Checkpoint
    memory_bytes: int
    file_bytes: list[int]


def encode(checkpoint: Checkpoint, max_bytes: int) -> list[bytes]:
    """Encodes a checkpoint in parts. Raises ResumeError if it is too large or cannot be encoded."""
    session = checkpoint.session
    files, contents = session.files, list[bytes]()
    if files is not None:
        contents = files.contents()
        files = files.with_contents([b""] * len(contents))
    rest = msgspec.structs.replace(session, memory=[], files=files)
    sizes = [len(content) for content in contents]
    try:
        header = msgspec.msgpack.encode(
            _Header(msgspec.structs.replace(checkpoint, session=rest), session.memory_bytes, sizes)
        )
    except UnicodeEncodeError:
        message = "The code or a token has half of a surrogate pair, which cannot be stored."
        raise ResumeError("checkpoint_invalid", message) from None
    if len(header) + session.memory_bytes + sum(sizes) > max_bytes:
        message = f"The code, the inputs of pending calls and the memory have more than {max_bytes} bytes."
        raise ResumeError("checkpoint_invalid", message)
    return pack(header, [*session.memory, *contents])


def decode(parts: Sequence[bytes], max_bytes: int) -> Checkpoint:
    """Decodes a checkpoint whose authenticity was checked. Raises ResumeError."""
    text, data = unpack(parts, max_bytes)
    try:
        header = msgspec.msgpack.decode(text, type=_Header)
    except msgspec.DecodeError:
        raise ResumeError("checkpoint_invalid", "The checkpoint cannot be read.") from None
    memory, data = split_at(data, header.memory_bytes)
    contents: list[bytes] = []
    for size in header.file_bytes:
        content, data = take(data, size)
        contents.append(content)
    session = header.checkpoint.session
    files = None if session.files is None else session.files.with_contents(contents)
    return msgspec.structs.replace(
        header.checkpoint, session=msgspec.structs.replace(session, memory=memory, files=files)
    )


def check_bundle(digest: str) -> None:
    """Raises ResumeError if a checkpoint belongs to another version of the guest bundle."""
    if digest != bundle_digest():
        raise ResumeError(
            "checkpoint_incompatible",
            "The run was suspended by another version of Hutch, and only that version can continue it.",
        )


def check_client_tools(row: CheckpointRow) -> None:
    """Raises ResumeError unless the run was started by a client with its own tools."""
    if row.protocol != CLIENT_TOOLS:
        message = (
            f"The run {row.run_id} was not started by hutch.connect. Continue a run of a server with"
            f" POST /runs/{row.run_id}/resume, and a run of hutch.Hutch with Hutch.resume."
        )
        raise ResumeError("tools_elsewhere", message)
