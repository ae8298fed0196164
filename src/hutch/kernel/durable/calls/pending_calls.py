"""Results of pending calls of suspended runs, and decisions about calls that need an approval."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from hutch.errors import HutchError, InvalidExecution, ResumeError
from hutch.kernel.durable.holds import HOLD_SECONDS, Holds
from hutch.kernel.durable.resume_errors import ended, not_found
from hutch.session.large_json import decode_large_value
from hutch.session.schema.problems import check_against_schema, describe_fault
from hutch.session.schema.validate import InvalidSchema
from hutch.session.suspension import Answer, encode_answer
from hutch.session.tools.provider import Provider
from hutch.store.models import now
from hutch.store.tables.durable.checkpoints import CheckpointRow, Question, StoredCall
from hutch.tasks import TimeSlices
from hutch.text import cut, printable

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")

MAX_BYTES_OF_RUN = 256 * 1024 * 1024
"""Maximum size of a suspended run together with the results of its calls. Both are in memory when the run
continues.
"""


class PendingCalls:
    """Pending calls of all suspended runs of one store."""

    def __init__(self, holds: Holds, open_store: Callable[[], Awaitable[Store]], settings: Settings) -> None:
        self._settings = settings
        self._holds = holds
        self._open_store = open_store

    async def answer(
        self, run_id: str, owner: str, answers: Mapping[str, Answer], providers: Sequence[Provider] = ()
    ) -> None:
        """Stores results of pending calls. A result has to match the output schema of its tool, if the tool
        is one of `providers`. Raises ResumeError if a call does not exist or has a result, InvalidExecution
        if a result has the wrong type.
        """
        store = await self._open_store()
        row = await store.checkpoints.get(run_id)
        if row is None or row.owner != owner:
            raise not_found(run_id)
        if row.state == "ended":
            raise ended(run_id)
        known = {call.call_id: call for call in await store.checkpoints.calls(run_id)}
        for call_id, answer in answers.items():
            if call_id not in known:
                waiting = ", ".join(known) or "no call"
                raise ResumeError(
                    "unknown_call",
                    f"The run {run_id} has no pending call {printable(cut(call_id, 100))};"
                    f" it waits for {waiting}.",
                )
            self._check_size(f"results.{call_id}", answer)
            await _check_result(known[call_id], answer, providers)
        self._holds.calls.difference_update(answers)
        answered = [call_id for call_id in answers if known[call_id].has_answer]
        for call_id in answered or await self._store(store, row, answers):
            raise ResumeError(
                "already_answered",
                f"The call {call_id} already has a result. Resume the run without one for this call.",
            )

    async def _store(self, store: Store, row: CheckpointRow, answers: Mapping[str, Answer]) -> list[str]:
        """Stores results. Returns the ids of the calls that already had a result. Raises ResumeError if the
        run and its results would be too large.
        """
        texts: dict[str, bytes] = {}
        slices = TimeSlices()
        for call_id, answer in answers.items():
            texts[call_id] = encode_answer(answer)
            await slices.pause()
        return await self.store_answers(store, row, texts)

    async def store_answers(self, store: Store, row: CheckpointRow, texts: Mapping[str, bytes]) -> list[str]:
        """Like `_store`, for results that `encode_answer` has encoded."""
        maximum = self._settings.max_suspended_bytes_per_owner
        others = await store.checkpoints.stored_bytes(row.owner, row.run_id)
        refused = await store.checkpoints.answer(row.run_id, texts, min(MAX_BYTES_OF_RUN, maximum - others))
        if refused:
            missing = {
                call.call_id for call in await store.checkpoints.calls(row.run_id) if not call.has_answer
            }
            if missing & set(refused):
                raise ResumeError(
                    "too_many_suspended",
                    f"The run {row.run_id} with its results would have more than {MAX_BYTES_OF_RUN} bytes, or"
                    f" the suspended runs of this owner more than {maximum} (setting"
                    " max_suspended_bytes_per_owner).",
                )
        return refused

    async def find(self, token: str) -> tuple[CheckpointRow, str]:
        """Returns the run and the id of the call with this token. Raises ResumeError."""
        store = await self._open_store()
        # The lookup compares digests, so that its duration reveals nothing about other tokens.
        found = await store.checkpoints.find_call(token_digest(token))
        if found is None:
            raise ResumeError("unknown_call", "There is no pending call with this token.")
        return found

    def _check_size(self, field: str, answer: Answer) -> None:
        size = 0 if answer.result_json is None else len(answer.result_json)
        maximum = self._settings.max_result_bytes
        if size > maximum:
            expected = f"expected at most {maximum} bytes of JSON (max_result_bytes)"
            raise InvalidExecution(field, f"{expected}, got {size}")

    async def resolve(self, token: str, answer: Answer) -> str:
        """Stores the result of the call with this token. Returns the id of the call's run. Raises
        ResumeError.
        """
        self._check_size("result", answer)
        store = await self._open_store()
        row, call_id = await self.find(token)
        if await self._store(store, row, {call_id: answer}):
            raise ResumeError("already_answered", "The call with this token already has a result.")
        return row.run_id

    async def questions(self, run_id: str | None = None) -> list[Question]:
        """Returns the calls that wait for an approval, and the approved calls without a result. Without a
        run, returns the calls of all suspended runs.
        """
        store = await self._open_store()
        return await store.checkpoints.questions(run_id)

    async def decide(
        self, run_id: str, call_id: str, decision: str, decided_by: str | None, *, digest: str | None = None
    ) -> bool:
        """Stores a decision, which this process carries out. `digest` is the SHA-256 of the arguments that
        the person saw. Returns False if the call already has a decision or no longer waits. Otherwise the
        caller has to call `answer` with the result of the call, or `abandon` if there is no result.
        """
        store = await self._open_store()
        is_first = await store.checkpoints.decide(
            run_id,
            call_id,
            decision,
            decided_by,
            self._holds.holder,
            now(plus_seconds=HOLD_SECONDS),
            digest=digest,
        )
        if is_first:
            self._holds.add_call(call_id)
        return is_first

    def abandon(self, call_id: str) -> None:
        """Stops extending this process's hold on an approved call, so that the hold expires. Used if it is
        not known whether the call was made.
        """
        self._holds.calls.discard(call_id)

    async def journal(self, run_id: str, call_id: str, answer: Answer) -> None:
        """Stores the result of a tool that this process runs."""
        store = await self._open_store()
        try:
            if (row := await store.checkpoints.get(run_id)) is not None:
                await self._store(store, row, {call_id: answer})
        except HutchError as error:
            # The guest still gets the result from this process. If the process dies now, the guest gets an
            # error instead, because the call may have had an effect.
            logger.warning("the result of a call of run %s could not be stored: %s", run_id, error)


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


async def _check_result(call: StoredCall, answer: Answer, providers: Sequence[Provider]) -> None:
    """Raises InvalidExecution if a result does not match the output schema of its tool."""
    provider = next((each for each in providers if each.name == call.provider), None)
    tool = None if provider is None or call.tool is None else provider.tools.get(call.tool)
    if tool is None or tool.output_schema is None or answer.result_json is None:
        return
    value = await decode_large_value(answer.result_json)
    # Check in a thread, because the schema may come from an MCP server and be expensive to check.
    schema = dict(tool.output_schema)
    try:
        problems = await asyncio.to_thread(check_against_schema, schema, value, untrusted=True)
    except InvalidSchema as error:
        problem = f"the outputSchema of {call.provider}.{call.tool} is invalid: {describe_fault(error)}"
        raise InvalidExecution("providers", printable(cut(problem, 500))) from None
    if problems:
        raise InvalidExecution(f"results.{call.call_id}", str(problems[0]))
