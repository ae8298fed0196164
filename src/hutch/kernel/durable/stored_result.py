"""Encoding of the stored results of runs that were suspended."""

from __future__ import annotations

import msgspec

from hutch.session.files.model import File
from hutch.session.json_value import decode_value
from hutch.session.messages import WireError
from hutch.session.run import CallRecord, Result


class StoredResult(msgspec.Struct, frozen=True, omit_defaults=True):
    ok: bool
    logs: list[str]
    logs_truncated: bool
    duration_ms: float
    calls: list[CallRecord]
    error: WireError | None = None
    """Error with Hutch's code, not the code that is sent to other implementations."""
    result: msgspec.Raw = msgspec.Raw(b"null")
    files: list[File] = []


def encode_result(result: Result) -> str:
    error = None
    if result.error is not None:
        error = msgspec.structs.replace(WireError.of(result.error), code=result.error.code)
    stored = StoredResult(
        ok=result.ok,
        logs=result.logs,
        logs_truncated=result.logs_truncated,
        duration_ms=result.duration_ms,
        calls=list(result.calls),
        error=error,
        result=msgspec.Raw(result.result_json or b"null"),
        files=list(result.files),
    )
    return msgspec.json.encode(stored).decode("utf-8", "surrogatepass")


def decode_result(text: str, run_id: str) -> Result:
    stored = msgspec.json.decode(text, type=StoredResult)
    json = bytes(stored.result)
    return Result(
        ok=stored.ok,
        result=decode_value(json) if stored.ok else None,
        error=None if stored.error is None else stored.error.to_exception(),
        logs=stored.logs,
        logs_truncated=stored.logs_truncated,
        duration_ms=stored.duration_ms,
        run_id=run_id,
        result_json=json if stored.ok else None,
        calls=stored.calls,
        files=stored.files,
    )
