"""Recorded calls of a toolscript, some of which wait for approvals in the store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hutch.errors import HutchError, ToolError, UpstreamError
from hutch.kernel.durable.calls.call_replay import INTERRUPTED, CallReplay
from hutch.kernel.durable.resume_errors import in_use
from hutch.protocols.toolscript.durable.stored_script import AskedCall
from hutch.protocols.toolscript.gateway.approvals import CallDenied, arguments_digest, check_size
from hutch.protocols.toolscript.gateway.stored_approvals import suspend_until_approved
from hutch.session.large_json import decode_large_value
from hutch.session.suspension import Answer
from hutch.store.tables.durable.recorded_calls import RecordedCall

if TYPE_CHECKING:
    from hutch.protocols.toolscript.gateway.approvals import Approvals
    from hutch.store.store import Store


class WaitingCall:
    """A call of a script that waits in this process for its decision and its result."""

    def __init__(self, call: AskedCall, question: str | None) -> None:
        """`question` is None if the question is already in the store."""
        self.call = call
        self.question = question
        self.answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()


class ScriptWaits(Protocol):
    """Stores a script while its calls wait. Implemented by `DurableScript`."""

    def begin_wait(self, waiting: WaitingCall) -> None:
        """Shows the question, and stores the script. Raises CallDenied."""

    def end_wait(self, waiting: WaitingCall) -> None: ...
    async def hold(self) -> None:
        """Takes the stored run, before the script continues with a result. Raises HutchError if another
        process continues the run.
        """


class AskingReplay(CallReplay):
    """Records the calls of a script. A call that needs an approval is made elsewhere, after the decision; the
    script waits for its result.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        run_id: str,
        owner: str,
        expires_at: str,
        waits: ScriptWaits,
        approvals: Approvals,
        holder: str,
        *,
        max_owner_bytes: int,
        is_stored: bool,
        recorded: Sequence[RecordedCall] = (),
        asked: Sequence[AskedCall] = (),
        answers: Mapping[str, Answer | None] | None = None,
    ) -> None:
        """`holder` is this process in the store. `asked` and `answers` are calls for which the script waited
        when it was stored, and their results as far as these exist.
        """
        ended = {call.number for call in recorded if call.answer is not None}
        # A call may have a record without a result and be asked about: it was being made when its process
        # died, and when the script made it again, it needed an approval.
        self._asked = {call.number: call for call in asked if call.number not in ended}
        self._answers = answers or {}
        self._waits = waits
        self._approvals = approvals
        self._holder = holder
        calls = [
            *(call for call in recorded if call.number not in self._asked),
            *(
                RecordedCall(number=call.number, server=call.server, tool=call.tool, digest=call.digest)
                for call in self._asked.values()
            ),
        ]
        calls.sort(key=lambda call: call.number)
        super().__init__(
            open_store, run_id, owner, calls, expires_at, max_owner_bytes=max_owner_bytes, is_stored=is_stored
        )
        self._stored = {call.number for call in recorded}

    def expected_calls(self) -> list[AskedCall]:
        """Returns the calls that need an approval and that the script has not made again yet."""
        return [*self._asked.values()]

    async def recorded_result(
        self, server: str, tool: str, arguments: Any, *, is_idempotent: bool
    ) -> tuple[bool, Any]:
        """Returns the result of a recorded call, or of a call that was approved. Returns False if the call
        has to be made, and needs no approval.
        """
        digest = arguments_digest(arguments)
        call = await self._take(server, tool, digest)
        asked = None if call is None else self._asked.pop(call.number, None)
        if asked is not None:
            return True, await self._wait(WaitingCall(asked, None))
        if call is not None:
            is_recorded, value = await self._result_of(call, is_idempotent=is_idempotent)
            if is_recorded:
                return True, value
        if not self._approvals.must_ask(server, tool, self._run_id):
            return False, None
        problem = self.problem
        if problem is not None:
            message = f"The call needs an approval, and the script cannot be stored meanwhile: {problem}"
            raise CallDenied(server, tool, message)
        try:
            question = await _question(server, tool, arguments)
        except UpstreamError as error:
            await self.record_failure(server, tool, arguments, error)
            raise
        asked = AskedCall(
            number=self._new_number(server, tool, digest),
            call_id=secrets.token_hex(8),
            server=server,
            tool=tool,
            digest=digest,
        )
        try:
            return True, await self._wait(WaitingCall(asked, question))
        except CallDenied as error:
            await self.record_failure(server, tool, arguments, error)
            raise

    async def _wait(self, waiting: WaitingCall) -> Any:
        call = waiting.call
        answer = self._answers.get(call.call_id)
        if answer is not None:
            await self._record_answer(call, answer)
        else:
            self._waits.begin_wait(waiting)
            try:
                with self._approvals.pausing(call.server, call.tool, self._run_id):
                    answer = await waiting.answer
                await self._waits.hold()
                # Until this is recorded, the stored script has to contain the call.
                await self._record_answer(call, answer)
            except HutchError as error:
                raise UpstreamError(call.server, call.tool, str(error), kind=INTERRUPTED) from None
            finally:
                self._waits.end_wait(waiting)
        if answer.result_json is None:
            raise UpstreamError(call.server, call.tool, answer.message, kind=answer.code)
        return await decode_large_value(answer.result_json)

    async def _insert(self, call: RecordedCall) -> None:
        # The other branches of a script that waits continue to make calls. If another process has taken the
        # run, because it knows nothing of this one, it has the calls that were recorded before.
        table = (await self._open_store()).recorded_calls
        if not await table.add_held(self._run_id, self._owner, call, self._expires_at, self._holder):
            raise in_use(self._run_id)

    async def _record_answer(self, call: AskedCall, answer: Answer) -> None:
        """Records the result of an approved call, before the script gets it. Raises UpstreamError."""
        # Without a result in the record, the script gets an error for this call after a restart.
        data: bytes | None = msgspec.msgpack.encode(answer)
        try:
            if data is not None and not await self._has_room(data):
                data = None
            await self._add(
                RecordedCall(
                    number=call.number, server=call.server, tool=call.tool, digest=call.digest, answer=data
                )
            )
        except HutchError as error:
            message = f"The result of the call could not be recorded, so the script does not get it: {error}"
            raise UpstreamError(call.server, call.tool, message, kind=INTERRUPTED) from None


async def _question(server: str, tool: str, arguments: dict[str, Any]) -> str | None:
    """Returns the JSON text of the question about a call. Raises UpstreamError if nobody can be asked."""
    await check_size(server, tool, arguments)
    try:
        return suspend_until_approved(server, tool, arguments, is_from_script=True).question
    except ToolError as error:
        raise UpstreamError(server, tool, str(error), kind="invalid_arguments") from None
