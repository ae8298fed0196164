"""Models of tool calls and their outcomes."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from hutch.npm.package_spec import PackageSpec
from hutch.protocols.tpmjs.health_check import HealthCheck

FailureCode = Literal[
    "package_not_found",
    "package_too_large",
    "import_failed",
    "tool_not_found",
    "tool_invalid",
    "configuration_required",
    "schema_unavailable",
    "invalid_params",
    "execution_error",
    "timeout",
    "internal",
]


class PackageToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that executes or describes one tool."""

    spec: PackageSpec
    name: str
    """Name of the tool's export."""
    params: dict[str, Any] = {}
    env: dict[str, str] = {}
    """Environment variables with secrets, for this call only."""
    caller: str
    validate: bool = False
    """True to refuse parameters that do not match the tool's schema, and to apply the defaults
    of the schema.
    """

    def __repr__(self) -> str:
        """Omits the parameters and the values of `env`, because the text may be logged."""
        spec = self.spec
        return f"ToolCall({spec.name}@{spec.version}#{self.name}, env={sorted(self.env)}, {self.caller!r})"


class ToolFailure(msgspec.Struct, frozen=True):
    """Reason why there is no output. The message is for the caller and contains no paths or secrets."""

    code: FailureCode
    message: str
    retryable: bool = False
    location: str | None = None
    """Position in the package where the error was thrown, such as `dist/index.js:3:7`."""


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of an execution."""

    output_json: bytes | None = None
    """Output as valid JSON. None if the call failed or the output was undefined."""
    failure: ToolFailure | None = None
    resolved_version: str | None = None
    warnings: list[str] = []
    """Problems of the parameters. The tool got the parameters nevertheless."""
    logs: list[str] = []
    logs_truncated: bool = False
    run_id: str | None = None


class ToolDescription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Description of a tool for a model."""

    name: str
    description: str = ""
    input_schema: dict[str, Any]
    health_check: HealthCheck | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] | msgspec.UnsetType = msgspec.UNSET
    """Problems of the health check that package.json declares."""


class EventSink(Protocol):
    """Receives events of a running execution."""

    def log(self, line: str) -> None:
        """Called for each line that the tool prints."""

    def partial(self, json: bytes) -> None:
        """Called for each value that the tool's generator yields. `json` is valid JSON."""
