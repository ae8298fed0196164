"""Converts files in requests and responses from and to Base64. Other tasks run while large files are
converted.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence

import msgspec

from hutch.errors import InvalidExecution
from hutch.session.files.model import File

# Size of a piece, in characters of Base64 and in bytes. Four characters stand for three bytes, so the sizes
# are multiples of 4 and of 3, and the converted pieces can be joined. Converting one piece takes about a
# millisecond.
_CHARS = 256 * 1024
_BYTES = 192 * 1024


async def decode_files(files: Mapping[str, str]) -> dict[str, bytes]:
    """Decodes the contents of files. Raises InvalidExecution."""
    return {name: await _decode(name, text) for name, text in files.items()}


async def _decode(name: str, text: str) -> bytes:
    pieces: list[bytes] = []
    try:
        for start in range(0, len(text), _CHARS):
            if start:
                await asyncio.sleep(0)
            pieces.append(binascii.a2b_base64(text[start : start + _CHARS], strict_mode=True))
            if len(pieces) > 1 and len(pieces[-2]) != _BYTES:
                raise binascii.Error("padding before the end")
    except ValueError as error:
        raise InvalidExecution(f"files.{name[:100]}", f"expected Base64: {error}") from None
    return b"".join(pieces)


async def encode_files(files: Sequence[File]) -> bytes:
    """Returns a JSON array of files with their contents."""
    objects: list[bytes] = []
    for file in files:
        head = msgspec.json.encode({"name": file.name, "mime_type": file.mime_type, "size": file.size})
        pieces: list[bytes] = []
        for start in range(0, file.size, _BYTES):
            if start:
                await asyncio.sleep(0)
            pieces.append(base64.b64encode(file.data[start : start + _BYTES]))
        objects.append(head[:-1] + b',"data":"' + b"".join(pieces) + b'"}')
    return b"[" + b",".join(objects) + b"]"
