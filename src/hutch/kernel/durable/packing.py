"""Packs a header and large data into compressed parts, and unpacks them.

Data is processed in parts. A single call for all data would hold Python's lock and stall the event loop, even
if made in a thread: 74 ms for 60 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from hutch.errors import ResumeError
from hutch.session.messages import MEMORY_PART_BYTES

LARGE_BYTES = 256 * 1024
"""Data of at least this size is packed in a thread."""
COMPRESSION_LEVEL = 1
"""Higher levels make large checkpoints a few percent smaller and take ten times as long."""
PART_BYTES = 512 * 1024
"""Approximate size of a compressed part."""
# Prefix that identifies the format. States without this prefix were stored by earlier versions.
_FORMAT = b"\xc1hutch2"
_LENGTH_BYTES = 4


def _zstd() -> Any:
    # Import the module only when it is needed, because most processes never suspend a run.
    return import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")


def pack(header: bytes, data: Sequence[bytes]) -> list[bytes]:
    """Returns compressed parts."""
    head = b"".join((_FORMAT, len(header).to_bytes(_LENGTH_BYTES), header))
    if len(head) + size_of(data) < LARGE_BYTES:
        return [bytes(_zstd().compress(b"".join((head, *data)), COMPRESSION_LEVEL))]
    compressor = _zstd().ZstdCompressor(level=COMPRESSION_LEVEL)
    parts: list[bytes] = []
    waiting: list[bytes] = []
    for piece in (*split([head], PART_BYTES), *split(data, PART_BYTES)):
        waiting.append(compressor.compress(piece))
        if size_of(waiting) >= PART_BYTES:
            parts.append(b"".join(waiting))
            waiting = []
    parts.append(b"".join((*waiting, compressor.flush())))
    return parts


def unpack(parts: Sequence[bytes], max_bytes: int) -> tuple[bytes, list[bytes]]:
    """Returns the header and the data, in parts of at most MEMORY_PART_BYTES.

    Raises ResumeError if the parts are invalid, come from an earlier version, or have more than `max_bytes`.
    """
    pieces = list(_decompress(parts, max_bytes))
    start = pieces[0] if pieces else b""
    if not start.startswith(_FORMAT):
        raise ResumeError(
            "checkpoint_incompatible",
            "The run was suspended by another version of Hutch, and only that version can continue it.",
        )
    length = int.from_bytes(start[len(_FORMAT) :][:_LENGTH_BYTES])
    header, data = take(pieces, len(_FORMAT) + _LENGTH_BYTES + length)
    return header[len(_FORMAT) + _LENGTH_BYTES :], list(split(data, MEMORY_PART_BYTES))


def _decompress(parts: Sequence[bytes], max_bytes: int) -> Iterator[bytes]:
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor()
    size = 0
    try:
        for part in parts:
            text = decompressor.decompress(part, PART_BYTES)
            while text:
                size += len(text)
                if size > max_bytes:
                    raise ResumeError("checkpoint_invalid", f"The state has more than {max_bytes} bytes.")
                yield bytes(text)
                if decompressor.eof or decompressor.needs_input:
                    break
                text = decompressor.decompress(b"", PART_BYTES)
    except (zstd.ZstdError, EOFError):
        raise ResumeError("checkpoint_invalid", "The state cannot be read.") from None
    if not decompressor.eof or decompressor.unused_data:
        raise ResumeError("checkpoint_invalid", "The state cannot be read.")


def take(parts: Sequence[bytes], size: int) -> tuple[bytes, list[bytes]]:
    """Returns the first `size` bytes, and the remaining parts. Raises ResumeError if there are fewer."""
    taken, rest = split_at(parts, size)
    return b"".join(taken), rest


def split_at(parts: Sequence[bytes], size: int) -> tuple[list[bytes], list[bytes]]:
    """Returns the parts with the first `size` bytes, and the remaining parts. Raises ResumeError if there are
    fewer bytes.
    """
    taken: list[bytes] = []
    for number, part in enumerate(parts):
        if size <= len(part):
            return [*taken, part[:size]] if size else taken, [part[size:], *parts[number + 1 :]]
        taken.append(part)
        size -= len(part)
    if size:
        raise ResumeError("checkpoint_invalid", "The state is incomplete.")
    return taken, []


def split(parts: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yields the same bytes in parts of at most `size` bytes."""
    for part in parts:
        if len(part) <= size:
            if part:
                yield part
        else:
            yield from (part[start : start + size] for start in range(0, len(part), size))


def size_of(parts: Iterable[bytes]) -> int:
    return sum(map(len, parts))
