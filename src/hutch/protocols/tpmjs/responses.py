"""Responses and errors in the formats of protocol 1.0 and 1.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from starlette.responses import Response

from hutch.http.errors import ApiError
from hutch.protocols.tpmjs.models import ToolFailure, ToolOutcome
from hutch.queue.models import Accepted
from hutch.session.json_value import encode_value

ProtocolVersion = Literal["1.0", "1.1"]
VERSIONS: tuple[ProtocolVersion, ...] = ("1.0", "1.1")
VERSION_HEADER = "X-TPMJS-Protocol-Version"


class FailureKind(NamedTuple):
    """A kind of failure, with its codes in both protocol versions."""

    status: int
    code: str
    """Error code in version 1.0."""
    stage: str
    code_1_1: str
    retryable: bool = False


FAILURE_KINDS = {
    # Refused requests. Nothing has been executed.
    "invalid_request": FailureKind(400, "INVALID_REQUEST", "request", "INVALID_REQUEST"),
    "unauthorized": FailureKind(401, "UNAUTHORIZED", "request", "AUTHENTICATION_REQUIRED"),
    "forbidden": FailureKind(403, "FORBIDDEN", "request", "INVALID_REQUEST"),
    "too_large": FailureKind(413, "PAYLOAD_TOO_LARGE", "request", "INVALID_REQUEST"),
    "conflict": FailureKind(409, "CONFLICT", "request", "INVALID_REQUEST"),
    "unsupported_media_type": FailureKind(415, "UNSUPPORTED_MEDIA_TYPE", "request", "INVALID_REQUEST"),
    "rate_limited": FailureKind(429, "RATE_LIMITED", "executor", "EXECUTOR_UNAVAILABLE", retryable=True),
    "busy": FailureKind(503, "BUSY", "executor", "EXECUTOR_UNAVAILABLE", retryable=True),
    "unavailable": FailureKind(503, "BUSY", "executor", "EXECUTOR_UNAVAILABLE", retryable=True),
    "internal": FailureKind(500, "INTERNAL_ERROR", "executor", "EXECUTOR_INTERNAL_ERROR"),
    # Failures of a tool. Version 1.0 has only six codes for them.
    "package_not_found": FailureKind(200, "PACKAGE_NOT_FOUND", "load", "PACKAGE_IMPORT_FAILED"),
    # Use PACKAGE_NOT_FOUND, which the specification defines as: a package "could not be installed".
    "package_too_large": FailureKind(200, "PACKAGE_NOT_FOUND", "load", "PACKAGE_IMPORT_FAILED"),
    "import_failed": FailureKind(200, "TOOL_EXECUTION_ERROR", "load", "PACKAGE_IMPORT_FAILED"),
    "tool_not_found": FailureKind(200, "TOOL_NOT_FOUND", "load", "TOOL_NOT_FOUND"),
    "tool_invalid": FailureKind(200, "TOOL_INVALID", "load", "INVALID_TOOL"),
    # Use TOOL_INVALID, because version 1.0 has no other code for a function without `.execute()`.
    "configuration_required": FailureKind(200, "TOOL_INVALID", "load", "TOOL_CONFIGURATION_REQUIRED"),
    # The status is 400, because the client has to change the request. Parameters are checked only if the
    # client asks for it or the operator requires it.
    "invalid_params": FailureKind(400, "INVALID_REQUEST", "request", "INVALID_REQUEST"),
    "schema_unavailable": FailureKind(200, "TOOL_INVALID", "load", "SCHEMA_UNAVAILABLE"),
    "execution_error": FailureKind(200, "TOOL_EXECUTION_ERROR", "execute", "TOOL_EXECUTION_FAILED"),
    "timeout": FailureKind(200, "EXECUTION_TIMEOUT", "execute", "EXECUTION_TIMEOUT"),
}


class TpmjsResponse(NamedTuple):
    """An encoded response. It is sent alone, in a batch, or as the last event of a stream."""

    body: bytes
    ok: bool = True
    status: int = 200
    headers: Mapping[str, str] | None = None

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, "application/json")


def error_response(
    error: ApiError, version: ProtocolVersion, elapsed_ms: int | None, **more: Any
) -> TpmjsResponse:
    """Builds an error response.

    `elapsed_ms` is None if the client was denied access. Version 1.0 then omits the duration, and version 1.1
    reports 0.
    """
    kind = FAILURE_KINDS[error.kind]
    fields: dict[str, Any] = {"success": False}
    limit = {"limit": error.extra["limit"]} if "limit" in error.extra else {}
    if version == "1.0":
        fields["error"] = {"code": kind.code, "message": error.message, **limit}
    else:
        fields |= {
            "error": error.message,
            "errorStage": kind.stage,
            "errorCode": kind.code_1_1,
            "retryable": error.extra.get("retryable", kind.retryable),
            **limit,
        }
    if elapsed_ms is not None or version != "1.0":
        fields["executionTimeMs"] = elapsed_ms or 0
    return TpmjsResponse(encode_value({**fields, **more}), False, kind.status, error.headers)


def tool_error(failure: ToolFailure) -> ApiError:
    return ApiError(failure.code, failure.message, retryable=failure.retryable)


def execution_response(outcome: ToolOutcome, version: ProtocolVersion, elapsed_ms: int) -> TpmjsResponse:
    """Encodes the outcome of an execution. The output is inserted as unchanged JSON."""
    more: dict[str, Any] = {}
    if outcome.resolved_version is not None:
        more["resolvedVersion"] = outcome.resolved_version
    if outcome.warnings:
        more["warnings"] = outcome.warnings
    if outcome.logs:
        more["logs"] = outcome.logs
    if outcome.logs_truncated:
        more["logsTruncated"] = True
    if outcome.run_id is not None:
        more["runId"] = outcome.run_id
    if outcome.failure is not None:
        if outcome.failure.location is not None:
            more["errorLocation"] = outcome.failure.location
        return error_response(tool_error(outcome.failure), version, elapsed_ms, **more)
    rest = encode_value({"executionTimeMs": elapsed_ms, **more})
    return TpmjsResponse(b'{"success":true,"output":%b,%b' % (outcome.output_json or b"null", rest[1:]))


def accepted_response(accepted: Accepted, replayed_header: str) -> TpmjsResponse:
    """Builds the response to an asynchronous call."""
    status_url = f"/runs/{accepted.run_id}"
    body = encode_value({"success": True, "runId": accepted.run_id, "statusUrl": status_url})
    headers = {"Location": status_url, **({} if accepted.is_new else {replayed_header: "true"})}
    return TpmjsResponse(body, True, 202, headers)


def description_response(tool: bytes, resolved_version: str | None) -> TpmjsResponse:
    """Builds the response for a description. `tool` is the description as JSON."""
    version = b"" if resolved_version is None else b',"resolvedVersion":' + encode_value(resolved_version)
    return TpmjsResponse(b'{"success":true,"tool":%b%b}' % (tool, version))


def batch_response(responses: Sequence[TpmjsResponse], elapsed_ms: int) -> TpmjsResponse:
    """Joins the responses of a batch in order. The batch is successful if all calls are."""
    ok = all(response.ok for response in responses)
    results = b",".join(response.body for response in responses)
    values = (b"true" if ok else b"false", results, elapsed_ms)
    return TpmjsResponse(b'{"success":%b,"results":[%b],"executionTimeMs":%d}' % values, ok)
