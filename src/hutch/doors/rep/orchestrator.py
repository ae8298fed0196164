"""Runs a flow on a runtime: one process a run, negotiated with, started, polled, and ended for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hutch.doors.rep import answers, exits, negotiation
from hutch.doors.rep.codes import CANCELLED, STEP_FAILED, TIMEOUT, RpcError, failure
from hutch.doors.rep.executor import CANNOT_START, ENDED, PROTOCOL, Executor, TransportBroken
from hutch.doors.rep.launch import CannotStart, Launched, launch
from hutch.doors.rep.outcome import RunEnd, RunOptions
from hutch.doors.rep.pacing import Pace
from hutch.doors.rep.wire import Wire

if TYPE_CHECKING:
    from hutch.doors.rep.choice import RuntimeChoice
    from hutch.doors.rep.flow import Flow

CANCEL_SECONDS = 5.0
# How long a cancellation waits for the answer to what was asked before it.
_TURN_SECONDS = 1.0
# The most that one answer takes, where the run as a whole may take for ever.
_CALL_SECONDS = 120.0

OnEvent = Callable[[dict[str, Any]], None]


class FlowDrive:
    """One run, as its orchestrator sees it. `run` it once; cancel and approve meanwhile, in the same loop."""

    def __init__(
        self,
        flow: Flow,
        inputs: Mapping[str, Any],
        choice: RuntimeChoice,
        options: RunOptions | None = None,
        *,
        on_event: OnEvent = lambda event: None,
        on_stderr: Callable[[bytes], None] | None = None,
    ) -> None:
        self.flow = flow
        self.options = options or RunOptions()
        self._inputs = inputs
        self._choice = choice
        self._on_event = on_event
        self._on_stderr = on_stderr
        self._executor: Executor | None = None
        self._capabilities: negotiation.Capabilities | None = None
        self._run_id: str | None = None
        """Once there is a run: what the runtime calls it."""
        self._limit: asyncio.Timeout | None = None
        self._has_begun = False
        """Whether there may be a run, so that there is something to cancel."""
        self._cancelled = False
        self._cancel_said = False
        self._is_over = False
        self._wake = asyncio.Event()
        self._to_say: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        self._began = monotonic()

    # --- from outside ---

    def cancel(self) -> None:
        """Has the runtime cancel the run, and ends it if that takes over 5 s. Once more: ends it at once."""
        loop = asyncio.get_running_loop()
        if self._cancelled or not self._has_begun:
            self._cancelled = True
            self._end_at(loop.time())
            return
        self._cancelled = True
        self._wake.set()
        self._end_at(loop.time() + CANCEL_SECONDS)
        # It may be that no answer ever comes to what was asked last.
        loop.call_later(_TURN_SECONDS, self._say_cancel)

    async def approve(
        self, step_id: str, approved: bool, *, by: str | None = None, reason: str | None = None
    ) -> None:
        """Somebody's word for a step that waits for it. Raises RpcError, TransportBroken."""
        if self._is_over:
            raise _over()
        told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        params: dict[str, Any] = {"step_id": step_id, "approved": approved, "by": by, "reason": reason}
        self._to_say.append((params, told))
        self._wake.set()
        await told

    # --- the run ---

    async def run(self, launched: Launched | None = None) -> RunEnd:
        """To the end, whatever it is; the process is gone then. Cancelling the caller ends the process."""
        at_once = False
        try:
            self._executor = Executor(Wire(launched or self._launch(), on_stderr=self._on_stderr))
            async with asyncio.timeout(self.options.timeout) as self._limit:
                if self._cancelled:
                    self.cancel()
                end = await self._drive()
        except TimeoutError:
            at_once = self._cancelled
            end = self._failed(self._too_long().wire)
        except TransportBroken as broken:
            at_once = True
            end = self._failed(broken.wire)
        except negotiation.Unsuitable as unsuitable:
            end = self._failed(unsuitable.wire)
        finally:
            self._limit = None
            if self._executor is not None:
                await self._executor.close(at_once=at_once)
            self._unsaid()
        return msgspec.structs.replace(end, seconds=monotonic() - self._began)

    def _launch(self) -> Launched:
        try:
            return launch(self._choice, self.options)
        except CannotStart as error:
            raise TransportBroken(CANNOT_START, str(error)) from None

    async def _drive(self) -> RunEnd:
        try:
            await self._negotiate()
            self._has_begun = True
            self._run_id = answers.run_id(await self._call("Runtime.StartRun", self._start()))
            return await self._poll_to_the_end()
        except answers.Mismatch as mismatch:
            message = f"The runtime said what the protocol does not have: {mismatch}."
            raise TransportBroken(PROTOCOL, message) from None
        except _Refused as refused:
            return self._failed(refused.wire)

    async def _negotiate(self) -> None:
        told = await self._call("Runtime.Capabilities", {})
        try:
            self._capabilities = negotiation.capabilities(told)
            negotiation.suit(self.flow, self._capabilities, self._choice.engine)
        except negotiation.Unsuitable as unsuitable:
            if isinstance(told, dict):
                file = negotiation.remember(self._choice.engine, told)
                unsuitable.wire["data"]["details"]["cache"] = None if file is None else str(file)
            raise

    def _start(self) -> dict[str, Any]:
        options = {
            "run_id": self.options.run_id,
            "trace_id": self.options.trace_id,
            "allow_shell": self.options.allow_shell,
        }
        return {
            "ir": self.flow.document,
            "inputs": self._inputs,
            "options": {**self.options.more, **options},
        }

    async def _poll_to_the_end(self) -> RunEnd:
        pace = Pace()
        while True:
            await self._say_what_is_to_say()
            poll = answers.poll(await self._call("Runtime.Poll", {"run_id": self._run_id}))
            for event in poll.events:
                self._on_event(event)
            if poll.is_over:
                return self._over(poll)
            await self._rest(pace.next(busy=bool(poll.events)))

    async def _say_what_is_to_say(self) -> None:
        self._wake.clear()
        if self._cancelled and not self._cancel_said:
            answer = self._say_cancel()
            assert answer is not None
            await asyncio.wait((answer,))
        while self._to_say:
            params, told = self._to_say[0]
            try:
                result = await self._call("Runtime.Approve", {**params, "run_id": self._run_id})
            except _Refused as refused:
                if not told.done():
                    told.set_exception(refused.error)
            else:
                if not told.done():
                    told.set_result(result)
            self._to_say.pop(0)

    def _say_cancel(self) -> asyncio.Future[Any] | None:
        """Once, and only if there is something to cancel."""
        if self._cancel_said or self._run_id is None or self._executor is None:
            return None
        self._cancel_said = True
        return self._executor.ask("Runtime.Cancel", {"run_id": self._run_id})

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        assert self._executor is not None
        try:
            seconds = _CALL_SECONDS if self.options.timeout is None else None
            return await self._executor.call(method, params, timeout=seconds)
        except RpcError as error:
            raise _Refused(method, error) from None

    async def _rest(self, seconds: float) -> None:
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((waking,), timeout=seconds)
        finally:
            waking.cancel()

    # --- the end ---

    def _end_at(self, when: float) -> None:
        if self._limit is not None and not self._limit.expired():
            before = self._limit.when()
            self._limit.reschedule(when if before is None else min(before, when))

    def _over(self, poll: answers.Poll) -> RunEnd:
        if poll.status == "failed":
            return self._failed(answers.why_failed(poll.summary), poll.summary)
        # Who interrupted it is told so, even if that came too late.
        code = exits.INTERRUPTED if self._cancelled else exits.OK
        return self._end("completed", code, poll.summary, None)

    def _failed(self, error: dict[str, Any], summary: dict[str, Any] | None = None) -> RunEnd:
        summary = summary or {}
        if not (self._cancelled or summary.get("cancelled") is True):
            return self._end("failed", exits.exit_for(error["code"]), summary, error)
        if error["data"].get("cause") != CANCELLED:
            error = _cancelled(error)
        told = {**summary, "cancelled": True}
        return self._end("failed", exits.INTERRUPTED, told, error, cancelled=True)

    def _end(
        self,
        status: Literal["completed", "failed"],
        exit_code: int,
        summary: dict[str, Any],
        error: dict[str, Any] | None,
        *,
        cancelled: bool = False,
    ) -> RunEnd:
        return RunEnd(
            run_id=self._run_id or self.options.run_id,
            flow=self.flow.name,
            engine=self._choice.engine,
            status=status,
            exit_code=exit_code,
            summary=summary,
            error=error,
            cancelled=cancelled,
            runtime_version=None if self._capabilities is None else self._capabilities.version,
        )

    def _too_long(self) -> TransportBroken:
        if self._cancelled:
            message = f"The runtime did not end the run within {CANCEL_SECONDS:g} s of its cancellation."
        else:
            message = f"The run took longer than its {self.options.timeout:g} s."
        return TransportBroken(TIMEOUT, message, "" if self._executor is None else self._executor.complaint)

    def _unsaid(self) -> None:
        self._is_over = True
        for _, told in self._to_say:
            if not told.done():
                told.set_exception(_over())
        self._to_say.clear()


class _Refused(Exception):
    """A runtime answered with an error."""

    def __init__(self, method: str, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error
        self.wire = answers.why_refused(method, error)


def _over() -> TransportBroken:
    return TransportBroken(ENDED, "The run is over.")


def _cancelled(because: Mapping[str, Any] | None = None) -> dict[str, Any]:
    details = None if because is None else {"code": because["code"], "message": because["message"]}
    return failure(STEP_FAILED, "The run was cancelled.", details=details, cause=CANCELLED)


async def run_flow(
    flow: Flow,
    inputs: Mapping[str, Any],
    choice: RuntimeChoice,
    options: RunOptions | None = None,
    *,
    on_event: OnEvent = lambda event: None,
) -> RunEnd:
    """Runs a flow on a runtime. For what is to be cancelled or approved, see `FlowDrive`."""
    return await FlowDrive(flow, inputs, choice, options, on_event=on_event).run()
