"""Routes of the TPMJS protocol."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from hutch.errors import Busy
from hutch.http.auth import AccessControl
from hutch.http.endpoint import (
    Endpoint,
    Handler,
    HttpProtocol,
    RequestContext,
    elapsed_ms,
    public_json_route,
)
from hutch.http.errors import ApiError
from hutch.http.lifecycle import cancel_on_disconnect
from hutch.http.rate_limit import CallRateLimit, ConcurrencyLimit
from hutch.http.requests import JsonBodyReader
from hutch.http.routing import PrefixRoute
from hutch.http.server.connections import parse_address
from hutch.http.sse import EventBuffer, encode_event, event_stream
from hutch.kernel.parent_run import parent_run
from hutch.protocols.tpmjs import requests, responses
from hutch.protocols.tpmjs.descriptions import Descriptions, info_response
from hutch.protocols.tpmjs.models import EventSink, PackageToolCall
from hutch.protocols.tpmjs.responses import ProtocolVersion, TpmjsResponse
from hutch.queue.requests import REPLAYED_HEADER, parse_options, queue_caller, queue_error
from hutch.sandbox.selftest.result import SelfTestResult
from hutch.session.json_value import encode_value
from hutch.session.run import RunHandle
from hutch.settings import Settings
from hutch.telemetry.trace_context import current

if TYPE_CHECKING:
    from hutch.protocols.tpmjs.execute import ToolExecutor
    from hutch.queue.queue import RunQueue

PROTOCOL = "tpmjs"
# Maximum number of concurrent calls of one batch. Further calls wait.
MAX_BATCH_CONCURRENCY = 8


def routes(
    tools: ToolExecutor,
    access: AccessControl,
    settings: Settings,
    self_test: SelfTestResult,
    deno_version: str,
    queue: RunQueue | None = None,
) -> list[BaseRoute]:
    """`queue` executes asynchronous calls. It is None on a server without a store."""
    handlers = TpmjsHandlers(tools, access, settings, queue)

    def post(path: str, handler: Handler) -> BaseRoute:
        return PrefixRoute(path, Endpoint(handlers.protocol, {"POST": handler}), methods=["POST"])

    return [
        public_json_route(
            "/info", info_response(settings, self_test, deno_version, has_queue=queue is not None), access
        ),
        post("/execute-tool", handlers.execute),
        *([] if queue is None else [post("/execute-async", handlers.execute_async)]),
        post("/execute-batch", handlers.batch),
        post("/load-and-describe", handlers.describe),
        post("/validate-tool", handlers.describe),
    ]


class TpmjsHandlers:
    """Request handlers, one per route, and their shared state."""

    def __init__(
        self, tools: ToolExecutor, access: AccessControl, settings: Settings, queue: RunQueue | None = None
    ) -> None:
        self._access = access
        self._queue = queue
        self._settings = settings
        self._tools = tools
        self._concurrency = ConcurrencyLimit(settings.max_tools, settings.max_tools_per_caller)
        self._rate = CallRateLimit(settings.rate_limit)
        self._descriptions = Descriptions(tools, settings.latest_seconds)
        self._body = JsonBodyReader(settings.max_body_bytes, settings.request_seconds)
        self.protocol = HttpProtocol(
            name=PROTOCOL,
            access=access,
            logger=logging.getLogger("hutch.tpmjs"),
            allow_any_origin=True,
            check=self._check_limits,
            render=self._render,
            convert=queue_error,
        )

    async def _check_limits(self, context: RequestContext) -> None:
        caller = _caller(context)
        self._concurrency.check(caller)
        self._rate.check(caller)

    def _render(self, context: RequestContext, error: ApiError) -> Response:
        elapsed = None if error.kind in ("unauthorized", "forbidden") else elapsed_ms(context.started)
        return responses.error_response(error, self._version(context.request), elapsed).response()

    def _version(self, request: Request) -> ProtocolVersion:
        return requests.requested_version(request, string_errors=self._settings.tpmjs_string_errors)

    # --- handlers ---

    async def execute(self, context: RequestContext) -> ASGIApp:
        request = context.request
        call = requests.parse_call(await self._body.read_object(request), context.owner)
        if requests.wants_stream(request):
            return event_stream(self._stream(context, call))
        result = await cancel_on_disconnect(request.receive, self._run(context, call), self._access)
        return result.response()

    async def execute_async(self, context: RequestContext) -> ASGIApp:
        """Adds a call to the queue. Responds when the call is stored."""
        from hutch.protocols.tpmjs.queued_tool import OPTION_NAMES, QueuedTool

        assert self._queue is not None
        request, caller = context.request, queue_caller(context.caller)
        body = await self._body.read_object(request)
        options = parse_options(body, request.headers, self._queue.targets, OPTION_NAMES)
        call = await QueuedTool(self._tools).parse(body, caller, self._version(request))
        accepted = await self._queue.submit(call, caller, options)
        return responses.accepted_response(accepted, REPLAYED_HEADER).response()

    async def batch(self, context: RequestContext) -> ASGIApp:
        request = context.request
        calls = requests.parse_batch(await self._body.read_object(request), context.owner)
        self._rate.charge(_caller(context), len(calls) - 1)
        slots = asyncio.Semaphore(MAX_BATCH_CONCURRENCY)

        batch = RunHandle()
        self._tools.begin_batch(batch, context.owner, len(calls))

        async def run_one(call: PackageToolCall) -> TpmjsResponse:
            parent_run.set(batch.id)
            if batch.trace is not None:
                current.set(batch.trace)
            async with slots:
                return await self._run(context, call)

        async def run_all() -> list[TpmjsResponse]:
            return await asyncio.gather(*map(run_one, calls))

        results = await cancel_on_disconnect(request.receive, run_all(), self._access)
        failed = sum(not result.ok for result in results)
        self._tools.record_batch(batch, context.owner, failed, len(calls), batch.clock.now())
        return responses.batch_response(results, elapsed_ms(context.started)).response()

    async def describe(self, context: RequestContext) -> ASGIApp:
        request = context.request
        call = requests.parse_call(await self._body.read_object(request), context.owner)
        cached = self._descriptions.cached(call)
        if cached is not None:
            return responses.description_response(*cached).response()
        described = self._describe(context, call)
        return (await cancel_on_disconnect(request.receive, described, self._access)).response()

    # --- running calls ---

    async def _run(
        self, context: RequestContext, call: PackageToolCall, events: EventSink | None = None
    ) -> TpmjsResponse:
        """Executes one call. Converts errors to responses."""
        version = self._version(context.request)
        started = asyncio.get_running_loop().time()
        try:
            async with self._limits(context):
                outcome = await self._tools.execute(call, events)
            return responses.execution_response(outcome, version, elapsed_ms(started))
        except Exception as error:
            return responses.error_response(self.protocol.to_api_error(error), version, elapsed_ms(started))

    async def _describe(self, context: RequestContext, call: PackageToolCall) -> TpmjsResponse:
        async with self._limits(context):
            tool, failure, version = await self._descriptions.describe(call)
        if failure is not None:
            fields = {} if version is None else {"resolvedVersion": version}
            error, elapsed = responses.tool_error(failure), elapsed_ms(context.started)
            return responses.error_response(error, self._version(context.request), elapsed, **fields)
        if tool is None:
            raise ApiError("internal", "The tool was not described")
        return responses.description_response(tool, version)

    async def _stream(self, context: RequestContext, call: PackageToolCall) -> AsyncIterator[bytes]:
        """Yields the events of an execution. The last event is the result."""
        events = ExecutionEvents()
        work = self._run(context, call, events)
        running = asyncio.create_task(cancel_on_disconnect(None, work, self._access))
        running.add_done_callback(lambda _: events.end())
        try:
            while (chunk := await events.next()) is not None:
                yield chunk
            try:
                result = await running
            except Busy as busy:  # the drain timeout has expired
                error = self.protocol.to_api_error(busy)
                version = self._version(context.request)
                result = responses.error_response(error, version, elapsed_ms(context.started))
            yield encode_event("result", result.body)
        finally:
            running.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait((running,))

    @asynccontextmanager
    async def _limits(self, context: RequestContext) -> AsyncIterator[None]:
        """Limits concurrency and time. Raises Busy, or ApiError if the request takes too long."""
        seconds = self._settings.request_seconds
        timeout = asyncio.timeout_at(context.started + seconds)
        try:
            with self._concurrency.acquire(_caller(context)):
                async with timeout:
                    yield
        except TimeoutError:
            if not timeout.expired():
                raise
            message = f"The request took longer than {seconds:g} s"
            raise ApiError("timeout", message, retryable=True) from None


class ExecutionEvents(EventBuffer):
    """Event stream of a running execution."""

    def log(self, line: str) -> None:
        self.add(encode_event("log", encode_value({"line": line})))

    def partial(self, json: bytes) -> None:
        self.add(encode_event("partial", b'{"value":%b}' % json))


def _caller(context: RequestContext) -> str:
    """Returns the name under which limits are counted: the owner, or the client address on a server without
    keys.
    """
    if context.owner != "local":
        return context.owner
    client = context.request.client
    return parse_address(client.host).group if client else ""
