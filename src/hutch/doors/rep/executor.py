"""One runtime process and the calls to it: requests with ids of their own, answers matched to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hutch.doors.rep import answers
from hutch.doors.rep.answers import Mismatch
from hutch.doors.rep.codes import BROKEN_TRANSPORT, TIMEOUT, failure
from hutch.doors.rep.wire import Wire

PROTOCOL = "ProtocolMismatch"
ENDED = "Ended"
CANNOT_START = "CannotStart"


class TransportBroken(Exception):
    """Nothing more is to be had from the runtime.

    `cause` is one of Timeout, ProtocolMismatch, Ended, CannotStart.
    """

    def __init__(self, cause: str, message: str, complaint: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.complaint = complaint

    @property
    def wire(self) -> dict[str, Any]:
        """As a REP error."""
        details = {"stderr": self.complaint} if self.complaint else None
        return failure(BROKEN_TRANSPORT, self.message, details=details, cause=self.cause)


class Executor:
    """Calls to one runtime. After the first thing that the protocol does not have, there are no more."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._last_id = 0
        self._open: dict[int | float | str | None, asyncio.Future[Any]] = {}
        self._broken: TransportBroken | None = None
        wire.on_line = self._hear
        wire.on_end = self._ended

    @property
    def complaint(self) -> str:
        """The last of what the runtime wrote to stderr."""
        return self._wire.complaint

    async def call(self, method: str, params: dict[str, Any], *, timeout: float | None = None) -> Any:
        """The result. Raises RpcError, TransportBroken."""
        answer = self.ask(method, params)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            message = f"The runtime did not answer {method} within {timeout:g} s."
            raise TransportBroken(TIMEOUT, message, self.complaint) from None

    def ask(self, method: str, params: dict[str, Any]) -> asyncio.Future[Any]:
        """What the result will be in, for who need not wait for it."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Also an error that nobody waits for is no mistake of ours.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._broken is not None:
            answer.set_exception(self._broken)
            return answer
        self._last_id += 1
        self._open[self._last_id] = answer
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        # ASCII: whatever is in a text, it is one line, and UTF-8.
        self._wire.send(json.dumps(request, allow_nan=False, separators=(",", ":")).encode() + b"\n")
        return answer

    async def close(self, *, at_once: bool = False) -> None:
        """Ends the process and all that it started."""
        self._break(TransportBroken(ENDED, "The runtime was ended."))
        await self._wire.close(at_once=at_once)

    def _hear(self, line: bytes) -> None:
        if self._broken is not None:
            return
        try:
            told = answers.read(line)
            answer = self._answered(told.id, has_failed=told.error is not None)
        except Mismatch as mismatch:
            advice = "Only answers belong on its stdout, logs on stderr."
            message = f"The runtime said what the protocol does not have: {mismatch}. {advice}"
            self._break(TransportBroken(PROTOCOL, message, self.complaint))
            return
        if answer.done():
            return
        if told.error is not None:
            answer.set_exception(told.error)
        else:
            answer.set_result(told.result)

    def _answered(self, id: int | float | str | None, *, has_failed: bool) -> asyncio.Future[Any]:
        """Raises Mismatch."""
        if id is None and has_failed and self._open:
            # It could not read which request that was (JSON-RPC, section 5); we asked one at a time.
            id = next(iter(self._open))
        answer = self._open.pop(id, None)
        if answer is None:
            expected = f"expected id {', '.join(map(str, self._open))}" if self._open else "expected nothing"
            raise Mismatch(f"{expected}, got an answer to {json.dumps(id)[:40]}")
        return answer

    def _ended(self, how: str) -> None:
        self._break(TransportBroken(ENDED, f"The runtime is gone: {how}.", self.complaint))

    def _break(self, why: TransportBroken) -> None:
        if self._broken is None:
            self._broken = why
            for answer in self._open.values():
                if not answer.done():
                    answer.set_exception(why)
            self._open.clear()
