"""What a guest may call: a tool, and what it may know of a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import anyio
import msgspec

from hutch.session.schema import Schema


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool may know of the call; a function gets it by asking for a parameter of this type."""

    run_id: str
    provider: str
    tool: str
    """The original name."""
    deadline: float
    """When the execution's time is over, by the clock of the event loop."""
    cancelled: anyio.Event
    """Set when nobody waits for the result any more."""


Call: TypeAlias = Callable[[Any, ToolContext], Awaitable[bytes]]
"""From the input's value to the JSON text of the result; raises ToolError, or anything for `tool_error`."""


class Tool:
    """One thing that a guest can call. `tool()` makes one of a function."""

    def __init__(
        self,
        name: str,
        call: Call,
        *,
        description: str | None = None,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
    ) -> None:
        self.name = name
        self.call = call
        self.description = description
        self.input_schema = input_schema
        self.output_schema = output_schema

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"
