"""What the door asks of whoever runs tools, and what it hears back."""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from hutch.npm.names import PackageSpec

FailureCode = Literal[
    "package_not_found",
    "import_failed",
    "tool_not_found",
    "tool_invalid",
    "configuration_required",
    "schema_unavailable",
    "execution_error",
    "timeout",
    "internal",
]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One tool, to be executed or described."""

    spec: PackageSpec
    name: str
    """Of the export."""
    params: dict[str, Any] = {}
    env: dict[str, str] = {}
    """Secrets, for this one call."""
    caller: str

    def __repr__(self) -> str:
        """Without what nobody is to read in a log."""
        spec = self.spec
        return f"ToolCall({spec.name}@{spec.version}#{self.name}, env={sorted(self.env)}, {self.caller!r})"


class ToolFailure(msgspec.Struct, frozen=True):
    """Why there is no output. The message is for the caller: no paths, no secrets."""

    code: FailureCode
    message: str
    retryable: bool = False


class ToolOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an execution ended."""

    output_json: bytes | None = None
    """The output as JSON, checked to be that; None with a failure, or when it was undefined."""
    failure: ToolFailure | None = None
    resolved_version: str | None = None
    logs: list[str] = []
    logs_truncated: bool = False
    run_id: str | None = None


class ToolDescription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a model is told of a tool."""

    name: str
    description: str = ""
    input_schema: dict[str, Any]


class Events(Protocol):
    """Whoever wants to hear of an execution while it goes on."""

    def log(self, line: str) -> None:
        """A line of its console."""

    def partial(self, json: bytes) -> None:
        """A value that its generator gave, as JSON, checked to be that."""


class Tools(Protocol):
    """Whoever runs tools. Both raise Busy and InvalidPackage, and nothing else that is foreseen."""

    async def execute(self, call: ToolCall, events: Events | None = None) -> ToolOutcome:
        """Runs it to its end; cancelling ends it."""

    async def describe(self, call: ToolCall) -> tuple[ToolDescription | None, ToolFailure | None, str | None]:
        """Loads it without executing it: what it is or why it cannot be said, and the exact version."""
