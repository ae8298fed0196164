"""Headers about runs: `X-Run-Id` in responses, and `traceparent` in requests."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hutch.telemetry.trace_context import parse_context, use_context

if TYPE_CHECKING:
    from hutch.kernel.execution import Execution
    from hutch.session.run import RunHandle

RUN_ID_HEADER = "X-Run-Id"
_RAW_HEADER = RUN_ID_HEADER.lower().encode()
MAX_LISTED_IDS = 50

_ids: ContextVar[list[str] | None] = ContextVar("hutch_run_ids", default=None)


def note_run(execution: Execution, run: RunHandle) -> None:
    """Adds the id of a run to the header of the current request's response. Must be called for each run
    before it is queued.
    """
    ids = _ids.get()
    if ids is not None and not execution.is_internal and len(ids) < MAX_LISTED_IDS:
        ids.append(run.id)


class RunIdHeaders:
    """ASGI middleware that adds the header `X-Run-Id` to a response: the ids of the runs that the request
    started.

    A response that starts before its runs, such as an event stream, does not have the header.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Change this list instead of setting the variable again: tasks of the request inherit the variable,
        # but the request would not see a value that they set.
        ids: list[str] = []
        token = _ids.set(ids)

        async def send_with_ids(message: Message) -> None:
            if message["type"] == "http.response.start" and ids:
                headers = list(message.get("headers", ()))
                if not any(name.lower() == _RAW_HEADER for name, _ in headers):
                    headers.append((_RAW_HEADER, ", ".join(ids).encode("latin-1", "replace")))
                    message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, send_with_ids)
        finally:
            _ids.reset(token)


class TraceHeaders:
    """ASGI middleware that adds the runs of a request or a WebSocket to the trace in its headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        with use_context(parse_context(Headers(scope=scope).get)):
            await self._app(scope, receive, send)
