"""Exceptions with stable codes, their Execbox codes, and explanations for an unusable HUTCH_HOME."""

from __future__ import annotations

import errno
import re
from os.path import lexists  # unlike Path.exists, never raises PermissionError
from pathlib import Path
from typing import Any, Literal

WIRE_CODES = frozenset(
    {
        "timeout",
        "memory_limit",
        "validation_error",
        "tool_error",
        "runtime_error",
        "serialization_error",
        "internal_error",
    }
)

# Execbox codes that replace, in messages, the codes that only Hutch has.
_WIRE_CODE_OF = {
    "result_too_large": "serialization_error",
    "call_limit": "tool_error",
}

HOME_REMEDY = "Set HUTCH_HOME to a folder that you may write."

_HOME_FORBIDDEN = "cannot be read and written by this user"
_HOME_PROBLEMS = {
    errno.EEXIST: "is a file, not a folder",
    errno.ENOTDIR: "is a file, not a folder",
    errno.EACCES: _HOME_FORBIDDEN,
    errno.EPERM: _HOME_FORBIDDEN,
    errno.EROFS: "is on a file system that cannot be written",
}


def wire_code(code: str) -> str:
    """Returns the Execbox code for an error code of Hutch."""
    return code if code in WIRE_CODES else _WIRE_CODE_OF.get(code, "internal_error")


class HutchError(Exception):
    """Hutch failed."""

    code: str = "internal_error"

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        text = message or (type(self).__doc__ or "").strip()
        super().__init__(f"{text} {remedy}" if remedy else text)
        self.message = text
        self.remedy = remedy


class SettingError(HutchError):
    """A setting has an invalid value."""

    code = "invalid_setting"


class InvalidExecution(HutchError):
    """The execution request is invalid."""

    code = "invalid_request"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.detail = message


class InvalidTool(HutchError):
    """A function cannot be used as a tool."""

    code = "invalid_tool"


class Busy(HutchError):
    """All runners are busy, and none became free in time."""

    code = "busy"

    def __init__(self, message: str | None = None, *, retry_after: float = 1.0) -> None:
        super().__init__(message, remedy=f"Try again in {retry_after:g} s.")
        self.retry_after = retry_after


class SandboxUnavailable(HutchError):
    """This machine cannot provide the required sandbox."""

    code = "sandbox_unavailable"


