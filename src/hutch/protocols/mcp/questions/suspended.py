"""Continues suspended runs of `run_code`, and asks the client's user for the approvals that the runs wait
for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.types import (
    CallToolResult,
    ElicitResult,
    InputRequiredResult,
)

from hutch.errors import HutchError, ResumeError
from hutch.kernel.durable.holds import POLL_SECONDS
from hutch.kernel.durable.resume_errors import not_found
from hutch.protocols.mcp.questions.elicitation import (
    approval_request,
    caller_name,
    declares_tasks,
    is_asked_on_return,
    to_answer,
)
from hutch.protocols.mcp.questions.held_calls import MAX_QUESTIONS
from hutch.protocols.mcp.results import RunFailure, clip, json_text, structured_result, text_result
from hutch.protocols.mcp.run_code import ClientRun, SuspendedRun
from hutch.protocols.toolscript.gateway.approvals import arguments_digest
from hutch.session.json_value import well_formed
from hutch.session.run import SUSPENDED
from hutch.text import now_rfc3339

if TYPE_CHECKING:
    from hutch.http.auth import Caller
    from hutch.kernel.durable.suspended_runs import SavedRun
    from hutch.protocols.mcp.interfaces import McpServices
    from hutch.protocols.mcp.questions.request_state import StateCodec
    from hutch.protocols.toolscript.gateway.stored_approvals import StoredApprovals, WaitingCall
    from hutch.session.run import Result
    from hutch.store.tables.durable.checkpoints import CheckpointRow

Context = ServerRequestContext[Any, Any]

_MAX_SHOWN = 500
RECOVER_POLLS = 5
"""Every RECOVER_POLLS polls, check whether the server that executes the run is still alive."""


class SuspendedRunState(msgspec.Struct, frozen=True, tag="run", tag_field="kind"):
    """Content of the `requestState` for a suspended run."""

    run_id: str
    calls: dict[str, str]
    """SHA-256 of the arguments of each call about which the client was asked, by call id."""
    expires_at: str


class _ReportedQuestion(msgspec.Struct, frozen=True, rename="camel"):
    server: str
    tool: str
    arguments: Any
    arguments_sha256: str


class _WaitingReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    ok: bool = False
    run_id: str
    waiting: list[_ReportedQuestion]
    expires_at: str
    error: RunFailure


class SuspendedRunCalls:
    """Answers calls of `run_code` and `continue_run` whose run is suspended."""

    def __init__(self, hutch: McpServices, codec: StateCodec) -> None:
        self._runs = hutch.suspended_runs
        self._gateway = hutch.gateway
        self._open_store = hutch.storage.store
        self._codec = codec

    @property
    def _stored(self) -> StoredApprovals:
        stored = self._gateway.stored_approvals
        if stored is None:
            raise HutchError("This server does not store suspended runs.")
        return stored

    async def proceed(
        self, run: ClientRun, run_id: str, owner: str, *, structured: bool
    ) -> Result | CallToolResult | InputRequiredResult | SuspendedRun:
        """Waits until the run has ended or needs a decision. Returns the result, the question for the client,
        or the suspended run for a client that follows it as a task. Raises HutchError.
        """
        outcome = await self._next(run_id, owner)
        if not isinstance(outcome, list):
            return outcome
        if declares_tasks(run.client):
            return SuspendedRun(run_id)
        if is_asked_on_return(run.client):
            await self._codec.load()
            return _input_required(run_id, outcome[:MAX_QUESTIONS])
        return _waiting_result(run_id, outcome, _where_to_decide(run.client), structured=structured)

    async def decide(
        self, state: SuspendedRunState, responses: Mapping[str, Any], caller: Caller
    ) -> CallToolResult | None:
        """Delivers the answers of the client's user. Returns an error if no answer can be used."""
        if state.expires_at < now_rfc3339():
            message = (
                f"The run {state.run_id} waited for a decision until {state.expires_at} and has expired."
            )
            return text_result(f"{message} Call run_code again to start a new run.", failed=True)
        for key, response in responses.items():
            if key not in state.calls or not isinstance(response, ElicitResult):
                expected = ", ".join(state.calls)
                message = f"inputResponses: expected results of elicitations for {expected}"
                return text_result(f"{message}, got {key[:100]!r}. Nothing was decided.", failed=True)
        waiting = {call.call_id: call for call in await self._stored.waiting(state.run_id, caller.owner)}
        is_used = False
        for key, response in responses.items():
            call = waiting.get(key)
            if call is not None and arguments_digest(call.question.arguments) == state.calls[key]:
                answer = msgspec.structs.replace(to_answer(response), decided_by=caller_name(caller))
                is_used |= self._stored.decide(key, answer)
        if responses and not is_used:
            message = (
                f"The answer was not used: the question of run {state.run_id} was decided before, or the run"
                " has ended. A decision counts once. Call continue_run with this run_id for the result."
            )
            return text_result(message, failed=True)
        return None

    async def cancel(self, run_id: str, owner: str) -> CallToolResult:
        """Ends a run. Raises HutchError."""
        if await self._runs.ends.cancel(run_id, owner):
            return text_result(f"The run {run_id} was cancelled.")
        result = await self._result(run_id, owner)
        state = "is running, and cannot be cancelled now" if result is None else "has ended"
        return text_result(f"The run {run_id} {state}.", failed=True)

    async def row(self, run_id: str, owner: str) -> CheckpointRow:
        """Returns the stored run. Raises ResumeError."""
        await self.check_owner(run_id, owner)
        row = await (await self._open_store()).checkpoints.get(run_id)
        if row is None:
            raise not_found(run_id)
        return row

    async def state(self, run_id: str, owner: str) -> tuple[Result | None, list[WaitingCall]]:
        """Returns the result of a run if it has ended, otherwise the calls that wait for a decision. If the
        process that executed the run has died, takes the run over. Raises HutchError.
        """
        result = await self._result(run_id, owner)
        if result is not None:
            return result, []
        waiting = await self._stored.waiting(run_id, owner)
        if not waiting:
            await self._stored.recover(run_id)
        return None, waiting

    async def stop(self, run_id: str, owner: str) -> None:
        await self._runs.ends.stop(run_id, owner)

    async def _next(self, run_id: str, owner: str) -> Result | list[WaitingCall]:
        saved = asyncio.Event()

        def on_saved(run: SavedRun) -> None:
            if run.run_id == run_id:
                saved.set()

        result = await self._result(run_id, owner)
        if result is not None:
            return result
        self._runs.on_saved.append(on_saved)
        ending = asyncio.ensure_future(self._runs.ends.wait(run_id, owner, [], lambda: False))
        try:
            for poll in count():
                saved.clear()
                waiting = await self._stored.waiting(run_id, owner)
                if waiting:
                    return waiting
                if poll % RECOVER_POLLS == 0 and not ending.done():
                    await self._stored.recover(run_id)
                if not ending.done():
                    # Poll for questions as well, because another server may suspend the run again without
                    # setting `saved`.
                    suspended = asyncio.ensure_future(saved.wait())
                    await asyncio.wait(
                        (ending, suspended), timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                    )
                    suspended.cancel()
                if ending.done():
                    end = ending.result()
                    assert end is not None
                    return end
            raise AssertionError("the loop has no end")
        finally:
            self._runs.on_saved.remove(on_saved)
            ending.cancel()
            with contextlib.suppress(asyncio.CancelledError, ResumeError):
                await ending

    async def check_owner(self, run_id: str, owner: str) -> None:
        """Raises ResumeError if this owner has no suspended run with this id."""
        try:
            await self._runs.ends.check_owner(run_id, owner)
        except ResumeError as error:
            raise await self._explained(error, run_id, owner) from None

    async def _result(self, run_id: str, owner: str) -> Result | None:
        try:
            return await self._runs.ends.result(run_id, owner)
        except ResumeError as error:
            raise await self._explained(error, run_id, owner) from None

    async def _explained(self, error: ResumeError, run_id: str, owner: str) -> ResumeError:
        """Returns an error that says how the run ended. Returns `error` itself if the run has no record or is
        still suspended.
        """
        record = await (await self._open_store()).runs.get(run_id)
        if record is None or record.owner != owner or record.outcome == SUSPENDED:
            return error
        return ResumeError("checkpoint_ended", f"The run {run_id} has ended: {record.outcome}.")


