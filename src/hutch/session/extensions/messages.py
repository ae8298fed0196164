"""Messages of the negotiated extensions `files` and `durable`. Peers without these extensions neither send
nor receive them.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

FILE_PART_BYTES = 128 * 1024
MAX_TOKEN_CHARS = 1_024
MAX_RUN_ID_CHARS = 128


class FileHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Announces an input file in `options.files` of `execute`. The contents follow in `file` messages."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    type: str = ""
    """The server determines the type by the name."""


class FilePart(msgspec.Struct, frozen=True, kw_only=True, tag="file", tag_field="type", rename="camel"):
    """Part of a file. Those of a client belong to the announced files, in their order. The first part of each
    file of a server has `name`, `mimeType` and `size`.
    """

    id: str
    data: bytes
    """Base64 in JSON."""
    name: str | UnsetType = UNSET
    mime_type: str | UnsetType = UNSET
    size: int | UnsetType = UNSET


class ResumeRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Value of `options.resume`: makes an `execute` continue a suspended run, or perform another action on
    it.
    """

    run: Annotated[str, Meta(max_length=MAX_RUN_ID_CHARS)] = ""
    """Id of the run. Empty for `resolve`, and to resume from sealed bytes, which are an input file."""
    action: Literal["resume", "seal", "resolve"] = "resume"
    token: Annotated[str, Meta(max_length=MAX_TOKEN_CHARS)] = ""
    """Token of the call to `resolve`."""


class SuspendRequest(msgspec.Struct, frozen=True, tag="suspend", tag_field="type"):
    """Request of a client to suspend a run when it next waits."""

    id: str


class SuspendedCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """In a failed `tool_result`: the result of the call comes later."""

    token: str | None = None


class SuspendRefused(msgspec.Struct, frozen=True, tag="suspend_refused", tag_field="type"):
    """Answer to a `suspend` for a run that cannot be suspended."""

    id: str
    reason: str


class Resumed(msgspec.Struct, frozen=True, kw_only=True, tag="resumed", tag_field="type", rename="camel"):
    """Says that the server has taken a suspended run out of its store, and continues it."""

    id: str
    run_id: str
    timeout_ms: float
    """Remaining part of the time limit."""
    max_log_lines: int
    max_log_chars: int
    log_lines: int
    """Number of log lines from before the suspension."""


class Stored(msgspec.Struct, frozen=True, tag="stored", tag_field="type"):
    """Says that the run was stored and waits. Sent only if the client asked for log lines."""

    id: str
    calls: list[str]
    """Ids of the calls in the run."""


class PendingCallMessage(
    msgspec.Struct, frozen=True, kw_only=True, tag="pending_call", tag_field="type", rename="camel"
):
    """A call that a suspended run waits for. Sent before its `done`."""

    id: str
    call_id: str
    """Id of the call in the run."""
    provider_name: str
    safe_tool_name: str
    message: str
    token: str | UnsetType = UNSET
    started_at: float
    start_ms: float
    line: int | UnsetType = UNSET
    input: Raw
    """The last field, because it may be long."""


HostExtensionMessage = FilePart | SuspendRequest
ServerExtensionMessage = FilePart | SuspendRefused | Resumed | Stored | PendingCallMessage
