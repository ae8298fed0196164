"""Tool calls that wait in memory for answers of the client's user, between two requests of the client.

Since protocol 2026-07-28, a server cannot ask while a request is in progress: the request returns
`input_required`, and the client sends another one with the answers. Meanwhile, the call waits here.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from mcp.types import InputRequiredResult

from hutch.errors import HutchError

if TYPE_CHECKING:
    from mcp.types import InputRequest, InputResponse

    from hutch.protocols.mcp.run_code import ClientRun

T = TypeVar("T")

MAX_QUESTIONS = 20
"""Maximum number of questions in one response to a client."""
MAX_HELD_CALLS = 1_000
MAX_HELD_CALLS_PER_OWNER = 100
KEEP_SECONDS = 300.0
"""Time for which the result of an ended call is kept until its client returns."""


class HeldCallState(msgspec.Struct, frozen=True, tag="call", tag_field="kind"):
    """Content of the `requestState` for a call that waits in memory."""

    call_id: str


class Questions:
    """Open questions of one call to the client's user."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[InputRequest, asyncio.Future[InputResponse]]] = {}
        self.asked = asyncio.Event()
        """Set while there are open questions."""

    async def ask(self, request: InputRequest) -> InputResponse:
        """Asks a question and waits for the answer. If cancelled, withdraws the question."""
        key = secrets.token_urlsafe(6)
        answered: asyncio.Future[InputResponse] = asyncio.get_running_loop().create_future()
        self._open[key] = request, answered
        self.asked.set()
        try:
            return await answered
        finally:
            del self._open[key]
            if not self._open:
                self.asked.clear()

    def open(self) -> dict[str, InputRequest]:
        waiting = {key: request for key, (request, answered) in self._open.items() if not answered.done()}
        return dict([*waiting.items()][:MAX_QUESTIONS])

    def answer(self, responses: Mapping[str, InputResponse]) -> None:
        """Delivers answers. Ignores answers to withdrawn questions."""
        for key, response in responses.items():
            _, answered = self._open.get(key, (None, None))
            if answered is not None and not answered.done():
                answered.set_result(response)


class HeldCall(Generic[T]):
    """A call in progress, with its client and its questions."""

    def __init__(self, run: ClientRun, work: Coroutine[Any, Any, T]) -> None:
        self.id = secrets.token_urlsafe(16)
        self.run = run
        self.task = asyncio.ensure_future(work)


class HeldCalls:
    """All calls of a server that wait in memory."""

    def __init__(self) -> None:
        self._calls: dict[str, HeldCall[Any]] = {}

    def has_capacity(self, owner: str | None) -> bool:
        of_owner = sum(call.run.owner == owner for call in self._calls.values())
        return len(self._calls) < MAX_HELD_CALLS and of_owner < MAX_HELD_CALLS_PER_OWNER

    async def run(self, run: ClientRun, work: Coroutine[Any, Any, T]) -> T | InputRequiredResult:
        """Runs `work` until it ends or has asked a question through `run.questions`."""
        if run.questions is None:
            # Do not hold the call between requests. The client's user cannot be asked at all, or can be asked
            # while the request is in progress.
            return await work
        return await self._next(HeldCall(run, work))

    def find(self, state: HeldCallState) -> HeldCall[Any]:
        """Returns the call. Raises HutchError if it is no longer waiting."""
        call = self._calls.get(state.call_id)
        if call is None:
            raise HutchError(
                "The call does not wait any more: its answer was used before, or the server that held it in"
                " memory was restarted. Call the tool again."
            )
        return call

    async def resume(
        self, call: HeldCall[Any], run: ClientRun, responses: Mapping[str, InputResponse]
    ) -> Any:
        """Delivers answers to a call. From now on, the call uses the client of `run`."""
        call.run.continue_with(run)
        assert call.run.questions is not None
        call.run.questions.answer(responses)
        return await self._next(call)

    async def _next(self, call: HeldCall[T]) -> T | InputRequiredResult:
        questions = call.run.questions
        assert questions is not None
        while not call.task.done():
            requests = questions.open()
            if requests:
                self._hold(call)
                state = msgspec.json.encode(HeldCallState(call.id)).decode()
                return InputRequiredResult(input_requests=requests, request_state=state)
            await self._wait(call, questions)
        self._calls.pop(call.id, None)
        return await call.task

    async def _wait(self, call: HeldCall[Any], questions: Questions) -> None:
        """Waits until the call ends or asks a question. If the wait is cancelled, cancels the call."""
        asked = asyncio.ensure_future(questions.asked.wait())
        try:
            await asyncio.wait((call.task, asked), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._calls.pop(call.id, None)
            call.task.cancel()
            await asyncio.gather(call.task, return_exceptions=True)
            raise
        finally:
            asked.cancel()

    def _hold(self, call: HeldCall[Any]) -> None:
        if call.id in self._calls:
            return
        self._calls[call.id] = call
        loop = asyncio.get_running_loop()
        call.task.add_done_callback(lambda _: loop.call_later(KEEP_SECONDS, self._forget, call))

    def _forget(self, call: HeldCall[Any]) -> None:
        self._calls.pop(call.id, None)
        with contextlib.suppress(asyncio.CancelledError):
            # The client has not asked for the result in time. Retrieve the exception, so that asyncio does
            # not log it.
            call.task.exception()

    def close(self) -> None:
        for call in self._calls.values():
            call.task.cancel()
        self._calls.clear()
