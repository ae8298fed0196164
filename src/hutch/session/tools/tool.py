"""Tools that a guest can call, and the context of a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeAlias, TypeVar

import anyio
import msgspec

from hutch.session.schema.hints import Schema

P = ParamSpec("P")
R = TypeVar("R")


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """Context of a tool call. A function gets it through a parameter of this type."""

    run_id: str
    provider: str
    tool: str
    """Original name of the tool."""
    deadline: float
    """End of the execution's time limit, on the event loop's clock."""
    cancelled: anyio.Event
    """Set when the result is no longer needed."""


Call: TypeAlias = Callable[[Any, ToolContext], Awaitable[bytes]]
"""Function that maps an input value to the JSON text of the result. Raises ToolError. Other exceptions become
`tool_error`.
"""


class Tool:
    """Function that a guest can call. `tool()` creates one from a Python function."""

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


class FunctionTool(Tool, Generic[P, R]):
    """Tool made from a Python function, which it still can be called as."""

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        call: Call,
        *,
        description: str | None = None,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
    ) -> None:
        super().__init__(
            name, call, description=description, input_schema=input_schema, output_schema=output_schema
        )
        self._function = function
        # Does not copy the attributes of the function: they could replace those of the tool.
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)
