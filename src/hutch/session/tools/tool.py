"""Tools that a guest can call, and the context of a call."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, TypeAlias, TypeVar

import msgspec

from hutch.errors import Suspend, ToolError
from hutch.session.json_value import NotJsonSafe

if TYPE_CHECKING:
    from hutch.session.schema.type_hints import Schema

P = ParamSpec("P")
R = TypeVar("R")


class CallReports(Protocol):
    """Receives the reports that a call makes before it returns its result."""

    def progress(self, value: Any) -> None:
        """Raises NotJsonSafe."""

    def item(self, json: bytes) -> None:
        """Takes the JSON text of one item of the result. Raises ToolError if there are too many bytes."""


class CancelledEvent(Protocol):
    """The part of `anyio.Event` that tools use."""

    def is_set(self) -> bool: ...

    async def wait(self) -> None: ...


def _new_event() -> CancelledEvent:
    import anyio  # imported here, because most commands need no event loop

    return anyio.Event()


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """Context of a tool call. A function gets the context through a parameter of this type. Tests of such a
    function can pass `ToolContext()`.
    """

    run_id: str = ""
    provider: str = "tools"
    tool: str = ""
    """Original name of the tool."""
    deadline: float = math.inf
    """End of the execution's time limit, on the event loop's clock."""
    cancelled: CancelledEvent = msgspec.field(default_factory=_new_event)
    """Set when the result of the call is no longer needed."""
    call_id: str = ""
    """Id of the call, unique in its run."""
    line: int | None = None
    """Line of the guest's source that makes the call. Known only if the run has listeners."""
    can_suspend: bool = False
    """True if the run can be suspended until the result of the call is available; see `suspend`."""
    _reports: CallReports | None = None

    @property
    def idempotency_key(self) -> str:
        """Text that is the same each time this call is made, even after the run was suspended."""
        return f"{self.run_id}:{self.call_id}"

    async def suspend(self, message: str = "The result comes later", *, token: str | None = None) -> NoReturn:
        """Ends the function because the result of the call will arrive later. Raises Suspend."""
        raise Suspend(message, token=token)

    def progress(self, value: Any) -> None:
        """Sends a JSON-safe value to the listeners of the run, as a `ToolProgress` event. Does nothing
        without listeners. Sync tools may call this method from their thread.

        Raises ToolError if the value is not JSON-safe.
        """
        if self._reports is None:
            return
        try:
            self._reports.progress(value)
        except NotJsonSafe as error:
            message = f"Tool {self.tool} reported progress that is not JSON: {error}"
            raise ToolError(message, "serialization_error") from None

    def yield_item(self, json: bytes) -> None:
        """Sends the JSON text of one item of the list that the call returns. Raises ToolError."""
        if self._reports is not None:
            self._reports.item(json)


Call: TypeAlias = Callable[[Any, ToolContext], Awaitable[bytes]]
"""Function that maps an input value to the JSON text of the result. Raises ToolError. Other exceptions become
`tool_error`.
"""


class Deferred(msgspec.Struct, frozen=True):
    """Return value of a tool whose result arrives later, through `Hutch.resolve` with the same token."""

    token: str
    message: str = "The result comes later"


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
        streams: bool = False,
        idempotent: bool = False,
    ) -> None:
        """`streams`: the result is a list, and `call` passes each item to `ToolContext.yield_item`.
        `idempotent`: a call may be made again if the process died before its result was stored.
        """
        self.name = name
        self.call = call
        self.description = description
        self.input_schema = input_schema
        self.output_schema = output_schema
        self.streams = streams
        self.idempotent = idempotent

    def __repr__(self) -> str:
        return f"Tool({self.name!r})"


class FunctionTool(Tool, Generic[P, R]):
    """Tool made from a Python function. Calling the tool object calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        name: str,
        call: Call,
        *,
        description: str | None = None,
        input_schema: Schema | None = None,
        output_schema: Schema | None = None,
        streams: bool = False,
        idempotent: bool = False,
    ) -> None:
        super().__init__(
            name,
            call,
            description=description,
            input_schema=input_schema,
            output_schema=output_schema,
            streams=streams,
            idempotent=idempotent,
        )
        self._function = function
        # With `updated=()`, the function's attributes are not copied. They could replace the attributes of
        # the tool.
        update_wrapper(self, function, updated=())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)
