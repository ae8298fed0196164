"""REP runtime that implements the `Runtime.*` methods."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hutch.protocols.rep import jsonrpc
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.jsonrpc import INVALID_PARAMS, RpcError, rep_error
from hutch.protocols.rep.kinds.registry import Registry
from hutch.protocols.rep.runtime.context import ApprovalDecision, PendingApprovals, RunContext
from hutch.protocols.rep.runtime.handshake import (
    MAX_CONCURRENCY,
    answer_request,
    capabilities,
    health,
    shell_is_allowed,
)
from hutch.protocols.rep.runtime.preflight import NotRunnable, check_runnable
from hutch.protocols.rep.runtime.run import JournalOpener, RuntimeRun
from hutch.text import cut

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.runtime.context import RuntimeServices

MAX_REMEMBERED_RUNS = 1_000
"""Maximum number of runs in memory, including finished runs. The oldest finished run is dropped first."""
_MAX_ID_CHARS = 200
_MAX_PATH_CHARS = 4096
_MAX_STEP_ID_CHARS = 2_000
_MAX_LISTED_CHARS = 2_000


class RepRuntime:
    """Answers requests one after the other, while runs execute. Belongs to one event loop."""

    def __init__(
        self,
        services: RuntimeServices,
        *,
        environ: Mapping[str, str] | None = None,
        registry: Registry | None = None,
        journals: JournalOpener | None = None,
    ) -> None:
        self._services = services
        self._environ = os.environ if environ is None else environ
        self._registry = registry or Registry.load(self._environ)
        self._journals = journals
        self._runs: dict[str, RuntimeRun] = {}
        self._methods: dict[str, jsonrpc.RpcMethod] = {
            "Runtime.Capabilities": self._capabilities,
            "Runtime.StartRun": self._start_run,
            "Runtime.Poll": self._poll,
            "Runtime.Cancel": self._cancel,
            "Runtime.Health": self._health,
            "Runtime.Approve": self._approve,
        }

    def answer(self, line: bytes) -> bytes | None:
        """Returns the response to a line, or None for an empty line or a notification."""
        if not line.strip():
            return None
        try:
            return answer_request(jsonrpc.parse_request(line), self._methods)
        except jsonrpc.InvalidRpcRequest as refused:
            return refused.response

    async def close(self) -> None:
        """Stops all runs."""
        await asyncio.gather(*(run.stop() for run in self._runs.values()))

    # --- methods ---

    def _capabilities(self, params: dict[str, Any]) -> dict[str, Any]:
        return capabilities(self._environ)

    def _health(self, params: dict[str, Any]) -> dict[str, Any]:
        return health(params, sum(not run.is_over for run in self._runs.values()))

    def _start_run(self, params: dict[str, Any]) -> dict[str, Any]:
        options = _optional_object(params, "options")
        run_id = _optional_text(options, "run_id", "options.run_id")
        if run_id is not None and run_id in self._runs:
            return {"run_id": run_id}
        if "ir" not in params:
            raise _invalid_param("ir", "is required")
        inputs = _optional_object(params, "inputs")
        context = self._context(run_id or str(uuid.uuid4()), options)
        registry = self._registry_for(options)
        flow = _read_runnable(params["ir"], inputs, registry, context.allow_shell)
        self._drop_oldest_finished()
        self._runs[context.run_id] = RuntimeRun(
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
        return self._find_run(params).poll()

    def _cancel(self, params: dict[str, Any]) -> dict[str, Any]:
        self._find_run(params).cancel()
        return {"ok": True}

    def _approve(self, params: dict[str, Any]) -> dict[str, Any]:
        """Passes a decision to a waiting step. `Runtime.Approve` is an addition to REP."""
        run = self._find_run(params)
        # Ids of nested steps contain the ids of all their parents, so they may be long.
        step_id = _optional_text(params, "step_id", max_chars=_MAX_STEP_ID_CHARS)
        if step_id is None:
            raise _invalid_param("step_id", "is required")
        approved = params.get("approved")
        if not isinstance(approved, bool):
            raise _invalid_param("approved", "expected true or false")
        approval = ApprovalDecision(
            approved, by=_optional_text(params, "by"), reason=_optional_text(params, "reason")
        )
        if not run.approve(step_id, approval):
            pending = cut(", ".join(run.context.approvals.step_ids()), _MAX_LISTED_CHARS) or "none"
            raise _invalid_param(
                "step_id", f"step {step_id!r} is not waiting for an approval; waiting: {pending}"
            )
        return {"ok": True}

    # --- parameters ---

    def _find_run(self, params: dict[str, Any]) -> RuntimeRun:
        run_id = _optional_text(params, "run_id")
        if run_id is None:
            raise _invalid_param("run_id", "is required")
        run = self._runs.get(run_id)
        if run is None:
            raise RpcError(INVALID_PARAMS, f"run_id: there is no run {run_id!r}", {"run_id": run_id})
        return run

    def _context(self, run_id: str, options: dict[str, Any]) -> RunContext:
        folder = Path(_optional_text(options, "folder", "options.folder", _MAX_PATH_CHARS) or ".").absolute()
        egress_allow = options.get("egress_allow")
        if not isinstance(egress_allow, list | None) or not all(
            isinstance(item, str) for item in egress_allow or ()
        ):
            raise _invalid_param(
                "options.egress_allow", "expected a list of texts such as api.example.com:443"
            )
        return RunContext(
            run_id=run_id,
            services=self._services,
            approvals=PendingApprovals(),
            user=_optional_text(options, "user", "options.user"),
            folder=None if options.get("files") is False else folder,
            allow_shell=options.get("allow_shell") is True and shell_is_allowed(self._environ),
            egress_allow=tuple(egress_allow or ()),
            flows=_optional_object(options, "flows", "options.flows"),
            tracer=self._services.tracer,
        )

    def _registry_for(self, options: dict[str, Any]) -> Registry:
        """Returns the registry, restricted to `options.kinds` if given. The restriction also covers nested
        flows.
        """
        kinds = options.get("kinds")
        if kinds is None:
            return self._registry
        if not isinstance(kinds, list) or not all(isinstance(item, str) for item in kinds):
            raise _invalid_param("options.kinds", "expected a list of step kinds")
        return self._registry.only(kinds)

    def _drop_oldest_finished(self) -> None:
        if len(self._runs) >= MAX_REMEMBERED_RUNS:
            finished_id = next((id for id, run in self._runs.items() if run.is_over), None)
            if finished_id is None:
                raise RpcError(INVALID_PARAMS, f"{MAX_REMEMBERED_RUNS} runs are already in progress")
            del self._runs[finished_id]


def _read_runnable(ir: Any, inputs: dict[str, Any], registry: Registry, allow_shell: bool) -> Flow:
    from hutch.protocols.rep.ir.parse import parse_flow

    try:
        parsed = parse_flow(ir)
        check_runnable(parsed, inputs, registry, allow_shell=allow_shell)
    except InvalidFlow as error:
        wire = rep_error(error.rep_code, error.message, details=error.details)
        raise RpcError(wire["code"], wire["message"], wire["data"]) from None
    except NotRunnable as error:
        raise error.as_rpc_error from None
    return parsed


def _invalid_param(field: str, message: str) -> RpcError:
    return RpcError(INVALID_PARAMS, f"{field}: {message}")


def _optional_object(params: dict[str, Any], name: str, label: str | None = None) -> dict[str, Any]:
    value = params.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _invalid_param(label or name, "expected an object")
    return value


def _optional_text(
    params: dict[str, Any], name: str, label: str | None = None, max_chars: int = _MAX_ID_CHARS
) -> str | None:
    value = params.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= max_chars:
        raise _invalid_param(label or name, f"expected a text of 1 to {max_chars} characters")
    return value


def _concurrency(options: dict[str, Any]) -> int:
    value = options.get("concurrency")
    if value is None:
        return MAX_CONCURRENCY
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _invalid_param("options.concurrency", "expected an integer of at least 1")
    return min(value, MAX_CONCURRENCY)