def _input_required(run_id: str, waiting: Sequence[WaitingCall]) -> InputRequiredResult:
    state = SuspendedRunState(
        run_id,
        {call.call_id: arguments_digest(call.question.arguments) for call in waiting},
        min(call.expires_at for call in waiting),
    )
    return InputRequiredResult(
        input_requests={
            call.call_id: approval_request(call.question.server, call.question.tool, call.question.arguments)
            for call in waiting
        },
        request_state=msgspec.json.encode(state).decode(),
    )


def _waiting_result(
    run_id: str, waiting: Sequence[WaitingCall], where: str, *, structured: bool
) -> CallToolResult:
    expires_at = min(call.expires_at for call in waiting)
    calls = [
        f"- {call.question.tool} of {call.question.server}:"
        f" {clip(json_text(call.question.arguments), _MAX_SHOWN)}"
        for call in waiting[:MAX_QUESTIONS]
    ]
    if len(waiting) > MAX_QUESTIONS:
        calls.append(f"- and {len(waiting) - MAX_QUESTIONS} more")
    text = well_formed(
        f"The run {run_id} waits until a person has approved:\n"
        + "\n".join(calls)
        + f"\n{where} Then call continue_run with run_id {run_id} for the result."
        + f" Do not run the code again. If there is no decision until {expires_at}, the run expires."
    )
    if not structured:
        return text_result(text)
    questions = [
        _ReportedQuestion(
            asked.server, asked.tool, _shown(asked.arguments), arguments_digest(asked.arguments)
        )
        for asked in (call.question for call in waiting[:MAX_QUESTIONS])
    ]
    report = _WaitingReport(
        run_id=run_id,
        waiting=questions,
        expires_at=expires_at,
        error=RunFailure(message=text, code=SUSPENDED),
    )
    return structured_result(report)


def _shown(arguments: Any) -> Any:
    """Returns arguments, or the beginning of their JSON text if they are long."""
    text = json_text(arguments)
    return arguments if len(text) <= _MAX_SHOWN else clip(text, _MAX_SHOWN)


def _where_to_decide(context: Context) -> str:
    if context.request is None:
        return (
            "The user decides in the web console (`hutch console`, page Approvals) of a `hutch serve` with"
            " the same HUTCH_HOME."
        )
    base = context.request.base_url
    return f"The operator decides in the web console, {base}#/approvals, or at {base}approvals."
