"""The runtime's side of REP: what each method does."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hutch.doors.rep import rpc
from hutch.doors.rep.capabilities import CONCURRENCY, capabilities, shell_is_allowed
from hutch.doors.rep.codes import INVALID_PARAMS, RpcError, failure
from hutch.doors.rep.context import Approval, Approvals, Context
from hutch.doors.rep.kinds.registry import Registry
from hutch.doors.rep.porch import answered, health
from hutch.doors.rep.prepare import NotRunnable, prepare
from hutch.doors.rep.problems import InvalidFlow
from hutch.doors.rep.runs import Journals, Run

if TYPE_CHECKING:
    from hutch.doors.rep.context import Rooms
    from hutch.doors.rep.flow import Flow

MAX_RUNS = 1_000
"""Of those that are over, the latest are remembered."""
_MAX_ID = 200
_MAX_PATH = 4096
_MAX_STEP_ID = 2_000


class Runtime:
    """Answers requests, one after the other; runs go on meanwhile. Belongs to one event loop."""

    def __init__(
        self,
        rooms: Rooms,
        *,
        environ: Mapping[str, str] | None = None,
        registry: Registry | None = None,
        journals: Journals | None = None,
    ) -> None:
        self._rooms = rooms
        self._environ = os.environ if environ is None else environ
        self._registry = registry or Registry.load(self._environ)
        self._journals = journals
        self._runs: dict[str, Run] = {}
        self._methods: dict[str, rpc.Method] = {
            "Runtime.Capabilities": self._capabilities,
            "Runtime.StartRun": self._start_run,
            "Runtime.Poll": self._poll,
            "Runtime.Cancel": self._cancel,
            "Runtime.Health": self._health,
            "Runtime.Approve": self._approve,
        }

    def answer(self, line: bytes) -> bytes | None:
        """What a line gets, if anything."""
        if not line.strip():
            return None
        try:
            return answered(rpc.read(line), self._methods)
        except rpc.Refused as refused:
            return refused.answer

    async def close(self) -> None:
        """Ends all runs."""
        await asyncio.gather(*(run.end() for run in self._runs.values()))

    # --- methods ---

    def _capabilities(self, params: dict[str, Any]) -> dict[str, Any]:
        return capabilities(self._environ)

    def _health(self, params: dict[str, Any]) -> dict[str, Any]:
        return health(params, sum(not run.is_over for run in self._runs.values()))

    def _start_run(self, params: dict[str, Any]) -> dict[str, Any]:
        options = _object(params, "options")
        run_id = _text(options, "run_id", "options.run_id")
        if run_id is not None and run_id in self._runs:
            return {"run_id": run_id}
        if "ir" not in params:
            raise _wrong("ir", "is required")
        inputs = _object(params, "inputs")
        context = self._context(run_id or str(uuid.uuid4()), options)
        registry = self._kinds(options)
        flow = _checked(params["ir"], inputs, registry, context.allow_shell)
        self._forget_some()
        self._runs[context.run_id] = Run(
            flow,
            inputs,
            registry,
            context,
            concurrency=_concurrency(options),
            journals=self._journals if options.get("journal") is True else None,
            options=options,
        )
        return {"run_id": context.run_id}

    def _poll(self, params: dict[str, Any]) -> dict[str, Any]:
        return self._run(params).poll()

    def _cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        self._run(params).cancel()
        return {"ok": True}

    def _approve(self, params: dict[str, Any]) -> dict[str, Any]:
        """Ours: somebody's word for a step that waits for it."""
        run = self._run(params)
        # In flows within flows, it has the ids of the steps that it is in.
        step_id = _text(params, "step_id", most=_MAX_STEP_ID)
        if step_id is None:
            raise _wrong("step_id", "is required")
        approved = params.get("approved")
        if not isinstance(approved, bool):
            raise _wrong("approved", "expected true or false")
        approval = Approval(approved, by=_text(params, "by"), reason=_text(params, "reason"))
        if not run.approve(step_id, approval):
            waiting = ", ".join(run.context.approvals.waiting()) or "none"
            raise _wrong("step_id", f"step {step_id!r} waits for no approval; of this run, {waiting} does")
        return {"ok": True}

    # --- what they are given ---

    def _run(self, params: dict[str, Any]) -> Run:
        run_id = _text(params, "run_id")
        if run_id is None:
            raise _wrong("run_id", "is required")
        run = self._runs.get(run_id)
        if run is None:
            raise RpcError(INVALID_PARAMS, f"run_id: there is no run {run_id!r}", {"run_id": run_id})
        return run

    def _context(self, run_id: str, options: dict[str, Any]) -> Context:
        folder = Path(_text(options, "folder", "options.folder", _MAX_PATH) or ".").absolute()
        allow = options.get("egress_allow")
        if not isinstance(allow, list | None) or not all(isinstance(each, str) for each in allow or ()):
            raise _wrong("options.egress_allow", "expected a list of texts such as api.example.com:443")
        return Context(
            run_id=run_id,
            rooms=self._rooms,
            approvals=Approvals(),
            user=_text(options, "user", "options.user"),
            folder=None if options.get("files") is False else folder,
            allow_shell=options.get("allow_shell") is True and shell_is_allowed(self._environ),
            egress_allow=tuple(allow or ()),
            flows=_object(options, "flows", "options.flows"),
        )

    def _kinds(self, options: dict[str, Any]) -> Registry:
        """All, or those that `options.kinds` names: also flows that steps bring along have no others."""
        kinds = options.get("kinds")
        if kinds is None:
            return self._registry
        if not isinstance(kinds, list) or not all(isinstance(each, str) for each in kinds):
            raise _wrong("options.kinds", "expected a list of kinds of steps")
        return self._registry.only(kinds)

    def _forget_some(self) -> None:
        if len(self._runs) >= MAX_RUNS:
            over = next((id for id, run in self._runs.items() if run.is_over), None)
            if over is None:
                raise RpcError(INVALID_PARAMS, f"{MAX_RUNS} runs are under way already")
            del self._runs[over]


def _checked(ir: Any, inputs: dict[str, Any], registry: Registry, allow_shell: bool) -> Flow:
    from hutch.doors.rep import flow

    try:
        found = flow.read(ir)
        prepare(found, inputs, registry, allow_shell=allow_shell)
    except InvalidFlow as error:
        wire = failure(error.rep_code, error.message, details=error.details)
        raise RpcError(wire["code"], wire["message"], wire["data"]) from None
    except NotRunnable as error:
        raise error.as_answer from None
    return found


def _wrong(field: str, message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"{field}: {message}")


def _object(params: dict[str, Any], name: str, shown: str | None = None) -> dict[str, Any]:
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _wrong(shown or name, "expected an object")
    return value


def _text(params: dict[str, Any], name: str, shown: str | None = None, most: int = _MAX_ID) -> str | None:
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise _wrong(shown or name, f"expected a text of 1 to {most} characters")
    return value


def _concurrency(options: dict[str, Any]) -> int:
    value = options.get("concurrency")
    if value is None:
        return CONCURRENCY
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _wrong("options.concurrency", "expected an integer of at least 1")
    return min(value, CONCURRENCY)
