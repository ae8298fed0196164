"""Approvals of suspended runs. They are in the store, so they survive a restart of the server."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from hutch.errors import HutchError, ResumeError, Suspend, ToolError, UpstreamError
from hutch.protocols.toolscript.gateway.approvals import (
    Approval,
    ApprovalAnswer,
    arguments_digest,
    log_decision,
)
from hutch.session.json_value import NotJsonSafe
from hutch.session.suspension import Answer, decoded_answer
from hutch.text import now_rfc3339

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from hutch.kernel.durable.suspended_runs import SavedRun, SuspendedRuns
    from hutch.protocols.toolscript.gateway.approvals import Approvals
    from hutch.session.tools.tool import ToolContext
    from hutch.store.tables.durable.checkpoints import Question

logger = logging.getLogger("hutch.toolscript")

MAX_REMEMBERED = 1_000
INTERRUPTED = "The call was approved, but the server stopped during the call, which may have had an effect"


class StoredQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Question to a person about a tool call."""

    id: str
    """Id of the approval, which is also the token of the call."""
    server: str
    tool: str
    arguments: Any
    asked_at: str
    is_from_script: bool = False
    """True if the call's error keeps its kind. Other guests get one of the Execbox codes."""

    def approval(self, run_id: str) -> Approval:
        return Approval(
            id=self.id,
            server=self.server,
            tool=self.tool,
            arguments=self.arguments,
            run=run_id,
            asked_at=self.asked_at,
            seconds=None,
        )


def suspend_until_approved(
    server: str, tool: str, arguments: dict[str, Any], *, is_from_script: bool = False
) -> Suspend:
    """Returns the error that suspends a run until a person has decided on its call. Raises ToolError if the
    arguments cannot be stored.
    """
    question = StoredQuestion(
        id=secrets.token_urlsafe(9),
        server=server,
        tool=tool,
        arguments=arguments,
        asked_at=now_rfc3339(),
        is_from_script=is_from_script,
    )
    message = f"{server}__{tool} waits for an approval"
    try:
        text = msgspec.json.encode(question).decode()
    except UnicodeEncodeError:
        reason = "they contain half of a surrogate pair, and cannot be stored until a person decides"
        raise ToolError(f"The arguments cannot be used: {reason}", "validation_error") from None
    return Suspend(message, token=question.id, question=text)


class WaitingCall(NamedTuple):
    """A call of a suspended run that waits for a decision."""

    call_id: str
    question: StoredQuestion
    expires_at: str
    """Time at which the run expires if it has not been continued."""


class _AskedCall(msgspec.Struct):
    run_id: str
    approval_id: str
    task: asyncio.Task[None]
    is_decided: bool = False


