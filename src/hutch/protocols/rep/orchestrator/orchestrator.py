"""Runs a flow on a runtime process: negotiates, starts the run, polls it and ends the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from hutch.child_process.process import ChildProcess
from hutch.protocols.rep.jsonrpc import CANCELLED, TIMEOUT, RpcError, cancelled_error
from hutch.protocols.rep.orchestrator import negotiation
from hutch.protocols.rep.orchestrator.client import (
    CANNOT_START,
    ENDED,
    PROTOCOL_MISMATCH,
    PollResult,
    ProtocolMismatch,
    RuntimeClient,
    RuntimeTransportError,
    call_failure,
    parse_poll,
    parse_run_id,
    run_failure,
)
from hutch.protocols.rep.orchestrator.options import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    RunOptions,
    RunOutcome,
    exit_for,
)
from hutch.protocols.rep.orchestrator.process import RuntimeStartError, launch
from hutch.protocols.rep.orchestrator.transport import RuntimeTransport

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.orchestrator.runtime_choice import RuntimeChoice

CANCEL_SECONDS = 5.0
# Time that a cancellation waits for the answer to the previous request.
_CANCEL_TURN_SECONDS = 1.0
# Time limit for one answer if the run itself has no timeout.
_CALL_SECONDS = 120.0

MIN_POLL_SECONDS = 0.002
MAX_POLL_SECONDS = 0.25
_QUIET_SHARE = 0.1
_QUIET_AFTER_EVENTS = 0.1

OnEvent = Callable[[dict[str, Any]], None]


class Orchestrator:
    """One run of a flow. Call `run` once. `cancel` and `approve` may be called during the run, in the same
    loop.
    """

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
        self._client: RuntimeClient | None = None
        self._capabilities: negotiation.RuntimeCapabilities | None = None
        self._run_id: str | None = None
        """Run id that the runtime returned. None before the run has started."""
        self._deadline: asyncio.Timeout | None = None
        self._has_started = False
        """True if the runtime may have a run that needs to be cancelled."""
        self._cancelled = False
        self._cancel_sent = False
        self._is_over = False
        self._wake = asyncio.Event()
        self._pending_approvals: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        self._started_at = monotonic()

    # --- control ---

    def cancel(self) -> None:
        """Cancels the run. Ends the runtime if the run has not stopped after 5 s, or at once on the second
        call.
        """
        loop = asyncio.get_running_loop()
        if self._cancelled or not self._has_started:
            self._cancelled = True
            self._set_deadline(loop.time())
            return
        self._cancelled = True
        self._wake.set()
        self._set_deadline(loop.time() + CANCEL_SECONDS)
        # Send the cancellation even if the runtime has not answered the previous request, because it may
        # never answer that request.
        loop.call_later(_CANCEL_TURN_SECONDS, self._send_cancel)

    async def approve(
        self, step_id: str, approved: bool, *, by: str | None = None, reason: str | None = None
    ) -> None:
        """Approves or rejects a waiting step. Raises RpcError and RuntimeTransportError."""
        if self._is_over:
            raise _run_is_over_error()
        decision: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        params: dict[str, Any] = {"step_id": step_id, "approved": approved, "by": by, "reason": reason}
        self._pending_approvals.append((params, decision))
        self._wake.set()
        await decision

    async def run(self, process: ChildProcess | None = None) -> RunOutcome:
        """Runs the flow and returns the outcome. Always ends the process, also if the caller is cancelled."""
        at_once = False
        try:
            self._client = RuntimeClient(
                RuntimeTransport(process or self._launch(), on_stderr=self._on_stderr)
            )
            async with asyncio.timeout(self.options.timeout) as self._deadline:
                if self._cancelled:
                    self.cancel()
                outcome = await self._execute()
        except TimeoutError:
            at_once = self._cancelled
            outcome = self._failed(self._timeout_error().wire)
        except RuntimeTransportError as error:
            at_once = True
            outcome = self._failed(error.wire)
        except negotiation.UnsuitableRuntime as unsuitable:
            outcome = self._failed(unsuitable.wire)
        finally:
            self._deadline = None
            if self._client is not None:
                await self._client.close(at_once=at_once)
            self._fail_pending_approvals()
        return msgspec.structs.replace(outcome, seconds=monotonic() - self._started_at)

    def _launch(self) -> ChildProcess:
        try:
            return launch(self._choice, self.options)
        except RuntimeStartError as error:
            raise RuntimeTransportError(CANNOT_START, str(error)) from None

    async def _execute(self) -> RunOutcome:
        try:
            await self._negotiate()
            self._has_started = True
            self._run_id = parse_run_id(await self._call("Runtime.StartRun", self._start_params()))
            return await self._poll_until_over()
        except ProtocolMismatch as mismatch:
            message = f"The runtime violated the protocol: {mismatch}."
            raise RuntimeTransportError(PROTOCOL_MISMATCH, message) from None
        except _CallFailed as refused:
            return self._failed(refused.wire)

    async def _negotiate(self) -> None:
        answer = await self._call("Runtime.Capabilities", {})
        try:
            self._capabilities = negotiation.parse_capabilities(answer)
            negotiation.check_step_kinds(self.flow, self._capabilities, self._choice.engine)
        except negotiation.UnsuitableRuntime as unsuitable:
            if isinstance(answer, dict):
                file = negotiation.cache_capabilities(self._choice.engine, answer)
                unsuitable.wire["data"]["details"]["cache"] = None if file is None else str(file)
            raise

    def _start_params(self) -> dict[str, Any]:
        options = {
            "run_id": self.options.run_id,
            "trace_id": self.options.trace_id,
            "allow_shell": self.options.allow_shell,
        }
        return {
            "ir": self.flow.document,
            "inputs": self._inputs,
            "options": {**self.options.extra, **options},
        }

    async def _poll_until_over(self) -> RunOutcome:
        interval = PollInterval()
        while True:
            await self._send_pending()
            poll = parse_poll(await self._call("Runtime.Poll", {"run_id": self._run_id}))
            for event in poll.events:
                self._on_event(event)
            if poll.is_over:
                return self._finished(poll)
            await self._sleep(interval.next(busy=bool(poll.events)))

    async def _send_pending(self) -> None:
        self._wake.clear()
        if self._cancelled and not self._cancel_sent:
            answer = self._send_cancel()
            assert answer is not None
            await asyncio.wait((answer,))
        while self._pending_approvals:
            params, decision = self._pending_approvals[0]
            try:
                result = await self._call("Runtime.Approve", {**params, "run_id": self._run_id})
            except _CallFailed as refused:
                if not decision.done():
                    decision.set_exception(refused.error)
            else:
                if not decision.done():
                    decision.set_result(result)
            self._pending_approvals.pop(0)

    def _send_cancel(self) -> asyncio.Future[Any] | None:
        """Sends the cancellation. Does nothing if it was sent before or if there is no run."""
        if self._cancel_sent or self._run_id is None or self._client is None:
            return None
        self._cancel_sent = True
        return self._client.send("Runtime.Cancel", {"run_id": self._run_id})

    async def _call(self, method: str, params: dict[str, Any]) -> Any:
        assert self._client is not None
        try:
            seconds = _CALL_SECONDS if self.options.timeout is None else None
            return await self._client.call(method, params, timeout=seconds)
        except RpcError as error:
            raise _CallFailed(method, error) from None

    async def _sleep(self, seconds: float) -> None:
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait((waking,), timeout=seconds)
        finally:
            waking.cancel()

    # --- end ---

    def _set_deadline(self, when: float) -> None:
        if self._deadline is not None and not self._deadline.expired():
            before = self._deadline.when()
            self._deadline.reschedule(when if before is None else min(before, when))

    def _finished(self, poll: PollResult) -> RunOutcome:
        if poll.status == "failed":
            return self._failed(run_failure(poll.summary), poll.summary)
        # Use EXIT_INTERRUPTED even if the run completed before the cancellation took effect.
        code = EXIT_INTERRUPTED if self._cancelled else EXIT_OK
        return self._end("completed", code, poll.summary, None)

    def _failed(self, error: dict[str, Any], summary: dict[str, Any] | None = None) -> RunOutcome:
        summary = summary or {}
        if not (self._cancelled or summary.get("cancelled") is True):
            return self._end("failed", exit_for(error["code"]), summary, error)
        if error["data"].get("cause") != CANCELLED:
            error = _cancelled_error(error)
        summary = {**summary, "cancelled": True}
        return self._end("failed", EXIT_INTERRUPTED, summary, error, cancelled=True)

    def _end(
        self,
        status: Literal["completed", "failed"],
        exit_code: int,
        summary: dict[str, Any],
        error: dict[str, Any] | None,
        *,
        cancelled: bool = False,
    ) -> RunOutcome:
        return RunOutcome(
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

    def _timeout_error(self) -> RuntimeTransportError:
        if self._cancelled:
            message = f"The runtime did not end the run within {CANCEL_SECONDS:g} s of its cancellation."
        else:
            message = f"The run took longer than its {self.options.timeout:g} s."
        return RuntimeTransportError(
            TIMEOUT, message, "" if self._client is None else self._client.stderr_tail
        )

    def _fail_pending_approvals(self) -> None:
        self._is_over = True
        for _, decision in self._pending_approvals:
            if not decision.done():
                decision.set_exception(_run_is_over_error())
        self._pending_approvals.clear()


class _CallFailed(Exception):
    """The runtime answered with an error."""

    def __init__(self, method: str, error: RpcError) -> None:
        super().__init__(error.message)
        self.error = error
        self.wire = call_failure(method, error)


def _run_is_over_error() -> RuntimeTransportError:
    return RuntimeTransportError(ENDED, "The run is over.")


def _cancelled_error(original: Mapping[str, Any]) -> dict[str, Any]:
    details = {"code": original["code"], "message": original["message"]}
    return cancelled_error(details)


class PollInterval:
    """Interval between polls.

    The interval is a tenth of the time since the last event, so that the end of a run is noticed soon.
    """

    def __init__(self) -> None:
        self._quiet_since = monotonic()

    def next(self, *, busy: bool) -> float:
        """Returns the delay until the next poll. `busy` means that the last poll returned events."""
        now = monotonic()
        if busy:
            self._quiet_since = max(self._quiet_since, now - _QUIET_AFTER_EVENTS)
        return min(max((now - self._quiet_since) * _QUIET_SHARE, MIN_POLL_SECONDS), MAX_POLL_SECONDS)
