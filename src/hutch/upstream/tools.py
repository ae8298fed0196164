"""What is known of a server and of its tools."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Literal, TypeAlias

import msgspec

State: TypeAlias = Literal["idle", "connecting", "connected", "failed"]


class UpstreamTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool as its server describes it. Nothing in it can be trusted to be short, true or harmless."""

    server: str
    name: str
    title: str | None = None
    description: str | None = None
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    annotations: dict[str, Any] | None = None


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """How it stands with a server."""

    name: str
    state: State
    title: str | None = None
    instructions: str | None = None
    error: str | None = None
    """Why it failed, with the last that it complained of: for whoever runs it, not for scripts."""
    tools: int = 0
    warnings: tuple[str, ...] = ()


def digest(tools: Iterable[UpstreamTool]) -> str:
    """The same for the same tools with the same schemas, in whatever order."""
    ordered = sorted(tools, key=lambda tool: (tool.server, tool.name))
    return hashlib.sha256(msgspec.json.encode(ordered, order="deterministic")).hexdigest()[:16]