class StoredApprovals:
    """Shows the questions of suspended runs as approvals, makes approved calls, and continues the runs."""

    def __init__(
        self,
        approvals: Approvals,
        runs: SuspendedRuns,
        call_tool: Callable[[str, str, dict[str, Any], str], Awaitable[Any]],
        may_suspend: Callable[[str], bool],
    ) -> None:
        """`call_tool` gets the server, the tool, its arguments and the id of the run. `may_suspend` gets the
        id of a run and returns False if its caller cannot wait for a suspended run.
        """
        self._approvals = approvals
        self._runs = runs
        self._call_tool = call_tool
        self._may_suspend = may_suspend
        self._asked: dict[str, _AskedCall] = {}
        """Calls that wait for decisions or are being made, by id."""
        self._decided: deque[str] = deque(maxlen=MAX_REMEMBERED)
        """Ids of calls that were decided recently, which a slow `synchronize` must not ask about again."""
        runs.on_saved.append(self._add_saved)
        runs.ends.on_cancelled.append(self._withdraw)

    def is_needed(self, server: str, tool: str, context: ToolContext) -> bool:
        """Returns True if a call must suspend its run until a person approves the call."""
        if not context.can_suspend or not self._may_suspend(context.run_id):
            return False
        return self._approvals.must_ask(server, tool, context.run_id)

    async def waiting(self, run_id: str, owner: str) -> list[WaitingCall]:
        """Returns the calls of a run that wait for a decision. From then on, this server accepts decisions on
        these calls, even if another server has suspended the run. Raises HutchError.
        """
        found = []
        for stored in await self._runs.calls.questions(run_id):
            call_id = stored.call_id
            asked = self._asked.get(call_id)
            is_decided = stored.decision is not None or call_id in self._decided
            if stored.run.owner != owner or is_decided or (asked is not None and asked.is_decided):
                continue
            self._add(run_id, owner, call_id, stored.question)
            question = msgspec.json.decode(stored.question, type=StoredQuestion)
            found.append(WaitingCall(call_id, question, stored.run.expires_at))
        # Let the tasks of new questions start to wait for decisions.
        await asyncio.sleep(0)
        return found

    def decide(self, call_id: str, answer: ApprovalAnswer) -> bool:
        """Decides on a call that `waiting` has returned. Returns False if the call is no longer waiting."""
        asked = self._asked.get(call_id)
        if asked is None or asked.is_decided or not self._approvals.decide(asked.approval_id, answer):
            return False
        asked.is_decided = True
        return True

    async def carry_out(self, call_id: str, answer: ApprovalAnswer) -> bool:
        """Decides on a call that `waiting` has returned, and waits until the result of the call is stored.
        Returns False if the call is no longer waiting.
        """
        asked = self._asked.get(call_id)
        if asked is None or not self.decide(call_id, answer):
            return False
        await asyncio.wait([asked.task])
        return True

    async def end_interrupted_calls(self, run_id: str) -> None:
        """Fails the calls of a run that were decided in a process that has died. Raises HutchError."""
        for stored in await self._runs.calls.questions(run_id):
            if stored.decision is not None and stored.call_id not in self._asked:
                await self._answer_interrupted(stored)

    def _add_saved(self, saved: SavedRun) -> None:
        for call_id, question in saved.questions.items():
            self._add(saved.run_id, saved.owner, call_id, question)

    async def synchronize(self) -> None:
        """Takes over questions that this server does not know yet, after a restart or because another server
        has suspended the run. Withdraws questions that another server has answered. Continues runs whose
        server has died. Raises HutchError.
        """
        before = dict(self._asked)
        questions = {stored.call_id: stored for stored in await self._runs.calls.questions()}
        for call_id, asked in before.items():
            if not asked.is_decided and call_id not in questions:
                asked.task.cancel()
        for stored in questions.values():
            await self._take_over(stored)
        await self._runs.background.start_answered_runs()

    async def recover(self, run_id: str) -> None:
        """Takes over the questions of one run, and recovers the run. Raises HutchError."""
        for stored in await self._runs.calls.questions(run_id):
            await self._take_over(stored)
        await self._runs.background.recover(run_id)

    async def _take_over(self, stored: Question) -> None:
        asked = self._asked.get(stored.call_id)
        if asked is not None and not asked.is_decided and stored.decision is not None:
            # Stop asking on this server, because another server has received a decision.
            asked.task.cancel()
            await asyncio.gather(asked.task, return_exceptions=True)
        if stored.call_id in self._asked or stored.call_id in self._decided:
            return
        if stored.decision is None:
            self._add(stored.run.run_id, stored.run.owner, stored.call_id, stored.question)
        elif (stored.held_until or "") < now_rfc3339():
            await self._answer_interrupted(stored)

    async def _answer_interrupted(self, stored: Question) -> None:
        """Fails a call whose decision was not carried out completely when the server stopped."""
        denied = stored.decision == "deny"
        message = "The call was denied" if denied else INTERRUPTED
        answer = Answer(code="tool_error", message=message)
        try:
            await self._runs.calls.answer(stored.run.run_id, stored.run.owner, {stored.call_id: answer})
        except ResumeError as error:
            logger.info("another server has handled an interrupted call first: %s", error)

    def _add(self, run_id: str, owner: str, call_id: str, question: str) -> None:
        if call_id in self._asked:
            # Do not ask again. The question was asked before the run was continued with the result of another
            # call.
            return
        asked = msgspec.json.decode(question, type=StoredQuestion)
        task = asyncio.get_running_loop().create_task(self._decide(run_id, owner, call_id, asked))
        self._asked[call_id] = _AskedCall(run_id, asked.id, task)
        task.add_done_callback(lambda _: self._asked.pop(call_id, None))

    def withdraw_questions(self, run_id: str, call_ids: Collection[str] | None = None) -> None:
        """Stops asking about calls of a run, or about some of them, that are not decided yet."""
        for call_id, asked in self._asked.items():
            is_meant = call_ids is None or call_id in call_ids
            if asked.run_id == run_id and is_meant and not asked.is_decided:
                asked.task.cancel()

    def _withdraw(self, run_id: str) -> None:
        for asked in self._asked.values():
            if asked.run_id == run_id:
                asked.task.cancel()

    async def _decide(self, run_id: str, owner: str, call_id: str, asked: StoredQuestion) -> None:
        try:
            decided = await self._approvals.wait_for_decision(asked.approval(run_id))
            self._asked[call_id].is_decided = True
            digest = arguments_digest(asked.arguments)
            is_first = await self._runs.calls.decide(
                run_id, call_id, decided.decision, decided.decided_by, digest=digest
            )
            if not is_first:
                self._decided.append(call_id)
                logger.info("the approval %s was decided by another server, or its run has ended", asked.id)
                return
            self._decided.append(call_id)
            log_decision(asked.approval(run_id), decided)
            answer = await self._answer(run_id, asked, decided)
            await self._runs.calls.answer(run_id, owner, {call_id: answer})
        except HutchError as error:
            logger.warning("the approval %s of run %s failed: %s", asked.id, run_id, error)
            return
        finally:
            self._runs.calls.abandon(call_id)
        self._runs.background.start(run_id, owner)

    async def _answer(self, run_id: str, asked: StoredQuestion, decided: ApprovalAnswer) -> Answer:
        if decided.decision == "deny":
            reason = f": {decided.reason}" if decided.reason else ""
            message = f"The call of {asked.server}__{asked.tool} was denied{reason}"
            return Answer(code="denied" if asked.is_from_script else "tool_error", message=message)
        try:
            value = await self._call_tool(asked.server, asked.tool, asked.arguments, run_id)
            return await decoded_answer(value)
        except UpstreamError as error:
            if asked.is_from_script:
                return Answer(code=error.kind, message=error.message)
            code = "validation_error" if error.kind == "invalid_arguments" else "tool_error"
            return Answer(code=code, message=error.message)
        except NotJsonSafe as error:
            return Answer(code="tool_error", message=f"The result cannot be passed on: {error}")

    async def drain(self, seconds: float) -> None:
        """Waits for the approved calls that are being made."""
        tasks = [asked.task for asked in self._asked.values() if asked.is_decided]
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        tasks = [asked.task for asked in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
