"""HTTP handlers that deliver results of pending calls, and continue suspended runs."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hutch.errors import ResumeError
from hutch.http.auth import AccessControl
from hutch.http.endpoint import RequestContext
from hutch.http.errors import ApiError, to_api_error
from hutch.http.lifecycle import cancel_on_disconnect
from hutch.http.rate_limit import CallRateLimit
from hutch.http.requests import JsonBodyReader, query_flag
from hutch.http.run_results import result_json
from hutch.http.server.connections import parse_address
from hutch.kernel.durable.suspended_runs import SuspendedRuns
from hutch.protocols.runs.responses import JsonBody, error_response
from hutch.session.suspension import Answer, decoded_answer, with_errors
from hutch.settings import Settings

logger = logging.getLogger("hutch.runs.api")

CALLS_PER_MINUTE = 120
"""Maximum number of requests with tokens per minute from one address, or from one IPv6 network of 64 bits. A
token needs no API key, so guessing tokens has to be slow.
"""
MAX_TOKEN_CHARS = 1_024


class ResumeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /runs/{id}/resume`."""

    results: dict[str, Any] = {}
    errors: dict[str, str] = {}


class ResumeHandlers:
    def __init__(self, settings: Settings, access: AccessControl, runs: SuspendedRuns) -> None:
        self._access = access
        self._runs = runs
        self._body = JsonBodyReader(settings.max_body_bytes, settings.request_seconds)
        self._rate = CallRateLimit(CALLS_PER_MINUTE, noun="results of calls", limit_name="calls_per_minute")

    async def resolve(self, request: Request) -> Response:
        """Delivers the result of a deferred call. The token in the path is the only authentication."""
        try:
            if (refusal := self._access.check(request, public=True)) is not None:
                raise refusal.error()
            with self._access.track_request():
                self._rate.check("" if request.client is None else parse_address(request.client.host).group)
                return await self._resolve(request)
        except Exception as error:
            return error_response(resume_error(error) or to_api_error(error, logger))

    async def _resolve(self, request: Request) -> Response:
        token = str(request.path_params["token"])
        if len(token) > MAX_TOKEN_CHARS:
            raise ApiError("not_found", "There is no pending call with this token.")
        # Check the token first, so that the body of a request without a valid token is not read.
        await self._runs.calls.find(token)
        answer = await _answer_of_body(await self._body.read_object(request))
        run_id = await self._runs.calls.resolve(token, answer)
        await self._runs.background.start_answered_run(run_id)
        return JsonBody({"ok": True})

    async def resume(self, context: RequestContext, run_id: str, owner: str) -> Response:
        """Delivers results to a suspended run of code and continues it with the tools of this server."""
        body = await self._body.read_object(context.request, optional=True)
        try:
            parsed = msgspec.convert(body, ResumeBody)
        except msgspec.ValidationError as error:
            raise ApiError("invalid_request", f"body: {error}") from None
        results = {call_id: await decoded_answer(value) for call_id, value in parsed.results.items()}
        answers = with_errors(results, parsed.errors)
        await self._runs.background.continue_with(run_id, owner, answers)
        if query_flag(context.query, "wait"):
            waiting = self._runs.ends.wait(run_id, owner, [], lambda: self._access.is_draining)
            result = await cancel_on_disconnect(context.request.receive, waiting, self._access)
            if result is not None:
                return Response(await result_json(result), media_type="application/json")
        return JsonBody({"ok": True, "run_id": run_id}, 202)


async def _answer_of_body(body: dict[str, Any]) -> Answer:
    if len(body) != 1 or not body.keys() <= {"result", "error"}:
        names = ", ".join(sorted(body)[:5])[:200] or "nothing"
        raise ApiError("invalid_request", f"body: expected either `result` or `error`, got {names}")
    if "result" in body:
        return await decoded_answer(body["result"])
    if not isinstance(body["error"], str):
        raise ApiError("invalid_request", "error: expected a string with the message for the guest")
    return Answer(code="tool_error", message=body["error"])


def resume_error(error: Exception) -> ApiError | None:
    if not isinstance(error, ResumeError):
        return None
    # The run exists, so `checkpoint_not_found` means that it was never suspended.
    return ApiError(
        "not_found" if error.code == "unknown_call" else "conflict", str(error), reason=error.code
    )
