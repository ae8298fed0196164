"""Suspended runs as tasks, for clients that declare the extension."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.shared.exceptions import MCPError
from mcp.types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict
from tests.protocols.mcp.durable_server import MODERN, serving
from tests.protocols.mcp.harness import text_of
from tests.protocols.mcp.questions.test_suspended import ARGUMENTS

from hutch.protocols.mcp.questions.elicitation import TASKS_EXTENSION


class CreatedTask(Result):
    model_config = ConfigDict(extra="allow")

    result_type: Literal["task"] = "task"
    taskId: str
    status: str
    ttlMs: int | None


class TaskState(Result):
    model_config = ConfigDict(extra="allow")

    taskId: str = ""
    status: str = ""
    inputRequests: dict[str, Any] | None = None
    result: dict[str, Any] | None = None


class Params(RequestParams):
    model_config = ConfigDict(extra="allow")


class TaskRequest(Request[Params, str]):
    method: str
    params: Params


async def request(client: Client, method: str, **params: Any) -> TaskState:
    sent = TaskRequest(method=method, params=Params(**params))
    return await client.session.send_request(sent, TaskState)  # type: ignore[arg-type]


class TaskClient(ClientExtension):
    """Extension of a client that stores the handle of a task and does not wait for the task's result."""

    identifier = TASKS_EXTENSION

    def __init__(self) -> None:
        self.created: CreatedTask | None = None

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=self._keep)]

    async def _keep(self, created: CreatedTask, _: ClaimContext) -> CallToolResult:
        self.created = created
        return CallToolResult(content=[])


async def wait_for_end(client: Client, task_id: str) -> TaskState:
    async with asyncio.timeout(60):
        while (task := await request(client, "tasks/get", taskId=task_id)).status == "working":  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # there is no event to wait for, because clients poll tasks
    return task


async def test_suspended_run_is_a_task_that_another_server_continues(tmp_path: Path) -> None:
    tasks = TaskClient()
    async with serving(tmp_path) as first, first.client("auto", extensions=[tasks]) as client:
        assert TASKS_EXTENSION in (client.server_capabilities.extensions or {})
        await client.call_tool("run_code", ARGUMENTS)
        assert tasks.created is not None
        task_id = tasks.created.taskId
        assert tasks.created.status == "input_required"
        assert 29 < (tasks.created.ttlMs or 0) / (24 * 3600 * 1000) < 31
        state = await request(client, "tasks/get", taskId=task_id)
        ((key, asked),) = (state.inputRequests or {}).items()
        assert asked["method"] == "elicitation/create"
        assert "create_issue" in asked["params"]["message"]
        assert first.made == ["list_issues"]
    async with serving(tmp_path) as second, second.client(extensions=[TaskClient()]) as client:
        with pytest.raises(MCPError, match="inputResponses: expected results of elicitations"):
            await request(
                client, "tasks/update", taskId=task_id, inputResponses={"other": {"action": "accept"}}
            )
        with pytest.raises(MCPError, match="inputResponses: expected results of elicitations"):
            await request(client, "tasks/update", taskId=task_id, inputResponses={key: 1})
        answer = {"action": "accept", "content": {}}
        await request(client, "tasks/update", taskId=task_id, inputResponses={key: answer})
        ended = await wait_for_end(client, task_id)
        assert ended.status == "completed"
        assert ended.result is not None
        assert ended.result["content"][0]["text"].startswith("1 and 7")
        assert second.made == ["create_issue"]
        # A question can be answered only once.
        with pytest.raises(MCPError):
            await request(client, "tasks/update", taskId=task_id, inputResponses={key: answer})
        with pytest.raises(MCPError, match="taskId: "):
            await request(client, "tasks/get", taskId="unknown")
        assert second.made == ["create_issue"]


async def test_task_can_be_cancelled_and_other_clients_get_no_tasks(tmp_path: Path) -> None:
    tasks = TaskClient()
    async with serving(tmp_path) as server:
        async with server.client(extensions=[tasks]) as client:
            await client.call_tool("run_code", ARGUMENTS)
            assert tasks.created is not None
            task_id = tasks.created.taskId
            await request(client, "tasks/cancel", taskId=task_id)
            assert (await request(client, "tasks/get", taskId=task_id)).status == "cancelled"
            await request(client, "tasks/cancel", taskId=task_id)
        for mode in (MODERN, "legacy"):
            async with server.client(mode) as client:
                answer = await client.call_tool("run_code", ARGUMENTS)
                assert "waits until a person has approved" in text_of(answer)
        assert server.made.count("create_issue") == 0
