"""Records the tool calls of a guest whose state cannot be stored. If the guest's process dies, the guest runs
again from the beginning and gets the recorded results.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.errors import HutchError, UpstreamError
from hutch.session.json_value import decode_value, encode_value
from hutch.session.suspension import Answer
from hutch.store.models import now
from hutch.store.tables.durable.recorded_calls import RecordedCall
from hutch.text import cut, printable

if TYPE_CHECKING:
    from hutch.store.store import Store

logger = logging.getLogger("hutch.runs")

MAX_RECORDED_BYTES = 64 * 1024 * 1024
"""Maximum size of the recorded results of one run."""
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
        self, store: Store, run_id: str, owner: str, recorded: list[RecordedCall], expires_at: str
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._owner = owner
        self._expires_at = expires_at
        self._next_number = len(recorded)
        self._waiting: dict[tuple[str, str, str], deque[RecordedCall]] = {}
        for call in recorded:
            self._waiting.setdefault((call.server, call.tool, call.digest), deque()).append(call)
        self._bytes = sum(len(call.answer or b"") for call in recorded)
        self._progress = asyncio.Condition()
        self._divergence: str | None = None

    @classmethod
    async def open(cls, store: Store, run_id: str, owner: str, seconds: float) -> CallReplay:
        """Opens the recorded calls of a run. There may be none. They expire after `seconds`. Raises
        HutchError.
        """
        recorded = await store.recorded_calls.of_run(run_id, owner)
        return cls(store, run_id, owner, recorded, now(plus_seconds=seconds))

    @property
    def is_replaying(self) -> bool:
        """True until the guest has made all recorded calls again."""
        return bool(self._waiting)

    async def recorded_result(
        self, server: str, tool: str, arguments: Any, *, is_idempotent: bool
    ) -> tuple[bool, Any]:
        """Returns True and the recorded result of a call, or False if the call has to be made. Raises
        UpstreamError if the recorded call failed, if the process died during the call, or if the guest makes
        other calls than before.
        """
        call = await self._take(server, tool, _digest(arguments))
        if call is None:
            return False, None
        if call.answer is None:
            if is_idempotent:
                return False, None
            message = (
                f"The process died while it called {server}__{tool}: the call may have had an effect."
                " It was not made again, because the tool is not marked as idempotent"
            )
            raise UpstreamError(server, tool, message, kind=INTERRUPTED)
        answer = msgspec.msgpack.decode(call.answer, type=Answer)
        if answer.result_json is None:
            raise UpstreamError(server, tool, answer.message, kind=answer.code)
        return True, decode_value(answer.result_json)

    async def _take(self, server: str, tool: str, digest: str) -> RecordedCall | None:
        key = server, tool, digest
        async with self._progress:
            if self._divergence is None and key not in self._waiting and self._waiting:
                # Wait before reporting a divergence: another branch of the guest may still make the recorded
                # calls.
                try:
                    async with asyncio.timeout(DIVERGENCE_SECONDS):
                        await self._progress.wait_for(lambda: not self._waiting or self._divergence)
                except TimeoutError:
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

    def _next_recorded(self) -> tuple[int, str]:
        call = min((calls[0] for calls in self._waiting.values()), key=lambda call: call.number)
        return call.number + 1, _name(call.server, call.tool)

    async def record(self, server: str, tool: str, arguments: Any, make: Callable[[], Awaitable[Any]]) -> Any:
        """Records a call, makes it, and records its result. Raises UpstreamError."""
        number, self._next_number = self._next_number, self._next_number + 1
        call = RecordedCall(number=number, server=server, tool=tool, digest=_digest(arguments))
        try:
            await self._store.recorded_calls.add(self._run_id, self._owner, call, self._expires_at)
        except HutchError as error:
            message = f"The call was not made, because it could not be recorded before: {error}"
            raise UpstreamError(server, tool, message, kind=INTERRUPTED) from None
        try:
            value = await make()
        except UpstreamError as error:
            await self._answer(number, Answer(code=error.kind, message=error.message))
            raise
        await self._answer(number, Answer(result_json=encode_value(value)))
        return value

    async def _answer(self, number: int, answer: Answer) -> None:
        data = msgspec.msgpack.encode(answer)
        if self._bytes + len(data) > MAX_RECORDED_BYTES:
            # The call stays recorded without a result. If the guest runs again, it gets an error for this
            # call.
            logger.warning(
                "run %s: a result is not recorded, because the recorded results are too large", self._run_id
            )
            return
        self._bytes += len(data)
        try:
            await self._store.recorded_calls.answer(self._run_id, number, data)
        except HutchError as error:
            logger.warning("run %s: a result could not be recorded: %s", self._run_id, error)


def _digest(arguments: Any) -> str:
    return hashlib.sha256(encode_value(arguments)).hexdigest()


def _name(server: str, tool: str) -> str:
    return printable(cut(f"{server}__{tool}", 200))


def _diverged(what: str) -> str:
    return (
        f"The code was run again after a restart, and {what}. Code whose calls depend on the time, on random"
        " values or on other outside state cannot be continued like this. Start it anew."
    )
