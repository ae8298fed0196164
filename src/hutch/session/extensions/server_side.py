"""Server's side of the negotiated extensions: their settings, and messages about files and calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw

from hutch.errors import Suspend, ToolError
from hutch.session.extensions.messages import (
    FILE_PART_BYTES,
    MAX_TOKEN_CHARS,
    FilePart,
    PendingCallMessage,
    SuspendedCall,
)
from hutch.session.files.model import File, FileLimits
from hutch.session.run import PendingCall
from hutch.session.tools.provider import MAX_MESSAGE_CHARS


class ChannelExtensions(msgspec.Struct, frozen=True, kw_only=True):
    """Extensions that the peer has negotiated."""

    files: FileLimits | None = None
    """Limits of the files that the peer may send. None for no files."""
    sealed: FileLimits | None = None
    """Limits of a sealed run that the peer may send. None if its runs cannot be suspended."""

    @property
    def durable(self) -> bool:
        """True if the peer's runs can be suspended and continued."""
        return self.sealed is not None


NO_EXTENSIONS = ChannelExtensions()


def file_parts(id: str, files: Sequence[File]) -> Iterator[FilePart]:
    """Yields the messages with the output files of an execution."""
    for file in files:
        first = file.data[:FILE_PART_BYTES]
        yield FilePart(id=id, name=file.name, mime_type=file.mime_type, size=file.size, data=first)
        for start in range(FILE_PART_BYTES, file.size, FILE_PART_BYTES):
            yield FilePart(id=id, data=file.data[start : start + FILE_PART_BYTES])


def pending_call_messages(id: str, calls: Sequence[PendingCall]) -> Iterator[PendingCallMessage]:
    """Yields the messages with the pending calls of a suspended run."""
    for call in calls:
        yield PendingCallMessage(
            id=id,
            call_id=call.call_id,
            provider_name=call.provider,
            safe_tool_name=call.tool,
            message=call.message,
            token=UNSET if call.token is None else call.token,
            started_at=call.started_at,
            start_ms=call.start_ms,
            line=UNSET if call.line is None else call.line,
            input=Raw(call.input_json),
        )


def suspend_error(value: Any, message: str) -> ToolError:
    """Returns the error of a tool whose result comes later. `value`: `tool_result.suspend`."""
    try:
        token = msgspec.convert(value, SuspendedCall).token
    except msgspec.ValidationError as error:
        return ToolError(f"The peer sent an invalid `suspend`: {error}", "internal_error")
    if token is not None and not 0 < len(token) <= MAX_TOKEN_CHARS:
        return ToolError(f"token: expected 1 to {MAX_TOKEN_CHARS} characters, got {len(token)}")
    return Suspend(message[:MAX_MESSAGE_CHARS], token=token)
