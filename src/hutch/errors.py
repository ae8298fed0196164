"""One root, stable codes: every failure that Hutch names, and what each is called on the Execbox wire."""

from __future__ import annotations

from typing import ClassVar

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

# Finer codes of ours and the word of the protocol that stands for each.
_ON_THE_WIRE = {
    "result_too_large": "serialization_error",
    "call_limit": "tool_error",
}


def wire_code(code: str) -> str:
    """The Execbox code for one of ours."""
    return code if code in WIRE_CODES else _ON_THE_WIRE.get(code, "internal_error")


class HutchError(Exception):
    """Something went wrong inside Hutch."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        text = message or (type(self).__doc__ or "").strip()
        super().__init__(f"{text} {remedy}" if remedy else text)
        self.message = text
        self.remedy = remedy


class SettingError(HutchError):
    """A setting has a value that it cannot have."""

    code = "invalid_setting"


class InvalidExecution(HutchError):
    """The execution asks for something that cannot be."""

    code = "invalid_request"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.detail = message


class InvalidTool(HutchError):
    """A tool cannot be lent to a guest as it is."""

    code = "invalid_tool"


class Busy(HutchError):
    """Every place is taken and the wait for one is over."""

    code = "busy"

    def __init__(self, message: str | None = None, *, retry_after: float = 1.0) -> None:
        super().__init__(message, remedy=f"Try again in {retry_after:g} s.")
        self.retry_after = retry_after


class SandboxUnavailable(HutchError):
    """No sandbox of the wanted strength can be had on this machine."""

    code = "sandbox_unavailable"


class InvalidPackage(HutchError):
    """A package's name or version is none that npm's registry could have."""

    code = "invalid_request"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class PackageNotFound(HutchError):
    """A package cannot be had. Its message is safe to show: no paths, no registry's output."""

    code = "package_not_found"

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class ProtocolError(HutchError):
    """The other side said something that the protocol does not have."""

    code = "protocol_error"


class ToolError(HutchError):
    """A tool failed. Raise it from a tool to choose the code and the message that the guest sees."""

    code = "tool_error"

    def __init__(self, message: str, code: str = "tool_error") -> None:
        if code not in WIRE_CODES and code not in _ON_THE_WIRE:
            known = ", ".join(sorted(WIRE_CODES))
            raise InvalidTool(f"ToolError: there is no code {code!r}; expected one of {known}.")
        super().__init__(message)
        self.tool_code = wire_code(code)


class ConfigError(HutchError):
    """The configuration of MCP servers cannot be used as it is."""

    code = "invalid_config"

    def __init__(
        self, file: str, line: int | None, key: str, message: str, *, remedy: str | None = None
    ) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(f"{where}: {key}: {message}" if key else f"{where}: {message}", remedy=remedy)
        self.file = file
        self.line = line
        self.key = key


class UpstreamError(HutchError):
    """An MCP server or a tool of one failed. The message is the tool's or the server's own, where it has one.

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
    """A secret cannot be kept or had."""

    code = "vault_error"


class InvalidInput(HutchError):
    """A name or a value is none that could be kept. Its message never has the value of a secret."""

    code = "invalid_request"

    def __init__(self, field: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{field}: {message}", remedy=remedy)
        self.field = field


class Unauthorized(HutchError):
    """The API key is missing or is none that counts.

    `reason` is one of missing, unknown, revoked, expired.
    """

    code = "unauthorized"

    def __init__(self, reason: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.reason = reason


class StoreError(HutchError):
    """What is kept cannot be read or written. Its message is for the operator: it names files and hosts."""

    code = "store_error"


class Taken(HutchError):
    """Something of that name is there already."""

    code = "conflict"


class InvalidAbility(HutchError):
    """An ability cannot be kept as it is described."""

    code = "invalid_ability"

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class RateLimited(Busy):
    """There were too many requests in a short time."""

    code = "rate_limited"


class InvalidText(HutchError):
    """A text has something in it that no database keeps."""

    code = "invalid_request"
