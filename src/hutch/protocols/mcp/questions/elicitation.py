"""Asks the client's user by MCP elicitation: for approvals, and for input that tools request."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.shared.exceptions import MCPError, NoBackChannelError
from mcp.types import (
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    InputRequest,
    InputRequests,
    InputResponse,
    InputResponses,
)
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from hutch.errors import UpstreamError
from hutch.http.auth import Caller
from hutch.protocols.mcp.questions.held_calls import MAX_QUESTIONS
from hutch.protocols.mcp.results import clip, json_text
from hutch.protocols.mcp.run_code import ClientRun, CodeRunner
from hutch.protocols.toolscript.gateway.approvals import (
    Approval,
    ApprovalAnswer,
    Approvals,
    arguments_digest,
)
from hutch.session.json_value import well_formed

T = TypeVar("T")

TASKS_EXTENSION = "io.modelcontextprotocol/tasks"
_MAX_SHOWN = 2_000
_CANNOT_ASK = (
    "the policy requires an approval, and this client cannot ask its user for one;"
    " the operator can allow the tool in hutch.toml, [approvals]"
)
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "remember": {
            "type": "boolean",
            "title": "Allow this tool for the rest of the run",
            "default": False,
        }
    },
}


class Elicitor:
    """Asks the client of a run for approvals, and passes on the questions of tools to the same client.

    With `is_only_client`, only the client can answer, because there is no `/approvals` route.
    """

    def __init__(self, runs: CodeRunner, approvals: Approvals, *, is_only_client: bool) -> None:
        self._runs = runs
        self._approvals = approvals
        self._is_only_client = is_only_client

    async def __call__(self, approval: Approval) -> ApprovalAnswer:
        run = self._runs.find(approval.run)
        if run is not None and run.questions is not None:
            request = approval_request(approval.server, approval.tool, approval.arguments)
            return _by_client(run, await run.questions.ask(request))
        if run is not None and can_ask(run.client):
            try:
                return _by_client(run, await _elicit(run.client, approval))
            except (MCPError, NoBackChannelError):
                # Ignore the error of a client that announced elicitation but could not ask its user. A
                # decision may still come from `/approvals`.
                pass
        if self._is_only_client:
            return ApprovalAnswer("deny", _CANNOT_ASK)
        return await asyncio.Future()

    async def answer_tool(
        self, server: str, tool: str, run_id: str | None, requests: InputRequests
    ) -> InputResponses:
        """Passes on questions of a tool to the client of its run, and returns the answers. Raises
        UpstreamError if the client cannot ask its user.
        """
        run = self._runs.find(run_id)
        if len(requests) > MAX_QUESTIONS:
            message = f"the tool asks more than {MAX_QUESTIONS} questions at once"
            raise UpstreamError(server, tool, message, kind="rpc_error")
        answering = [self._answer_tool(server, tool, run, request) for request in requests.values()]
        answers = self._approvals.wait_for_input(server, tool, run_id, gather(answering))
        return dict(zip(requests, await answers, strict=True))

    async def _answer_tool(
        self, server: str, tool: str, run: ClientRun | None, request: InputRequest
    ) -> InputResponse:
        if run is None or not isinstance(request, ElicitRequest) or not _supports(run.client, request.params):
            message = "the tool asks the user for input that the client of this call cannot provide"
            raise UpstreamError(server, tool, message, kind="rpc_error")
        text = f"{tool} of {server} asks:\n{clip(request.params.message, _MAX_SHOWN)}"
        params = request.params.model_copy(update={"message": well_formed(text)})
        if run.questions is not None:
            return await run.questions.ask(ElicitRequest(params=params))
        try:
            session: ServerSession = run.client.session
            request_id = run.client.request_id
            if isinstance(params, ElicitRequestFormParams):
                return await session.elicit_form(params.message, params.requested_schema, request_id)
            elicitation_id = secrets.token_urlsafe(9)
            return await session.elicit_url(params.message, params.url, elicitation_id, request_id)
        except MCPError as error:
            message = f"the client could not ask the user: {error.message}"
            raise UpstreamError(server, tool, message, kind="rpc_error") from None


async def gather(work: Iterable[Awaitable[T]]) -> list[T]:
    """Waits for all results. If one task fails, cancels the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def _supports(client: ServerRequestContext[Any, Any], params: ElicitRequestParams) -> bool:
    if not (client.session.can_send_request or client.protocol_version in MODERN_PROTOCOL_VERSIONS):
        return False
    if isinstance(params, ElicitRequestFormParams):
        return supports_forms(client)
    capabilities = client.session.client_capabilities
    elicitation = None if capabilities is None else capabilities.elicitation
    return elicitation is not None and elicitation.url is not None


def can_ask(client: ServerRequestContext[Any, Any]) -> bool:
    """Returns True if the client's user can be asked while a call is in progress. Only protocols before
    2026-07-28 allow that.
    """
    return client.session.can_send_request and supports_forms(client)


def is_asked_on_return(client: ServerRequestContext[Any, Any]) -> bool:
    """Returns True if the client's user can be asked when a call returns `input_required`."""
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and supports_forms(client)


def declares_tasks(client: ServerRequestContext[Any, Any]) -> bool:
    """Returns True if the client has declared in this request that it understands tasks."""
    capabilities = client.session.client_capabilities
    extensions = None if capabilities is None else capabilities.extensions
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS_EXTENSION in (extensions or {})


def supports_forms(client: ServerRequestContext[Any, Any]) -> bool:
    capabilities = client.session.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    # In older protocol versions, a client that announces elicitation without details supports forms.
    return capabilities.elicitation.form is not None or capabilities.elicitation.url is None


def question_text(server: str, tool: str, arguments: Any) -> str:
    text = json_text(arguments)
    shown = clip(text, _MAX_SHOWN)
    if shown != text:
        shown += f"\nSHA-256 of all arguments: {arguments_digest(arguments)}"
    return well_formed(f"May {tool} of {server} be called?\n{shown}")


def approval_request(server: str, tool: str, arguments: Any) -> ElicitRequest:
    message = question_text(server, tool, arguments)
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=FORM))


async def _elicit(client: ServerRequestContext[Any, Any], approval: Approval) -> ElicitResult:
    return await client.session.elicit_form(
        question_text(approval.server, approval.tool, approval.arguments),
        FORM,
        related_request_id=client.request_id,
    )


def _by_client(run: ClientRun, result: InputResponse) -> ApprovalAnswer:
    return msgspec.structs.replace(to_answer(result), decided_by=run.name)


def to_answer(result: InputResponse) -> ApprovalAnswer:
    if not isinstance(result, ElicitResult):
        return ApprovalAnswer("deny", "the client did not answer the question")
    if result.action != "accept":
        return ApprovalAnswer(
            "deny", "the user declined" if result.action == "decline" else "the user did not answer"
        )
    return ApprovalAnswer("allow", remember=(result.content or {}).get("remember") is True)


def caller_name(caller: Caller) -> str:
    """Returns the name of the person who decides, for the record of the decision."""
    if caller.identity is None:
        return f"MCP client of {caller.owner}"
    return f"{caller.identity.user.name}, MCP client with key {caller.identity.key.id}"
