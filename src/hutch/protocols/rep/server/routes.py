"""HTTP routes for flows, runs and approvals."""

from __future__ import annotations

import json
import logging
from typing import Any
from urllib.parse import quote

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from hutch.http.auth import AccessControl, key_advice
from hutch.http.endpoint import Endpoint, HttpProtocol, RequestContext
from hutch.http.errors import ApiError
from hutch.http.rate_limit import KeyRateLimit
from hutch.http.requests import JsonBodyReader, is_yaml, query_integer, query_text
from hutch.http.sse import event_stream
from hutch.kernel.fair_use import FairUse
from hutch.problems import Problem
from hutch.protocols.rep.ir.budget import ValidationBudget
from hutch.protocols.rep.ir.flow import Flow
from hutch.protocols.rep.ir.json_bounds import MAX_VALUES
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.ir.problems import InvalidFlow
from hutch.protocols.rep.ir.source.read import FlowSource
from hutch.protocols.rep.runtime import lease
from hutch.protocols.rep.runtime.context import ApprovalDecision
from hutch.protocols.rep.runtime.journal import OPERATOR_OWNERS
from hutch.protocols.rep.server import requests, responses
from hutch.protocols.rep.server.events import encoded_events
from hutch.protocols.rep.server.permissions import kinds_for, scopes_for
from hutch.protocols.rep.server.responses import json_response
from hutch.protocols.rep.server.run_retry import RunInProgress
from hutch.protocols.rep.server.run_start import RunStarter, check_kinds
from hutch.protocols.rep.server.supervisor import ORIGIN, FlowSupervisor, NotWaiting
from hutch.store.models import FlowRow, FlowRunHead, FlowRunRow, RunRow, now

PROTOCOL = "rep"
MAX_FLOW_BYTES = 2 * 1024 * 1024
"""Limit for a stored flow. It is decoded, encrypted and compared whenever it is used."""
MAX_YAML_BYTES = 256 * 1024
"""Limit for a flow in YAML, which takes much longer to decode than JSON."""
DEFAULT_STEPS = 100
"""Default number of finished steps per response."""
DEFAULT_APPROVALS = 100
"""Default number of approvals per response."""
_NO_APPROVALS: dict[str, Any] = {"approvals": [], "approvals_total": 0}


def routes(handlers: FlowHandlers, access: AccessControl) -> list[BaseRoute]:
    """Returns the routes of flows. `protocols.runs` has the routes that flow runs share with other runs."""
    route = handlers.protocol.route
    return [
        route("/flows", GET=handlers.flows, POST=handlers.register),
        route("/flows/{name}", GET=handlers.flow, DELETE=handlers.remove),
        route("/flows/{name}/runs", POST=handlers.start_run),
        route("/runs/{id}/steps", GET=handlers.steps),
        route("/runs/{id}/retry", POST=handlers.retry),
        route("/runs/{id}/approvals", GET=handlers.approvals),
        route("/runs/{id}/approvals/{step_id:path}", POST=handlers.approve),
    ]