class ExecutionError(HutchError):
    """The guest failed, or a limit was reached. `Result.error` holds this exception, and
    `Result.raise_for_error` raises it.

    `code` is one of the codes in docs/execbox.md, `message` the guest's own text. `name` is the class of the
    guest's error, `line` and `column` the position in its source, and `stack` its call stack, each None if
    not known. The text of the exception contains name and position.
    """

    def __init__(
        self,
        code: str,
        message: str,
        name: str | None = None,
        line: int | None = None,
        column: int | None = None,
        stack: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.name = name
        self.line = line
        self.column = column
        self.stack = stack
        self.retry_after = retry_after
        if stack:
            self.add_note(f"Stack of the guest:\n{stack}")

    def __str__(self) -> str:
        name = f"{self.name}: " if self.name and self.name != "Error" else ""
        # The message of a syntax error or a type error already contains the position.
        has_position = self.line is None or _POSITION.search(self.message)
        position = "" if has_position else f" (line {self.line}, column {self.column})"
        return f"{name}{self.message}{position}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.code!r}, {str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        fields = (self.code, self.message, self.name, self.line, self.column, self.stack, self.retry_after)
        return type(self), fields


# Matches the position in an error message. In the message of a syntax error, the position is at the end. In
# the message of a type error, it has a line of its own.
_POSITION = re.compile(r"\(\d+:\d+\)$|^  \S+:\d+:\d+$", re.M)


class InvalidPackage(HutchError):
    """A package name or version is not valid in the npm registry."""

    code = "invalid_request"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class PackageNotFound(HutchError):
    """A package is not available. The message is safe to show: it has no paths and no registry output."""

    code = "package_not_found"

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class PackageTooLarge(PackageNotFound):
    """A package, with all its dependencies, exceeds a limit. The message names the setting."""

    code = "package_too_large"

    def __init__(self, message: str, limit: Literal["size", "files"]) -> None:
        super().__init__(message)
        self.limit: Literal["size", "files"] = limit


class ProtocolError(HutchError):
    """The peer sent a message that violates the protocol."""

    code = "protocol_error"


class ToolError(HutchError):
    """A tool failed. Raise this error in a tool to choose the code and the message that the guest gets."""

    code = "tool_error"

    def __init__(self, message: str, code: str = "tool_error") -> None:
        if code not in WIRE_CODES and code not in _WIRE_CODE_OF:
            known = ", ".join(sorted(WIRE_CODES))
            raise InvalidTool(f"ToolError: there is no code {code!r}; expected one of {known}.")
        super().__init__(message)
        self.tool_code = wire_code(code)


class Suspend(ToolError):
    """Raise this error in a tool whose result comes later. The run is suspended when it waits only for such
    results, and continues with `Hutch.resume`. The guest gets this error if the run cannot be suspended, for
    example because its engine is not `quickjs`.
    """

    def __init__(
        self,
        message: str = "The result comes later",
        *,
        token: str | None = None,
        question: str | None = None,
    ) -> None:
        """`message` says what the run waits for. `token` is a text with which `Hutch.resolve` finds the call.
        `question` is JSON text that describes the call to a person who has to approve it.
        """
        super().__init__(message)
        self.token = token
        self.question = question


class ResumeError(HutchError):
    """A suspended run cannot be continued.

    `code` is checkpoint_not_found, checkpoint_in_use, checkpoint_ended, checkpoint_superseded,
    checkpoint_expired, checkpoint_incompatible, checkpoint_invalid, unknown_call, already_answered,
    too_many_suspended, too_many_questions or token_in_use; on a server also approval_needed or
    tools_elsewhere.
    """

    CODES = frozenset(
        {
            "already_answered",
            "cancelled",
            "checkpoint_ended",
            "checkpoint_expired",
            "checkpoint_in_use",
            "checkpoint_incompatible",
            "checkpoint_invalid",
            "checkpoint_not_found",
            "checkpoint_superseded",
            "token_in_use",
            "too_many_questions",
            "too_many_suspended",
            "tools_elsewhere",
            "unknown_call",
        }
    )

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class SessionError(HutchError):
    """A stateful session cannot be used.

    `code` is session_not_found, session_exists, session_in_use, session_expired, session_incompatible,
    session_invalid, session_limit or turn_not_found.
    """

    CODES = frozenset(
        {
            "session_not_found",
            "session_exists",
            "session_in_use",
            "session_expired",
            "session_incompatible",
            "session_invalid",
            "session_limit",
            "turn_not_found",
        }
    )

    def __init__(self, code: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.code = code


class ConfigError(HutchError):
    """The configuration of MCP servers is invalid."""

    code = "invalid_config"

    def __init__(
        self, file: str, line: int | None, key: str, message: str, *, remedy: str | None = None
    ) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {message}" if key else f"{where}: {message}", remedy=remedy)
        self.file = file
        self.line = line
        self.key = key
        self._about = message

    def without_position(self, name: str) -> ConfigError:
        """Returns the same error for a configuration that was passed as the argument `name` and not read from
        a file.
        """
        return ConfigError(name, None, self.key, self._about, remedy=self.remedy)


class UpstreamError(HutchError):
    """An MCP server or one of its tools failed. The message is the one that the tool or the server sent, if
    any.

    `kind` is one of unknown_server, unknown_tool, invalid_arguments, not_connected, login_required, timeout,
    lost, tool_error, rpc_error, too_large, invalid_result.
    """

    code = "upstream_error"

    def __init__(
        self, server: str, tool: str | None, message: str, *, kind: str, details: object = None
    ) -> None:
        super().__init__(message)
        self.server = server
        self.tool = tool
        self.kind = kind
        self.details = details


class VaultError(HutchError):
    """A secret cannot be stored or read."""

    code = "vault_error"


class InvalidInput(HutchError):
    """A name or a value cannot be stored. The message never contains the value of a secret."""

    code = "invalid_request"

    def __init__(self, field: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{field}: {message}", remedy=remedy)
        self.field = field


class Unauthorized(HutchError):
    """The API key is missing or not valid.

    `reason` is one of missing, unknown, revoked, expired.
    """

    code = "unauthorized"

    def __init__(self, reason: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason


class StoreError(HutchError):
    """The database cannot be read or written. The message is for the operator: it names files and hosts."""

    code = "store_error"


class SearchTimeout(StoreError):
    """The search took too long. Use narrower filters, or a shorter time."""


class AlreadyExists(HutchError):
    """An entry with that name already exists."""

    code = "conflict"


class InvalidAbility(HutchError):
    """The definition of an ability is invalid."""

    code = "invalid_ability"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RateLimited(Busy):
    """The caller has reached a limit. `limit` is its name, which is also in the message."""

    code = "rate_limited"

    def __init__(
        self, message: str | None = None, *, retry_after: float = 1.0, limit: str | None = None
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.limit = limit


class QuotaExceeded(RateLimited):
    """An execution was refused because its owner or key has used up its quota."""


class InvalidText(HutchError):
    """A text contains characters that databases cannot store."""

    code = "invalid_request"


class UnstorableValue(HutchError):
    """A value is too long or out of range for the database."""

    code = "invalid_request"


def explain_home_error(error: OSError) -> str | None:
    """Explains why a file in HUTCH_HOME cannot be created or read. The explanation names the path that is the
    obstacle. Returns None for errors with another cause.
    """
    wrong = _HOME_PROBLEMS.get(error.errno or 0)
    if wrong is None or not isinstance(error.filename, str):
        return None
    file = Path(error.filename)
    # Name the nearest existing parent, because a path below a file or an unreadable folder cannot be
    # examined.
    nearest = next(path for path in (file, *file.absolute().parents) if lexists(path))
    return f"{nearest} {wrong}"
