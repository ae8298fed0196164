"""One attempt at a step: resolves its parameters, runs it and checks its output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from hutch.errors import Busy, HutchError
from hutch.kernel.parent_run import parent_run
from hutch.protocols.rep.ir.resolve import ReferenceValues, UnresolvedReference, resolve_parameters
from hutch.protocols.rep.jsonrpc import CANCELLED, STEP_FAILED, TIMEOUT, rep_error
from hutch.protocols.rep.kinds.registry import Call, StepFailed, StepRun
from hutch.protocols.rep.runtime.events import LOG_LEVELS
from hutch.protocols.rep.runtime.models import StepResult
from hutch.protocols.rep.runtime.step_record import step_values
from hutch.session.json_value import NotJsonSafe, encode_value

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import FlowNode

logger = logging.getLogger("hutch.rep")

MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Limit for the output of one step, and for the outputs of a run."""
MAX_DETAILS_BYTES = 64 * 1024
"""Limit for the `details` of an error."""
# Codes of errors that a retry cannot fix.
_PERMANENT_CODES = frozenset(
    {
        "invalid_request",
        "invalid_setting",
        "invalid_config",
        "invalid_tool",
        "sandbox_unavailable",
        "egress_refused",
        "denied",
        "unknown_kind",
        "invalid_flow",
        "unauthorized",
    }
)


class AttemptSucceeded:
    """Result of a successful attempt."""

    def __init__(
        self, result: StepResult, event_fields: dict[str, Any], parameters: dict[str, Any] | None
    ) -> None:
        """`parameters` are the resolved parameters of the step."""
        self.result = result
        self._event_fields = event_fields
        self._parameters = parameters

    def emit_event(self, emit: Callable[..., None]) -> None:
        emit("step", state="succeeded", **self._event_fields)

    def record(self) -> dict[str, Any]:
        """Returns a description of the finished step, with bounded copies of its input and output."""
        values = step_values(self._event_fields["kind"], self._parameters, self.result.output)
        return {**self._event_fields, "state": "succeeded", **values}


class AttemptFailed:
    """Result of a failed attempt. `retriable` is true if another attempt may succeed."""

    def __init__(
        self,
        error: StepFailed,
        attempt: int,
        event_fields: dict[str, Any],
        parameters: dict[str, Any] | None = None,
    ) -> None:
        self.retriable = error.retriable
        self._event_fields = event_fields
        self._parameters = parameters
        wire = rep_error(
            STEP_FAILED,
            error.message,
            step_id=event_fields["step_id"],
            attempt=attempt,
            retriable=error.retriable,
            details=_bounded_json(error.details),
            cause=error.cause,
        )
        self.result = StepResult(state="failed", error=wire, attempts=attempt + 1)

    def emit_event(self, emit: Callable[..., None]) -> None:
        assert self.result.error is not None
        emit("step", state="failed", **self._event_fields, error=self.result.error)

    def record(self) -> dict[str, Any]:
        """Returns a description of the failed step, with a bounded copy of its input."""
        assert self.result.error is not None
        values = step_values(self._event_fields["kind"], self._parameters, None)
        error = {"code": self.result.error["code"], "message": self.result.error["message"]}
        return {**self._event_fields, "state": "failed", "input": values["input"], "error": error}


class AttemptRun(StepRun, Protocol):
    """Interface of a run for the attempts at its steps."""

    @property
    def prefix(self) -> str:
        """Prefix of the step ids in events."""

    def reference_values(self, node: FlowNode) -> ReferenceValues:
        """Returns the values that the references of a step resolve to."""

    @property
    def deadline(self) -> float | None: ...
    @property
    def emit(self) -> Callable[..., None]: ...


