"""Records the tool calls of a guest whose state cannot be stored. If the guest's process dies, the guest runs
again from the beginning and gets the recorded results.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import HutchError, ResumeError, UpstreamError
from hutch.session.json_value import encode_value
from hutch.session.large_json import decode_large_value, encode_large_value
from hutch.session.suspension import Answer
from hutch.store.models import now
from hutch.store.tables.durable.recorded_calls import RecordedCall
from hutch.text import cut, printable

if TYPE_CHECKING:
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")

MAX_RECORDED_BYTES = 64 * 1024 * 1024
"""Maximum size of the recorded results of one run."""
MAX_RECORDED_CALLS = 100_000
"""Maximum number of recorded calls of one run. Each takes about 500 bytes of memory or of the store."""
CHECKED_BYTES = 1024 * 1024
"""Size of further results after which the limit of the owner is checked again."""
STORED_AT_ONCE = 500
"""Calls that are stored in one transaction: 10 000 of them would stall the event loop for 0.1 s."""
MAX_UNSTORED_BYTES = 1024 * 1024
"""Maximum size of the results of one run that are only in memory; see `CallReplay.store_calls`."""
DIVERGENCE_SECONDS = 5.0
"""Time for which a call that was not recorded waits until the guest has made all recorded calls."""
DIVERGED = "diverged"
INTERRUPTED = "interrupted"


class CallReplay:
    """Recorded calls of one run. A call of a guest that runs again gets the result of the recorded call with
    the same tool and arguments. The guest made every recorded call when it knew only recorded results. So, if
    it behaves the same way again, it makes all recorded calls before any other call.
    """

    def __init__(
        self,
        open_store: Callable[[], Awaitable[Store]],
        run_id: str,
        owner: str,
        recorded: Sequence[RecordedCall],
        expires_at: str,
        *,
        max_owner_bytes: int | None = None,
        is_stored: bool = True,
    ) -> None:
        """The stored results of the owner may have `max_owner_bytes`. Unless `is_stored`, calls are in memory
        until `store_calls`.
        """
        self._open_store = open_store
        self._run_id = run_id
        self._owner = owner
        self._expires_at = expires_at
        self._max_owner_bytes = max_owner_bytes
        self._unstored: dict[int, RecordedCall] | None = None if is_stored else {}
        self._problem: str | None = None
        """Reason why the calls in memory are not recorded any more. The guest cannot run again then."""
        self._unchecked_bytes = 0
        self._storing = asyncio.Lock()
        self._repeated: dict[tuple[str, str, str], deque[int]] = {}
        """Numbers of calls that were being made when the process died, and are made again."""
        self._next_number = max((call.number for call in recorded), default=-1) + 1
        self._waiting: dict[tuple[str, str, str], deque[RecordedCall]] = {}
        for call in recorded:
            self._waiting.setdefault((call.server, call.tool, call.digest), deque()).append(call)
        self._stored = {call.number for call in recorded}
        """Numbers of the recorded calls that were in the store from the start."""
        self._bytes = sum(len(call.answer or b"") for call in recorded)
        self._progress = asyncio.Condition()
        self._divergence: str | None = None
        self._is_closed = False

    @classmethod
    async def open(cls, store: Store, run_id: str, owner: str, seconds: float) -> CallReplay:
        """Opens the recorded calls of a run. There may be none. They expire after `seconds`. Raises
        HutchError.
        """
        recorded = await store.recorded_calls.of_run(run_id, owner)

        async def opened() -> Store:
            return store

        return cls(opened, run_id, owner, recorded, now(plus_seconds=seconds))

    @property
    def is_replaying(self) -> bool:
        """True until the guest has made all recorded calls again."""
        return bool(self._waiting)

    @property
    def is_stored(self) -> bool:
        """False while all calls are only in memory."""
        return self._unstored is None

    @property
    def problem(self) -> str | None:
        """Reason why the guest could not run again with the results of all of its calls. None if it could."""
        return _too_many_calls() if self._next_number >= MAX_RECORDED_CALLS else self._problem

    async def store_calls(self) -> None:
        """Stores the calls that are only in memory. From now on, each call is stored before it is made.
        Raises HutchError.
        """
        async with self._storing:
            if self._unstored is None:
                return
            if self._problem is not None:
                raise ResumeError("too_many_suspended", self._problem)
            try:
                if not await self._owner_has_room():
                    raise ResumeError("too_many_suspended", self._too_many_bytes())
                await self._store_all([*self._unstored.values()])
            except HutchError as error:
                self._stop_recording(str(error))
                raise
            self._unstored = None

    async def _store_all(self, calls: Sequence[RecordedCall]) -> None:
        table = (await self._open_store()).recorded_calls
        for start in range(0, len(calls), STORED_AT_ONCE):
            some = calls[start : start + STORED_AT_ONCE]
            await table.add_all(self._run_id, self._owner, some, self._expires_at)

    async def _owner_has_room(self) -> bool:
        maximum = self._max_owner_bytes
        store = await self._open_store()
        return maximum is None or await store.recorded_calls.stored_bytes(self._owner) <= maximum

    def _too_many_bytes(self) -> str:
        return (
            f"The recorded calls of this owner take more than {self._max_owner_bytes} bytes (setting"
            " max_suspended_bytes_per_owner). Continue or cancel some runs."
        )

    async def keep_until(self, expires_at: str) -> None:
        """Changes the time at which the recorded calls expire. Raises HutchError."""
        self._expires_at = expires_at
        if self._unstored is None:
            await (await self._open_store()).recorded_calls.extend(self._run_id, self._owner, expires_at)

    async def recorded_result(
        self, server: str, tool: str, arguments: Any, *, is_idempotent: bool
    ) -> tuple[bool, Any]:
        """Returns True and the recorded result of a call, or False if the call has to be made. Raises
        UpstreamError if the recorded call failed, if the process died during the call, or if the guest makes
        other calls than before.
        """
        digest = _digest(arguments)
        call = await self._take(server, tool, digest)
        return (False, None) if call is None else await self._result_of(call, is_idempotent=is_idempotent)

    async def _result_of(self, call: RecordedCall, *, is_idempotent: bool) -> tuple[bool, Any]:
        server, tool = call.server, call.tool
        if call.answer is None:
            if is_idempotent:
                self._repeated.setdefault((server, tool, call.digest), deque()).append(call.number)
                return False, None
            message = (
                f"The process died while it called {server}__{tool}: the call may have had an effect."
                " It was not made again, because the tool is not marked as idempotent"
            )
            raise UpstreamError(server, tool, message, kind=INTERRUPTED)
        answer = msgspec.msgpack.decode(call.answer, type=Answer)
        if answer.result_json is None:
            raise UpstreamError(server, tool, answer.message, kind=answer.code)
        return True, await decode_large_value(answer.result_json)

    async def _take(self, server: str, tool: str, digest: str) -> RecordedCall | None:
        key = server, tool, digest
        self._check_open(server, tool)
        async with self._progress:
            if self._divergence is None and key not in self._waiting and self._waiting:
                # Wait before reporting a divergence: another branch of the guest may still make the recorded
                # calls.
                try:
                    async with asyncio.timeout(DIVERGENCE_SECONDS):
                        await self._progress.wait_for(lambda: not self._waiting or self._divergence)
                    self._check_open(server, tool)
                except TimeoutError:
                    self._check_open(server, tool)
                    self._divergence = self._describe(server, tool)
                    self._progress.notify_all()
            if self._divergence is not None:
                raise UpstreamError(server, tool, self._divergence, kind=DIVERGED)
            calls = self._waiting.get(key)
            if calls is None:
                return None
            call = calls.popleft()
            if not calls:
                del self._waiting[key]
            self._progress.notify_all()
            return call

    def _describe(self, server: str, tool: str) -> str:
        name, (number, recorded) = _name(server, tool), self._next_recorded()
        difference = "with other arguments" if recorded == name else f"instead of {recorded}"
        return _diverged(f"now it calls {name} {difference} (recorded call {number})")

    def missing_call(self) -> str | None:
        """Returns an error message if the guest has ended without making all recorded calls again."""
        if self._divergence is not None or not self._waiting:
            return self._divergence
        number, recorded = self._next_recorded()
        return _diverged(f"now it has ended without calling {recorded} (recorded call {number})")

    def close(self) -> None:
        """Fails all further calls. The guest's process is being ended, and may still send some."""
        self._is_closed = True
        self._waiting.clear()

    def _check_open(self, server: str, tool: str) -> None:
        if self._is_closed:
            message = "The call was not made, because the code was stopped"
            raise UpstreamError(server, tool, message, kind=INTERRUPTED)

    def end_replay(self) -> str | None:
        """Fails all further calls of a guest that has not made all recorded calls. Returns an error message,
        or None if the guest has made them.
        """
        if self._divergence is None and self._waiting:
            number, recorded = self._next_recorded()
            self._divergence = _diverged(f"now it does not call {recorded} (recorded call {number})")
        return self._divergence

    def _next_recorded(self) -> tuple[int, str]:
        call = min((calls[0] for calls in self._waiting.values()), key=lambda call: call.number)
        return call.number + 1, _name(call.server, call.tool)

    async def record(self, server: str, tool: str, arguments: Any, make: Callable[[], Awaitable[Any]]) -> Any:
        """Records a call, makes it, and records its result. Raises UpstreamError."""
        digest = _digest(arguments)
        self._check_open(server, tool)
        try:
            call = await self._begin(server, tool, digest)
        except HutchError as error:
            message = f"The call was not made, because it could not be recorded before: {error}"
            raise UpstreamError(server, tool, message, kind=INTERRUPTED) from None
        try:
            value = await make()
        except UpstreamError as error:
            await self._answer(call, Answer(code=error.kind, message=error.message))
            raise
        await self._answer(call, Answer(result_json=await encode_large_value(value)))
        return value

    async def record_failure(self, server: str, tool: str, arguments: Any, error: UpstreamError) -> None:
        """Records a call that was refused and not made."""
        answer = msgspec.msgpack.encode(Answer(code=error.kind, message=error.message))
        digest = _digest(arguments)
        number = self._new_number(server, tool, digest)
        try:
            if not await self._has_room(answer):
                answer = msgspec.msgpack.encode(Answer(code=error.kind))
            await self._add(
                RecordedCall(number=number, server=server, tool=tool, digest=digest, answer=answer)
            )
        except HutchError as problem:
            logger.warning("run %s: a refused call could not be recorded: %s", self._run_id, problem)

    async def _begin(self, server: str, tool: str, digest: str) -> RecordedCall:
        """Records a call that is about to be made. Raises HutchError."""
        call = RecordedCall(
            number=self._new_number(server, tool, digest), server=server, tool=tool, digest=digest
        )
        await self._add(call)
        return call

    def _new_number(self, server: str, tool: str, digest: str) -> int:
        """Returns the number of a call that is made again, or otherwise the next number."""
        repeated = self._repeated.get((server, tool, digest))
        if repeated:
            return repeated.popleft()
        self._next_number += 1
        return self._next_number - 1

    async def _add(self, call: RecordedCall) -> None:
        """Records a call, with its result if it has one. Raises HutchError."""
        async with self._storing:
            if self._unstored is not None:
                if call.number >= MAX_RECORDED_CALLS:
                    self._stop_recording(_too_many_calls())
                elif self._problem is None:
                    self._unstored[call.number] = call
                return
        if call.number >= MAX_RECORDED_CALLS:
            raise ResumeError("too_many_suspended", _too_many_calls())
        if call.number not in self._stored:
            await self._insert(call)
        elif call.answer is not None:
            await (await self._open_store()).recorded_calls.answer(self._run_id, call)

    async def _insert(self, call: RecordedCall) -> None:
        """Adds a call to the store. Raises HutchError."""
        store = await self._open_store()
        await store.recorded_calls.add(self._run_id, self._owner, call, self._expires_at)

    async def _answer(self, call: RecordedCall, answer: Answer) -> None:
        data = msgspec.msgpack.encode(answer)
        try:
            # Without room, the call stays recorded without a result. If the guest runs again, it gets an
            # error for this call.
            if await self._has_room(data):
                await self._store_answer(msgspec.structs.replace(call, answer=data))
        except HutchError as error:
            logger.warning("run %s: a result could not be recorded: %s", self._run_id, error)

    async def _has_room(self, answer: bytes) -> bool:
        """Counts a result that is about to be recorded. Returns False if it would exceed a limit."""
        problem = None
        if self._bytes + len(answer) > MAX_RECORDED_BYTES:
            problem = f"The results of the run's calls have more than {MAX_RECORDED_BYTES} bytes."
        elif self._unstored is None and self._unchecked_bytes + len(answer) > CHECKED_BYTES:
            if await self._owner_has_room():
                self._unchecked_bytes = 0
            else:
                problem = self._too_many_bytes()
        if problem is not None:
            if self._problem is None:
                logger.warning("run %s: some results are not recorded. %s", self._run_id, problem)
            self._stop_recording(problem)
            return False
        self._unchecked_bytes += len(answer)
        self._bytes += len(answer)
        return True

    def _stop_recording(self, problem: str) -> None:
        """Forgets the calls in memory, because the guest cannot run again without all of them."""
        self._problem = self._problem or problem
        if self._unstored is not None:
            self._unstored.clear()

    async def _store_answer(self, call: RecordedCall) -> None:
        """Raises HutchError."""
        async with self._storing:
            is_in_memory = self._unstored is not None
            if self._unstored is not None and call.number in self._unstored:
                self._unstored[call.number] = call
        if is_in_memory:
            if self._bytes > MAX_UNSTORED_BYTES and self._problem is None:
                await self.store_calls()
            return
        store = await self._open_store()
        await store.recorded_calls.answer(self._run_id, call)


def _digest(arguments: Any) -> str:
    """Returns the SHA-256 of the JSON text of arguments."""
    return hashlib.sha256(encode_value(arguments)).hexdigest()


def _too_many_calls() -> str:
    return f"The run has {MAX_RECORDED_CALLS} recorded calls."


def _name(server: str, tool: str) -> str:
    return printable(cut(f"{server}__{tool}", 200))


def _diverged(what: str) -> str:
    return (
        f"The code was run again after a restart, and {what}. Code whose calls depend on the time, on random"
        " values or on other outside state cannot be continued like this. Start it anew."
    )
