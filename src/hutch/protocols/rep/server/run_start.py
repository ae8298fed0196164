"""Prepares runs of stored flows: checks the flow, its inputs and the permissions of the caller."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING

import msgspec

from hutch import strict_json
from hutch.http.auth import key_advice
from hutch.http.errors import ApiError
from hutch.problems import Problem
from hutch.protocols.rep import jsonrpc
from hutch.protocols.rep.ir.inputs import check_inputs
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.runtime.journal import to_json
from hutch.protocols.rep.server import permissions, requests, responses
from hutch.protocols.rep.server.permissions import KIND_SCOPES, FlowCaller, kinds_for, scopes_for
from hutch.protocols.rep.server.supervisor import ORIGIN, FlowSupervisor
from hutch.store.models import FlowRunRow, now
from hutch.telemetry.trace_context import current
from hutch.text import cut

if TYPE_CHECKING:
    from hutch.protocols.rep.ir.budget import ValidationBudget
    from hutch.protocols.rep.ir.flow import Flow
    from hutch.protocols.rep.server.requests import StartRunBody

MAX_START_BYTES = jsonrpc.MAX_LINE_BYTES - 64 * 1024
"""Limit for the flow, inputs and options of a run together, because the runtime gets them in one line. Leaves
a margin for the rest of the line.
"""
MAX_START_VALUES = strict_json.MAX_VALUES - 1_000
"""Limit for the number of JSON values in the flow, inputs and options of a run. Leaves a margin, too."""


class RunStarter:
    def __init__(self, flows: FlowSupervisor) -> None:
        self._flows = flows

    async def prepare(
        self,
        caller: FlowCaller,
        name: str,
        body: StartRunBody,
        *,
        user_name: str | None = None,
        key_id: str | None = None,
    ) -> FlowRunRow:
        """Returns a run that can be started. Raises ApiError and InvalidFlow."""
        store = await self._flows.store()
        stored = await store.flows.get(caller.owner, name, body.version)
        if stored is None:
            raise responses.flow_not_found(name)

        def check(budget: ValidationBudget) -> Flow:
            flow = parse_flow(msgspec.json.decode(stored.document), budget)
            if problems := check_inputs(flow, body.inputs):
                raise InvalidFlow(problems)
            return flow

        def parse(document: str) -> Awaitable[Flow]:
            return self._flows.validation.run(
                caller.owner, lambda budget: parse_flow(msgspec.json.decode(document), budget)
            )

        flow = await self._flows.validation.run(caller.owner, check)
        referenced = await permissions.referenced_flows(flow, store.flows, caller.owner, parse)
        check_kinds(caller, flow, *referenced.values())
        trace = current.get()
        options = {
            "trace_id": str(uuid.uuid4()) if trace is None else trace.trace_id,
            "traceparent": None if trace is None else trace.traceparent,
            "user": user_name,
            "key": key_id,
            "files": False,
            "kinds": kinds_for(caller),
            "flows": {name: other.document for name, other in referenced.items()},
            "concurrency": body.concurrency,
            "timeout": body.timeout,
        }
        row = FlowRunRow(
            run_id=body.run_id or str(uuid.uuid4()),
            owner=caller.owner,
            flow=flow.name,
            version=stored.version,
            origin=ORIGIN,
            created_at=now(),
            document=stored.document,
            inputs=to_json(body.inputs),
            options=to_json({name: value for name, value in options.items() if value is not None}),
        )
        _check_size(row)
        return row


def _check_size(row: FlowRunRow) -> None:
    start = f"[{row.document},{row.inputs},{row.options}]".encode()
    if strict_json.find_excess(start, sys.maxsize, MAX_START_VALUES) == "values":
        message = f"the flow, its sub-flows and the inputs have more than {MAX_START_VALUES} values"
        raise ApiError("too_large", message)
    if (size := len(row.document) + len(row.inputs) + len(row.options)) > MAX_START_BYTES:
        message = f"the flow, its sub-flows and the inputs have {size} bytes; the limit is {MAX_START_BYTES}"
        raise ApiError("too_large", message)


def check_kinds(caller: FlowCaller, *flows: Flow) -> None:
    """Raises ApiError for step kinds that this server does not run or the caller's key does not allow."""
    allowed = kinds_for(caller)
    for flow in flows:
        refused = {node.kind for node in flow.all_nodes()}.difference(allowed)
        for node in flow.all_nodes() if refused else ():
            if node.kind not in refused:
                continue
            if node.kind in KIND_SCOPES:
                advice = key_advice(*scopes_for(other.kind for other in flow.all_nodes()))
                raise ApiError(
                    "forbidden",
                    f"{node.path}.type: this key lacks the scope {KIND_SCOPES[node.kind]}; {advice}",
                )
            expected = ", ".join(allowed)
            got = cut(node.kind, 100)
            raise requests.invalid_request(
                [Problem(f"{node.path}.type", f"expected one of {expected}, got {got!r}")]
            )
