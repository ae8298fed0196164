"""Stored form of a toolscript that waits for approvals, and of its result."""

from __future__ import annotations

import msgspec

from hutch.errors import ExecutionError, ResumeError
from hutch.protocols.toolscript.execute import TIMEOUT_EXIT_CODE, ScriptResult
from hutch.session.json_value import NotJsonSafe, encode_value, well_formed
from hutch.session.large_json import decode_large_value
from hutch.session.run import CallRecord, Result, ScriptOutput

MAX_OUTPUT_BYTES = 256 * 1024
"""Maximum size of each of stdout and stderr in a stored result. The rest is left out."""


class AskedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that waits for an approval."""

    number: int
    """Position of the call in the record of the run's calls."""
    call_id: str
    server: str
    tool: str
    digest: str
    """SHA-256 of the arguments."""


class StoredScript(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is needed to run a script again, besides the record of its calls."""

    text: str
    name: str
    files: dict[str, str] = {}
    args: tuple[str, ...] = ()
    timeout_ms: float | None = None
    memory_bytes: int | None = None
    strict: bool | None = None
    generation: int = 0
    """Number of times that the run was stored."""
    created_at: float
    """Unix time at which the run was created."""
    asked: list[AskedCall] = []

    def encode(self) -> bytes:
        """Raises ResumeError."""
        try:
            return msgspec.msgpack.encode(self)
        except UnicodeEncodeError:
            message = "The code or an argument has half of a surrogate pair, which cannot be stored."
            raise ResumeError("checkpoint_invalid", message) from None

    @classmethod
    def decode(cls, data: bytes) -> StoredScript:
        """Raises ResumeError."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.DecodeError:
            raise ResumeError("checkpoint_invalid", "The stored script cannot be read.") from None


class Output:
    """The beginning of the output of a script."""

    def __init__(self) -> None:
        self._data = {"stdout": bytearray(), "stderr": bytearray()}

    def add(self, stream: str, data: bytes) -> None:
        stored = self._data[stream]
        stored += data[: MAX_OUTPUT_BYTES - len(stored)]

    def text(self, stream: str) -> str:
        return self._data[stream].decode(errors="replace")


async def stored_result(
    script: ScriptResult, output: Output, calls: list[CallRecord], *, is_cancelled: bool
) -> Result:
    """Returns the result of a script in the form in which results of runs are stored."""
    value = None if script.value_json is None else well_formed(script.value_json).encode()
    if value is not None:
        try:
            await decode_large_value(value)
        except NotJsonSafe:
            value = encode_value(value.decode())
    error = None
    if script.exit_code != 0:
        is_timeout = script.exit_code == TIMEOUT_EXIT_CODE and script.message
        code = "cancelled" if is_cancelled else "timeout" if is_timeout else "script_failed"
        error = ExecutionError(code, script.message or f"The script ended with exit code {script.exit_code}")
    return Result(
        ok=error is None,
        error=error,
        result_json=value,
        run_id=script.run_id,
        duration_ms=script.duration_ms,
        calls=calls,
        script=ScriptOutput(
            exit_code=script.exit_code,
            stdout=output.text("stdout"),
            stderr=output.text("stderr"),
            message=script.message,
        ),
    )
