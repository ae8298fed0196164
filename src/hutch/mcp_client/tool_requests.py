"""Requests to an MCP server that call a tool or read a resource, and checks of their results.

This module imports the SDK, which takes a second.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, TypeAlias

from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import (
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ElicitationCapability,
    FormElicitationCapability,
    InputRequests,
    InputRequiredResult,
    InputResponses,
    ReadResourceResult,
    UrlElicitationCapability,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from hutch.errors import InvalidTool, UpstreamError
from hutch.mcp_client import error_messages
from hutch.mcp_client.tools import McpTool, content_problem
from hutch.mcp_client.transports.stdio import DirectCalls
from hutch.session.schema.type_hints import validator
from hutch.telemetry.trace_context import current
from hutch.telemetry.tracer import opentelemetry_context

ProgressCallback: TypeAlias = Callable[[float, float | None, str | None], Awaitable[None] | None]
"""Callback for the progress of a call. Receives the progress, the total if it is known, and a message."""

AskForInput: TypeAlias = Callable[[InputRequests], Awaitable[InputResponses]]
"""Gets answers to the questions that a tool asks the user. Raises UpstreamError if the user cannot be asked.
"""

INPUT_POLL_SECONDS = 0.25
_RESULT_ADAPTER: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(
    CallToolResult | InputRequiredResult
)


class InputAnswers(NamedTuple):
    """Answers of the user, with the state that the server needs to continue the call. There are no answers if
    the server asked nothing and only needs more time.
    """

    responses: InputResponses | None
    state: str | None


class ElicitingSession(ClientSession):
    """SDK session that announces elicitation only to servers with protocol 2026-07-28 or later. Older servers
    do not say which call a question belongs to.
    """

    def _build_capabilities(self, version: str) -> ClientCapabilities:
        capabilities = super()._build_capabilities(version)
        if version in MODERN_PROTOCOL_VERSIONS:
            capabilities.elicitation = ElicitationCapability(
                form=FormElicitationCapability(), url=UrlElicitationCapability()
            )
        return capabilities


async def answer_questions(asked: InputRequiredResult, on_input: AskForInput) -> InputAnswers:
    """Returns the answers to the questions of a tool. Waits a moment if the server only needs more time."""
    if asked.input_requests:
        return InputAnswers(await on_input(asked.input_requests), asked.request_state)
    await asyncio.sleep(INPUT_POLL_SECONDS)
    return InputAnswers(None, asked.request_state)


async def call_tool(
    session: ClientSession,
    direct: DirectCalls | None,
    tool: str,
    arguments: dict[str, Any],
    on_progress: ProgressCallback | None,
    retry: InputAnswers | None,
) -> CallToolResult | InputRequiredResult:
    """Calls a tool, bypassing the SDK if that is possible. `retry` repeats a call with answers of the user.
    Raises MCPError, ValidationError and CallNotSent.
    """
    modern = session.protocol_version in MODERN_PROTOCOL_VERSIONS
    trace = current.get()
    if direct is not None and on_progress is None and not modern:
        result = await direct.call(tool, arguments, None if trace is None else trace.headers)
        if (problem := content_problem(result)) is not None:
            raise error_messages.invalid_result(problem)
        return CallToolResult.model_validate(result, by_name=False)
    params = CallToolRequestParams(name=tool, arguments=arguments)
    if retry is not None:
        params.input_responses, params.request_state = retry
    request = CallToolRequest(params=params)
    callback = None if on_progress is None else _async_callback(on_progress)
    # Make `trace` the current context of OpenTelemetry, because the SDK sends that context in `_meta`.
    with nullcontext() if trace is None else opentelemetry_context(trace):
        return await session.send_request(request, _RESULT_ADAPTER, progress_callback=callback)


async def read_resource(
    session: ClientSession, uri: str, retry: InputAnswers | None
) -> CallToolResult | InputRequiredResult:
    """Reads a resource and returns it in the form of a tool's result."""
    answers, state = retry or (None, None)
    answer = await session.read_resource(
        uri, input_responses=answers, request_state=state, allow_input_required=True
    )
    if not isinstance(answer, ReadResourceResult):
        return answer
    contents = [part.model_dump(by_alias=True, mode="json", exclude_none=True) for part in answer.contents]
    return CallToolResult(content=[], structured_content={"contents": contents})


class OutputChecks:
    """Checks structured results against the output schemas of one server's tools."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._validators: dict[str, Callable[[object], str | None] | None] = {}

    def clear(self) -> None:
        self._validators.clear()

    def check(self, tool: McpTool, schema: dict[str, Any], value: Any) -> None:
        """Raises UpstreamError if a result does not match the output schema of its tool."""
        if tool.name not in self._validators:
            try:
                self._validators[tool.name] = validator(schema)
            except InvalidTool:
                # The schema is invalid, so results cannot be checked.
                self._validators[tool.name] = None
        check = self._validators[tool.name]
        problem = check(value) if check is not None else None
        if problem is not None:
            message = f"the result does not match the tool's output schema: {problem}"
            raise UpstreamError(self._server, tool.name, message, kind="invalid_result")


def _async_callback(callback: ProgressCallback) -> ProgressFnT:
    async def call(progress: float, total: float | None, message: str | None) -> None:
        result = callback(progress, total, message)
        if inspect.isawaitable(result):
            await result

    return call
