"""Encoding of the stored results of runs that were suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from hutch.errors import ResumeError
from hutch.kernel.durable.packing import LARGE_BYTES, pack, size_of, take, unpack
from hutch.session.files.model import File
from hutch.session.json_value import well_formed
from hutch.session.large_json import decode_large_value
from hutch.session.messages import WireError
from hutch.session.run import CallRecord, Result, ScriptOutput

# Maximum size of the logs and recorded calls of a result.
OVERHEAD_BYTES = 64 * 1024 * 1024


class _Header(msgspec.Struct, frozen=True, omit_defaults=True):
    """A result without its value and the contents of its files. The value and then the contents follow the
    header.
    """

    ok: bool
    logs: list[str]
    logs_truncated: bool
    duration_ms: float
    calls: list[CallRecord]
    result_bytes: int
    files: list[tuple[str, str, int]] = []
    """Name, type and size of each file."""
    error: WireError | None = None
    """Has the error code of Hutch, not the Execbox code that is sent to other implementations."""
    script: ScriptOutput | None = None
    warnings: list[str] = []


async def encode_result(result: Result) -> list[bytes]:
    """Encodes a result in parts."""
    error = None
    if result.error is not None:
        error = msgspec.structs.replace(WireError.of(result.error), code=result.error.code)
    value = result.result_json or b"null"
    header = _Header(
        ok=result.ok,
        logs=result.logs,
        logs_truncated=result.logs_truncated,
        duration_ms=result.duration_ms,
        calls=list(result.calls),
        result_bytes=len(value),
        files=[(file.name, file.mime_type, file.size) for file in result.files],
        error=error,
        script=None
        if result.script is None
        else msgspec.structs.replace(
            result.script,
            stdout=well_formed(result.script.stdout),
            stderr=well_formed(result.script.stderr),
            message=None if result.script.message is None else well_formed(result.script.message),
        ),
        warnings=[well_formed(warning) for warning in result.warnings],
    )
    data = [value, *(file.data for file in result.files)]
    text = msgspec.msgpack.encode(header)
    if len(text) + size_of(data) < LARGE_BYTES:
        return pack(text, data)
    return await asyncio.to_thread(pack, text, data)


async def decode_result(parts: Sequence[bytes], run_id: str, max_bytes: int) -> Result:
    """`max_bytes`: maximum size of the value and the files. Raises ResumeError."""
    header, value, files = await asyncio.to_thread(_unpack, parts, max_bytes + OVERHEAD_BYTES)
    return Result(
        ok=header.ok,
        result=await decode_large_value(value) if header.ok else None,
        error=None if header.error is None else header.error.to_exception(),
        logs=header.logs,
        logs_truncated=header.logs_truncated,
        duration_ms=header.duration_ms,
        run_id=run_id,
        result_json=value if header.ok else None,
        calls=header.calls,
        files=files,
        script=header.script,
        warnings=header.warnings,
    )


def _unpack(parts: Sequence[bytes], max_bytes: int) -> tuple[_Header, bytes, list[File]]:
    text, data = unpack(parts, max_bytes)
    try:
        header = msgspec.msgpack.decode(text, type=_Header)
    except msgspec.DecodeError:
        raise ResumeError("checkpoint_invalid", "The result of the run cannot be read.") from None
    value, data = take(data, header.result_bytes)
    files: list[File] = []
    for name, mime_type, size in header.files:
        content, data = take(data, size)
        files.append(File(name, mime_type, content))
    return header, value, files
