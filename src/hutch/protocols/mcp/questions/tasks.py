"""Suspended runs as tasks: the extension `io.modelcontextprotocol/tasks` of MCP 2026-07-28 (SEP-2663)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult, ElicitResult, RequestParams
from pydantic import ConfigDict, Field, ValidationError

from hutch.errors import ResumeError
from hutch.protocols.mcp.questions.elicitation import approval_request
from hutch.protocols.mcp.questions.suspended import SuspendedRunState
from hutch.protocols.toolscript.gateway.approvals import arguments_digest
from hutch.session.run import Result
from hutch.store.tables.durable.checkpoints import CheckpointRow

if TYPE_CHECKING:
    from hutch.http.auth import Caller
    from hutch.protocols.mcp.questions.suspended import SuspendedRunCalls

POLL_INTERVAL_MS = 1_000


class TaskParams(RequestParams):
    model_config = ConfigDict(extra="allow", populate_by_name=True)

    task_id: str = Field(alias="taskId", max_length=200)


class UpdateTaskParams(TaskParams):
    input_responses: dict[str, Any] = Field(alias="inputResponses", max_length=1_000)


class Tasks:
    """Answers `tasks/get`, `tasks/update` and `tasks/cancel`. The id of a task is the id of its run."""

    def __init__(
        self, runs: SuspendedRunCalls, to_result: Callable[[Result, str], Awaitable[CallToolResult]]
    ) -> None:
        """`to_result` builds the tool result from the result of a run and the owner of the run."""
        self._runs = runs
        self._to_result = to_result

    async def created(self, run_id: str, owner: str) -> dict[str, Any]:
        """Returns the answer to a call whose run was suspended."""
        row = await self._row(run_id, owner)
        return {"resultType": "task", **_task(row, "input_required")}

    async def get(self, run_id: str, owner: str) -> dict[str, Any]:
        """Returns the state of a task. Raises MCPError if the owner has no such task."""
        row = await self._row(run_id, owner)
        result, waiting = await self._runs.state(run_id, owner)
        if result is not None:
            if result.error is not None and result.error.code == "cancelled":
                return _task(row, "cancelled")
            tool_result = await self._to_result(result, owner)
            dumped = tool_result.model_dump(mode="json", by_alias=True, exclude_none=True)
            return {**_task(row, "completed"), "result": dumped}
        if not waiting:
            return _task(row, "working")
        requests = {
            call.call_id: approval_request(
                call.question.server, call.question.tool, call.question.arguments
            ).model_dump(mode="json", by_alias=True, exclude_none=True)
            for call in waiting
        }
        return {**_task(row, "input_required"), "inputRequests": requests}

    async def update(self, run_id: str, responses: Mapping[str, Any], caller: Caller) -> dict[str, Any]:
        """Delivers answers of the client's user. Raises MCPError if none of them can be used."""
        row = await self._row(run_id, caller.owner)
        _, waiting = await self._runs.state(run_id, caller.owner)
        digests = {call.call_id: arguments_digest(call.question.arguments) for call in waiting}
        try:
            answers = {key: ElicitResult.model_validate(value) for key, value in responses.items()}
        except ValidationError:
            raise MCPError(INVALID_PARAMS, "inputResponses: expected results of elicitations") from None
        state = SuspendedRunState(run_id, digests, row.expires_at)
        refusal = await self._runs.decide(state, answers, caller)
        if refusal is not None:
            text = next((block.text for block in refusal.content if block.type == "text"), "")
            raise MCPError(INVALID_PARAMS, text)
        return {}

    async def cancel(self, run_id: str, owner: str) -> dict[str, Any]:
        """Cancels a task. If the run of the task is executing, it ends as soon as possible. Does nothing if
        the task has ended.
        """
        await self._row(run_id, owner)
        await self._runs.stop(run_id, owner)
        return {}

    async def _row(self, run_id: str, owner: str) -> CheckpointRow:
        try:
            return await self._runs.row(run_id, owner)
        except ResumeError as error:
            raise MCPError(INVALID_PARAMS, f"taskId: {error}") from None


def _task(row: CheckpointRow, status: str) -> dict[str, Any]:
    created, expires = datetime.fromisoformat(row.created_at), datetime.fromisoformat(row.expires_at)
    return {
        "taskId": row.run_id,
        "status": status,
        "createdAt": row.created_at,
        "lastUpdatedAt": row.created_at,
        "ttlMs": max(0, round((expires - created).total_seconds() * 1000)),
        "pollIntervalMs": POLL_INTERVAL_MS,
    }
