"""Suspended runs over the Execbox WebSocket. Clients request this extension when they connect, and have the
tools of their runs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hutch.errors import InvalidExecution, ResumeError
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.session.extensions.messages import Resumed, ResumeRequest
from hutch.session.files.model import File
from hutch.session.json_value import encode_value
from hutch.session.large_json import decode_large_value
from hutch.session.run import Result, RunHandle
from hutch.session.runner import ExecutionRequest
from hutch.session.suspension import Answer, decoded_answer, with_errors

SEALED_FILE = "checkpoint"
"""Name of the file with a sealed run."""
MAX_ANSWERS = 10_000
"""Maximum number of results and errors in one request. No run waits for as many calls."""


class ResumeInputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs of an `execute` that continues a run, or resolves a call."""

    results: dict[str, Any] = {}
    errors: dict[str, str] = {}


class ChannelRuns:
    def __init__(self, runs: SuspendedRuns) -> None:
        self._runs = runs

    async def run(self, request: ExecutionRequest, owner: str) -> Result:
        """Continues a run, or performs another action on one. Raises HutchError."""
        try:
            requested = msgspec.convert(request.options.resume, ResumeRequest)
        except msgspec.ValidationError as error:
            raise InvalidExecution("options.resume", str(error)) from None
        answers = await _answers(request.inputs)
        match requested.action:
            case "seal":
                return await self._seal(requested.run, owner, request.run)
            case "resolve":
                return await self._resolve(requested.token, answers, owner, request.run)
            case _:
                return await self._resume(requested.run, answers, request, owner)

    async def _resume(
        self, run_id: str, answers: dict[str, Answer], request: ExecutionRequest, owner: str
    ) -> Result:
        runs = self._runs
        if request.files is not None:
            if run_id or set(request.files) != {SEALED_FILE}:
                raise InvalidExecution(
                    "options.files", f"expected the file {SEALED_FILE} instead of the id of a run"
                )
            run_id = await runs.sealed.add(request.files[SEALED_FILE], owner, needs_client_tools=True)
        await runs.check_has_client_tools(run_id, owner)
        if answers:
            await runs.calls.answer(run_id, owner, answers, request.providers)
        execution, run = await runs.resume(run_id, owner, request.providers)
        saved = execution.saved
        assert saved is not None
        request.continue_as(run)
        limits = execution.limits
        resumed = Resumed(
            id=request.id,
            run_id=run_id,
            timeout_ms=max(1.0, limits.timeout_ms - saved.elapsed_ms),
            max_log_lines=limits.max_log_lines,
            max_log_chars=limits.max_log_chars,
            log_lines=saved.log_lines,
        )
        request.send(resumed)
        return await runs.run(execution, run)

    async def _seal(self, run_id: str, owner: str, run: RunHandle) -> Result:
        await self._runs.check_has_client_tools(run_id, owner)
        # Released when the client has received the bytes.
        run.charge = await self._runs.reserve(owner)
        data = await self._runs.sealed.seal(run_id, owner)
        run.charge.set(len(data))
        file = File(SEALED_FILE, "application/octet-stream", data)
        return Result(ok=True, result_json=b"null", run_id=run.id, files=[file])

    async def _resolve(self, token: str, answers: dict[str, Answer], owner: str, run: RunHandle) -> Result:
        if set(answers) != {"call"}:
            raise InvalidExecution("inputs", "expected a result or an error of `call`")
        row, _ = await self._runs.calls.find(token)
        if row.owner != owner:
            raise ResumeError("unknown_call", "There is no pending call with this token.")
        run_id = await self._runs.calls.resolve(token, answers["call"])
        await self._runs.background.start_answered_run(run_id)
        return Result(ok=True, result=run_id, result_json=encode_value(run_id), run_id=run.id)


async def _answers(inputs: bytes | None) -> dict[str, Answer]:
    """Raises InvalidExecution."""
    value = {} if inputs is None else await decode_large_value(inputs)
    try:
        parsed = msgspec.convert(value, ResumeInputs)
    except msgspec.ValidationError as error:
        raise InvalidExecution("inputs", str(error)) from None
    if (count := len(parsed.results) + len(parsed.errors)) > MAX_ANSWERS:
        raise InvalidExecution("inputs", f"expected at most {MAX_ANSWERS} results and errors, got {count}")
    results = {call_id: await decoded_answer(result) for call_id, result in parsed.results.items()}
    return with_errors(results, parsed.errors)
