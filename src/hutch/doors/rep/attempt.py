"""One attempt at one step: its parameters, its time, and what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any

from hutch.doors.rep.codes import CANCELLED, STEP_FAILED, TIMEOUT, failure
from hutch.doors.rep.events import LEVELS
from hutch.doors.rep.kinds.registry import Call, StepFailed
from hutch.doors.rep.references import UnresolvedReference, parameters
from hutch.doors.rep.steps import StepResult
from hutch.errors import Busy, HutchError
from hutch.session.jsonvalue import NotJsonSafe, encode_value

if TYPE_CHECKING:
    from hutch.doors.rep.engine import FlowRun
    from hutch.doors.rep.flow import Node

logger = logging.getLogger("hutch.rep")

MAX_OUTPUT_BYTES = 8 * 1024 * 1024
"""Of one step, and of a run's outputs."""
MAX_DETAILS_BYTES = 64 * 1024
"""Of what is told of a failure besides its message."""


class Succeeded:
    """The step is over."""

    def __init__(self, result: StepResult, told: dict[str, Any]) -> None:
        self.result = result
        self._told = told

    def tell(self, emit: Callable[..., None]) -> None:
        emit("step", state="succeeded", **self._told)


class Failed:
    """It is not; `again` says whether trying again may help."""

    def __init__(self, error: StepFailed, attempt: int, told: dict[str, Any]) -> None:
        self.again = error.retriable
        self._told = told
        wire = failure(
            STEP_FAILED,
            error.message,
            step_id=told["step_id"],
            attempt=attempt,
            retriable=error.retriable,
            details=_plain(error.details),
            cause=error.cause,
        )
        self.result = StepResult(state="failed", error=wire, attempts=attempt + 1)

    def tell(self, emit: Callable[..., None]) -> None:
        assert self.result.error is not None
        emit("step", state="failed", **self._told, error=self.result.error)


class Attempt:
    """At a step of a run, counted from 0."""

    def __init__(self, run: FlowRun, node: Node, number: int) -> None:
        self._run = run
        self._node = node
        self._number = number
        self._id = run.prefix + node.id
        self._began = monotonic()

    async def run(self) -> Succeeded | Failed:
        """Never raises but when it is cancelled."""
        self._run.emit("step", state="started", step_id=self._id, kind=self._node.kind, attempt=self._number)
        try:
            output = await self._work()
            result = StepResult(state="succeeded", output=output, attempts=self._number + 1)
            return Succeeded(result, self._told())
        except StepFailed as error:
            return self._failed(error)
        except UnresolvedReference as error:
            return self._failed(StepFailed(str(error), retriable=False))
        except asyncio.CancelledError:
            cancelled = StepFailed("The run ended before this step did.", retriable=False, cause=CANCELLED)
            Failed(cancelled, self._number, self._told()).tell(self._run.emit)
            raise
        except HutchError as error:
            retriable = isinstance(error, Busy) or error.code not in _LASTING
            return self._failed(StepFailed(str(error), retriable=retriable, details={"code": error.code}))
        except Exception as error:
            # A kind of somebody else's may raise anything.
            logger.exception("step %s (%s) failed", self._id, self._node.kind)
            message = f"{type(error).__name__}: {error}"
            return self._failed(StepFailed(message, cause=type(error).__name__))

    async def _work(self) -> Any:
        run, node = self._run, self._node
        self._check_allowance()
        kind = run.registry.get(node.kind)
        params = kind.read(parameters(run.flow, node, run.inputs, run.outputs, kind.schema))
        seconds = node.timeout_ms / 1000 or None
        call = Call(
            step_id=self._id,
            attempt=self._number,
            params=params,
            deadline=_earlier(None if seconds is None else monotonic() + seconds, run.deadline),
            log=self._log,
            emit=self._emit,
            run=run,
            node=node,
        )
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                output = await kind.run(call)
        except TimeoutError as error:
            if not limit.expired():
                raise StepFailed(f"TimeoutError: {error}") from error
            message = f"Step {self._id} took longer than its {node.timeout_ms} ms."
            raise StepFailed(message, details={"timeout_ms": node.timeout_ms}, cause=TIMEOUT) from None
        run.context.allowance.take(_size(output))
        self._check_allowance()
        return output

    def _check_allowance(self) -> None:
        if (complaint := self._run.context.allowance.complaint) is not None:
            raise StepFailed(complaint, retriable=False)

    def _failed(self, error: StepFailed) -> Failed:
        if error.retriable and self._number < self._node.retry_max:
            self._log("warning", f"attempt {self._number + 1} failed: {error.message}")
        return Failed(error, self._number, self._told())

    def _told(self) -> dict[str, Any]:
        return {
            "step_id": self._id,
            "kind": self._node.kind,
            "attempt": self._number,
            "duration_ms": round((monotonic() - self._began) * 1000, 3),
        }

    def _log(self, level: str, message: str) -> None:
        level = level if level in LEVELS else "info"
        self._run.emit("log", level=level, message=str(message), step_id=self._id)

    def _emit(self, type: str, **fields: Any) -> None:
        self._run.emit(type, step_id=self._id, **_plain(fields))


# Codes of what will be the same at the next attempt.
_LASTING = frozenset(
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


def _earlier(one: float | None, other: float | None) -> float | None:
    given = [each for each in (one, other) if each is not None]
    return min(given) if given else None


def _plain(details: Any) -> Any:
    """JSON, and not too much of it, whatever a kind has put there."""
    try:
        text = encode_value(details)
    except NotJsonSafe as error:
        return {"unreadable": str(error)}
    return details if len(text) <= MAX_DETAILS_BYTES else {"truncated": text[:MAX_DETAILS_BYTES].decode()}


def _size(output: Any) -> int:
    """What a step gives is JSON, and no more than can be handed on. Raises StepFailed."""
    try:
        size = len(encode_value(output))
    except NotJsonSafe as error:
        raise StepFailed(f"The output is not JSON: {error}", retriable=False) from None
    if size > MAX_OUTPUT_BYTES:
        message = f"The output has {size} bytes of JSON; the most is {MAX_OUTPUT_BYTES}."
        raise StepFailed(message, retriable=False)
    return size