class StepAttempt:
    """One attempt at a step. Attempts are numbered from 0."""

    def __init__(self, run: AttemptRun, node: FlowNode, number: int) -> None:
        self._run = run
        self._node = node
        self._number = number
        self._id = run.prefix + node.id
        self._parameters: dict[str, Any] | None = None
        self._call: Call | None = None
        self._started_at = monotonic()

    async def run(self) -> AttemptSucceeded | AttemptFailed:
        """Runs the step once. Raises only CancelledError."""
        self._run.emit("step", state="started", step_id=self._id, kind=self._node.kind, attempt=self._number)
        try:
            output = await self._run_kind()
            result = StepResult(state="succeeded", output=output, attempts=self._number + 1)
            return AttemptSucceeded(result, self._event_fields(), self._parameters)
        except StepFailed as error:
            return self._on_failure(error)
        except UnresolvedReference as error:
            return self._on_failure(StepFailed(str(error), retriable=False))
        except asyncio.CancelledError:
            cancelled = StepFailed("The run ended before this step did.", retriable=False, cause=CANCELLED)
            AttemptFailed(cancelled, self._number, self._event_fields()).emit_event(self._run.emit)
            raise
        except HutchError as error:
            retriable = isinstance(error, Busy) or error.code not in _PERMANENT_CODES
            return self._on_failure(StepFailed(str(error), retriable=retriable, details={"code": error.code}))
        except Exception as error:
            # Treat any exception as a failure of the step, because extension kinds may raise any exception.
            logger.exception("step %s (%s) failed", self._id, self._node.kind)
            message = f"{type(error).__name__}: {error}"
            return self._on_failure(StepFailed(message, cause=type(error).__name__))

    async def _run_kind(self) -> Any:
        run, node = self._run, self._node
        self._check_quota()
        kind = run.registry.get(node.kind)
        self._parameters = resolve_parameters(run.flow, node, run.reference_values(node), kind.schema)
        params = kind.read(self._parameters)
        seconds = node.timeout_ms / 1000 or None
        self._call = call = Call(
            step_id=self._id,
            attempt=self._number,
            params=params,
            deadline=_earliest(None if seconds is None else monotonic() + seconds, run.deadline),
            log=self._log,
            emit=self._emit,
            run=run,
            node=node,
        )
        # Do not reset the variable. Each attempt has its own task, so the variable is set for this attempt
        # only.
        parent_run.set(run.context.run_id)
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                output = await kind.run(call)
        except TimeoutError as error:
            if not limit.expired():
                raise StepFailed(f"TimeoutError: {error}") from error
            message = f"Step {self._id} took longer than its {node.timeout_ms} ms."
            raise StepFailed(message, details={"timeout_ms": node.timeout_ms}, cause=TIMEOUT) from None
        run.context.quota.use_bytes(_checked_size(output))
        self._check_quota()
        return output

    async def clean_up(self) -> None:
        """Deletes intermediate data of the attempt, after the result of the step was stored."""
        for action in [] if self._call is None else self._call.on_stored:
            try:
                await action()
            except HutchError as error:
                # Only log the error, because the remaining data expires later.
                logger.warning("intermediate data of step %s could not be deleted: %s", self._id, error)

    def _check_quota(self) -> None:
        if (message := self._run.context.quota.exceeded_message) is not None:
            raise StepFailed(message, retriable=False)

    def _on_failure(self, error: StepFailed) -> AttemptFailed:
        if error.retriable and self._number < self._node.retry_max:
            self._log("warning", f"attempt {self._number + 1} failed: {error.message}")
        return AttemptFailed(error, self._number, self._event_fields(), self._parameters)

    def _event_fields(self) -> dict[str, Any]:
        return {
            "step_id": self._id,
            "kind": self._node.kind,
            "attempt": self._number,
            "duration_ms": round((monotonic() - self._started_at) * 1000, 3),
        }

    def _log(self, level: str, message: str) -> None:
        level = level if level in LOG_LEVELS else "info"
        self._run.emit("log", level=level, message=str(message), step_id=self._id)

    def _emit(self, type: str, **fields: Any) -> None:
        self._run.emit(type, step_id=self._id, **_bounded_json(fields))


def _earliest(first: float | None, second: float | None) -> float | None:
    deadlines = [deadline for deadline in (first, second) if deadline is not None]
    return min(deadlines) if deadlines else None


def _bounded_json(details: Any) -> Any:
    """Limits the size of error details. Details that are not JSON are replaced by a message."""
    try:
        text = encode_value(details)
    except NotJsonSafe as error:
        return {"unreadable": str(error)}
    return details if len(text) <= MAX_DETAILS_BYTES else {"truncated": text[:MAX_DETAILS_BYTES].decode()}


def _checked_size(output: Any) -> int:
    """Returns the size of the output as JSON. Raises StepFailed if the output is too large or not JSON."""
    try:
        size = len(encode_value(output))
    except NotJsonSafe as error:
        raise StepFailed(f"The output is not JSON: {error}", retriable=False) from None
    if size > MAX_OUTPUT_BYTES:
        message = f"The output has {size} bytes of JSON; the limit is {MAX_OUTPUT_BYTES}."
        raise StepFailed(message, retriable=False)
    return size