class FlowHandlers:
    """Request handlers, one per route."""

    def __init__(self, flows: FlowSupervisor, access: AccessControl, fair_use: FairUse) -> None:
        self.settings = flows.settings
        self._access = access
        self._flows = flows
        self._fair_use = fair_use
        self._rate = KeyRateLimit.for_flows(flows.settings.flow_rate_limit)
        max_bytes, seconds = flows.settings.max_body_bytes, flows.settings.request_seconds
        self._body = JsonBodyReader(max_bytes, seconds, MAX_VALUES)
        self._flow_body = JsonBodyReader(min(max_bytes, MAX_FLOW_BYTES), seconds, MAX_VALUES)
        self.protocol = HttpProtocol(
            name=PROTOCOL,
            access=access,
            logger=logging.getLogger("hutch.rep"),
            convert=_own_error,
            render=lambda context, error: responses.error_response(error),
        )

        self.starter = RunStarter(flows)
        self.resume_endpoint = Endpoint(self.protocol, {"POST": self.resume})

    async def _check_rate(self, context: RequestContext) -> None:
        """Counts a request that creates work or data against the rate limit. The operator has no limit.

        Raises RateLimited.
        """
        if (identity := context.caller.identity) is not None:
            await self._rate.check(identity.key, (await self._flows.store()).rate_limits)

    # --- flows ---

    async def register(self, context: RequestContext) -> Response:
        """Stores a flow. An unchanged flow does not get a new version."""
        await self._check_rate(context)
        document: Any = None
        yaml_text: str | None = None
        if is_yaml(context.request.headers.get("content-type")):
            yaml_text = await self._flow_body.read_text(context.request, MAX_YAML_BYTES)
        else:
            try:
                document = await self._flow_body.read_object(context.request)
            except ApiError as error:
                if error.kind != "unsupported_media_type":
                    raise
                raise ApiError(error.kind, f"{error.message}; YAML needs application/yaml") from None

        def check(budget: ValidationBudget) -> tuple[Flow, str]:
            source = FlowSource(document) if yaml_text is None else _yaml_source(yaml_text, budget)
            flow = source.parse(budget)
            return flow, msgspec.json.encode(flow.document).decode()

        flow, text = await self._flows.validation.run(context.owner, check)
        check_kinds(context.caller, flow)
        store = await self._flows.store()
        before = await store.flows.newest_version(context.owner, flow.name)
        row = await store.flows.put(context.owner, flow.name, text, now())
        return json_response(
            responses.flow_head(row),
            200 if row.version == before else 201,
            {"Location": f"/flows/{flow.name}"},
        )

    async def flows(self, context: RequestContext) -> Response:
        limit = query_integer(context.query, "limit", 100, requests.MAX_PAGE_SIZE)
        after = query_text(context.query, "after")
        store = await self._flows.store()
        rows = await store.flows.list(context.owner, limit=limit, after=after)
        more = {"next": rows[-1].name} if len(rows) == limit else {}
        return json_response({"flows": [responses.flow_head(row) for row in rows], **more})

    async def flow(self, context: RequestContext) -> Response:
        version = query_integer(context.query, "version", 0, 2**31)
        return json_response(responses.flow_detail(await self._flow(context, version or None)))

    async def remove(self, context: RequestContext) -> Response:
        store = await self._flows.store()
        if not await store.flows.remove(context.owner, context.path_param("name")):
            raise responses.flow_not_found(context.path_param("name"))
        return json_response({"name": context.path_param("name")})

    async def _flow(self, context: RequestContext, version: int | None) -> FlowRow:
        name = context.path_param("name")
        store = await self._flows.store()
        flow = await store.flows.get(context.owner, name, version)
        if flow is None:
            raise responses.flow_not_found(name)
        return flow

    # --- runs ---

    async def start_run(self, context: RequestContext) -> Response:
        """Starts a run. Returns the existing run if it has the same id, flow and inputs."""
        await self._check_rate(context)
        body = requests.parse_start_run(await self._body.read_object(context.request, optional=True))
        identity = context.caller.identity
        row = await self.starter.prepare(
            context.caller,
            context.path_param("name"),
            body,
            user_name=None if identity is None else identity.user.name,
            key_id=None if identity is None else identity.key.id,
        )
        store = await self._flows.store()
        run = None if body.run_id is None else await store.journal.get(body.run_id)
        if run is None:
            # Count a new flow run as one execution. Its steps run in other processes, so this server cannot
            # count them.
            async with self._fair_use.count(context.owner):
                run = await self._flows.start_run(row)
        if run is not row and (
            run.owner not in _owners(context) or run.flow != row.flow or json.loads(run.inputs) != body.inputs
        ):
            raise ApiError(
                "conflict", f"run_id: run {row.run_id!r} already exists with another flow or other inputs"
            )
        return json_response(
            responses.run_head(run), 202 if run is row else 200, {"Location": f"/runs/{quote(run.run_id)}"}
        )

    async def detail(self, run: FlowRunHead, common: dict[str, Any]) -> Response:
        """Responds with a run. `common` are the fields that the runs of all protocols have."""
        detail = await self._load_run(run)
        store = await self._flows.store()
        counts = await store.journal.step_counts(run.run_id)
        pages = {**await self._steps_page(run.run_id), **await self._approvals_page(detail)}
        own = responses.run_detail(detail, counts, pages)
        state = lease.run_state(detail, common.get("waiting_for", ()))
        return json_response({**common, **own, "state": state})

    async def steps(self, context: RequestContext) -> Response:
        """Lists the finished steps of a run with their inputs and outputs."""
        limit = query_integer(context.query, "limit", DEFAULT_STEPS, requests.MAX_PAGE_SIZE)
        offset = query_integer(context.query, "offset", 0, 2**31, minimum=0)
        run = await self._flow_run(context)
        return json_response({"run_id": run.run_id, **await self._steps_page(run.run_id, limit, offset)})

    async def _steps_page(self, run_id: str, limit: int = DEFAULT_STEPS, offset: int = 0) -> dict[str, Any]:
        journal = (await self._flows.store()).journal
        records = await journal.records(run_id, limit=limit, offset=offset)
        is_complete = offset == 0 and len(records) < limit
        total = len(records) if is_complete else await journal.count_records(run_id)
        return {"steps": [responses.step_record(entry) for entry in records], "steps_total": total}

    async def events(self, context: RequestContext, run: FlowRunHead) -> ASGIApp:
        last_event_id = context.request.headers.get("last-event-id", "").strip()
        after = query_integer(context.query, "after", 0, 2**53, minimum=0)
        if last_event_id.isascii() and last_event_id.isdecimal():
            after = int(last_event_id[:18])
        store = await self._flows.store()
        return event_stream(encoded_events(store.journal, run, after, self._access))

    async def cancel(self, run: FlowRunHead) -> None:
        await self._flows.cancel(run.run_id)

    async def resume(self, context: RequestContext) -> Response:
        """Resumes a failed or cancelled run. Finished steps are not repeated."""
        run = await self._run_to_continue(context, "resume")
        if run.status == "completed":
            raise ApiError("conflict", f"Run {run.run_id!r} is already complete")
        await self._flows.resume(run)
        return json_response({"ok": True, "run_id": run.run_id}, 202)

    async def retry(self, context: RequestContext) -> Response:
        """Runs a flow run again from a step, with the recorded outputs of the steps before it."""
        from_step = requests.parse_retry(await self._body.read_object(context.request))
        run = await self._run_to_continue(context, "retry")
        flow = await self._flows.validation.run(
            run.owner, lambda budget: parse_flow(msgspec.json.decode(run.document), budget)
        )
        plan = await self._flows.retry(run, flow, from_step)
        body = {"ok": True, "run_id": run.run_id, "repeated": plan.repeated, "kept": plan.kept}
        return json_response(body, 202)

    async def _run_to_continue(self, context: RequestContext, command: str) -> FlowRunRow:
        """Loads a run that the caller may continue. Raises ApiError."""
        await self._check_rate(context)
        run = await self._load_run(await self._flow_run(context))
        if run.origin != ORIGIN and context.caller.identity is not None:
            raise ApiError(
                "conflict", f"Run {run.run_id!r} was started on the command line; use `hutch flow {command}`"
            )
        kinds = set(json.loads(run.options).get("kinds", ()))
        if not kinds <= {*kinds_for(context.caller)}:
            message = f"Run {run.run_id!r} was started with a key that has more scopes than this one"
            raise ApiError("forbidden", f"{message}; {key_advice(*scopes_for(kinds))}")
        return run

    # --- approvals ---

    async def approvals(self, context: RequestContext) -> Response:
        limit = query_integer(context.query, "limit", DEFAULT_APPROVALS, requests.MAX_PAGE_SIZE)
        offset = query_integer(context.query, "offset", 0, 2**31, minimum=0)
        run = await self._any_run(context)
        approvals_page = (
            _NO_APPROVALS if isinstance(run, RunRow) else await self._approvals_page(run, limit, offset)
        )
        return json_response({"run_id": run.run_id, **approvals_page})

    async def _approvals_page(
        self, run: FlowRunHead, limit: int = DEFAULT_APPROVALS, offset: int = 0
    ) -> dict[str, Any]:
        """Returns one page of the steps that wait for an approval, and the total number of these steps."""
        listed = await self._flows.questions(run, limit, offset)
        # Count only if there may be more questions than on this page.
        is_complete = offset == 0 and len(listed) < limit
        total = len(listed) if is_complete else await self._flows.count_questions(run)
        return {"approvals": listed, "approvals_total": total}

    async def approve(self, context: RequestContext) -> Response:
        decision = requests.parse_approval(await self._body.read_object(context.request))
        run = await self._flow_run(context)
        step_id = context.path_param("step_id")
        if not await self._flows.is_asking(run, step_id):
            raise ApiError("conflict", f"Step {step_id[:200]!r} is not waiting for an approval")
        identity = context.caller.identity
        # Ignore `by` in requests of users, who can approve only under their own names.
        by = decision.by if identity is None else identity.user.name
        await self._flows.approve(run, step_id, ApprovalDecision(decision.approved, by, decision.reason))
        return json_response(
            {"ok": True, "run_id": run.run_id, "step_id": step_id, "approved": decision.approved}
        )

    async def _load_run(self, run: FlowRunHead) -> FlowRunRow:
        """Loads the run with its inputs and outputs, which may be large."""
        store = await self._flows.store()
        row = await store.journal.get(run.run_id)
        if row is None:
            raise responses.run_not_found(run.run_id)
        return row

    async def _flow_run(self, context: RequestContext) -> FlowRunHead:
        run = await self._any_run(context)
        if isinstance(run, RunRow):
            raise ApiError("conflict", f"Run {run.run_id!r} is not a flow run")
        return run

    async def _any_run(self, context: RequestContext) -> FlowRunHead | RunRow:
        """Finds a run of any protocol. Runs of other protocols are found only after their end."""
        run_id = context.path_param("id")
        store = await self._flows.store()
        # Check the owner here, because another owner's flow run with this id must not hide a run of the
        # caller.
        flow_run = await store.journal.head(run_id)
        if flow_run is not None and _may_see(context, flow_run.owner):
            return flow_run
        run = await store.runs.get(run_id)
        if run is None:
            await store.write_behind.flush()
            run = await store.runs.get(run_id)
        if run is None or not _may_see(context, run.owner):
            raise responses.run_not_found(run_id)
        return run


def _yaml_source(text: str, budget: ValidationBudget) -> FlowSource:
    """Decodes a flow in YAML. Raises InvalidFlow."""
    from hutch.protocols.rep.ir.source.yaml import InvalidYaml, decode_yaml

    try:
        return FlowSource(decode_yaml(text, budget.check), text)
    except InvalidYaml as error:
        raise InvalidFlow([Problem("", f"expected YAML: {error}")]) from None


def _may_see(context: RequestContext, owner: str) -> bool:
    """Returns True if the caller may see, cancel and approve the runs of this owner. The operator may do so
    for all owners.
    """
    return context.caller.identity is None or owner == context.owner


def _owners(context: RequestContext) -> set[str]:
    """Returns the owner names of the caller. The operator owns runs under the names in OPERATOR_OWNERS as
    well.
    """
    is_user = context.caller.identity is not None
    return {context.owner} if is_user else {context.owner, *OPERATOR_OWNERS}


def _own_error(error: Exception) -> ApiError | None:
    match error:
        case InvalidFlow():
            return requests.invalid_request(error.problems)
        case NotWaiting() | RunInProgress():
            return ApiError("conflict", error.message)
    return None
