"""Health checks that authors declare in package.json: `tpmjs.tools[].healthCheck` of protocol 1.1."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from hutch.npm.packages import Package
from hutch.session.json_value import NotJsonSafe, encode_value

MAX_CLEANUP_STEPS = 3
# Larger package.json files are ignored.
_MAX_MANIFEST_BYTES = 1024 * 1024
_MAX_TOOLS = 256


class CleanupStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of another tool of the same package. The call removes data that the checked call has created."""

    tool: Annotated[str, msgspec.Meta(min_length=1)]
    params: dict[str, Any] = {}
    mapping: dict[str, str] = {}
    """Parameters that are taken from the output of the checked call, by dot-separated paths."""


class HealthCheck(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Describes how to check a tool without lasting effects."""

    skip_execution: bool = False
    """True if the tool may be imported and described, but not called."""
    test_params: dict[str, Any] | None = None
    """Parameters that are safe to call the tool with. Strings may contain `{{timestamp}}`."""
    cleanup: Annotated[list[CleanupStep], msgspec.Meta(max_length=MAX_CLEANUP_STEPS)] = []

    def __post_init__(self) -> None:
        if self.skip_execution and (self.test_params is not None or self.cleanup):
            raise ValueError("`skipExecution` cannot be combined with `testParams` or `cleanup`")


def listed_tools(package: Package) -> dict[str, dict[str, Any]]:
    """Returns the entries of `tpmjs.tools` in package.json by name. Tools with these names may not exist."""
    try:
        with (package.tree / "node_modules" / package.name / "package.json").open("rb") as file:
            manifest = msgspec.json.decode(file.read(_MAX_MANIFEST_BYTES), type=dict[str, Any])
    except (OSError, msgspec.DecodeError, RecursionError):
        return {}
    field = manifest.get("tpmjs")
    tools = field.get("tools") if isinstance(field, dict) else None
    entries = tools[:_MAX_TOOLS] if isinstance(tools, list) else []
    named = [(entry.get("name"), entry) for entry in entries if isinstance(entry, dict)]
    return {name: entry for name, entry in named if isinstance(name, str) and name}


def read_health_check(package: Package, name: str) -> tuple[HealthCheck | None, str | None]:
    """Returns the health check of a tool, or an error message if it is invalid. Returns None for both if the
    tool declares no check.
    """
    declared = listed_tools(package).get(name, {}).get("healthCheck")
    if declared is None:
        return None, None
    try:
        encode_value(declared)  # raises NotJsonSafe if it is nested too deeply for a response
        return msgspec.convert(declared, HealthCheck), None
    except (msgspec.ValidationError, NotJsonSafe) as error:
        return None, f"package.json: healthCheck of {name}: {error}"
