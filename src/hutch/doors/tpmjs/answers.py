"""What the door says: successes, and failures in the words of protocol 1.0 and of 1.1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from starlette.responses import Response

from hutch.doors.tpmjs.calls import ToolFailure, ToolOutcome
from hutch.session.jsonvalue import encode_value

Version = Literal["1.0", "1.1"]
VERSIONS: tuple[Version, ...] = ("1.0", "1.1")
VERSION_HEADER = "X-TPMJS-Protocol-Version"


class Kind(NamedTuple):
    """One way to fail, on both wires."""

    status: int
    code: str
    """In 1.0."""
    stage: str
    code_1_1: str
    retryable: bool = False


KINDS = {
    # What the request is refused for: nothing has happened.
    "invalid_request": Kind(400, "INVALID_REQUEST", "request", "INVALID_REQUEST"),
    "unauthorized": Kind(401, "UNAUTHORIZED", "request", "AUTHENTICATION_REQUIRED"),
    "forbidden": Kind(403, "FORBIDDEN", "request", "INVALID_REQUEST"),
    "too_large": Kind(413, "PAYLOAD_TOO_LARGE", "request", "INVALID_REQUEST"),
    "media_type": Kind(415, "UNSUPPORTED_MEDIA_TYPE", "request", "INVALID_REQUEST"),
    "rate_limited": Kind(429, "RATE_LIMITED", "executor", "EXECUTOR_UNAVAILABLE", retryable=True),
    "busy": Kind(503, "BUSY", "executor", "EXECUTOR_UNAVAILABLE", retryable=True),
    "internal": Kind(500, "INTERNAL_ERROR", "executor", "EXECUTOR_INTERNAL_ERROR"),
    # How a tool can fail. 1.0 has six words for these.
    "package_not_found": Kind(200, "PACKAGE_NOT_FOUND", "load", "PACKAGE_IMPORT_FAILED"),
    "import_failed": Kind(200, "TOOL_EXECUTION_ERROR", "load", "PACKAGE_IMPORT_FAILED"),
    "tool_not_found": Kind(200, "TOOL_NOT_FOUND", "load", "TOOL_NOT_FOUND"),
    "tool_invalid": Kind(200, "TOOL_INVALID", "load", "INVALID_TOOL"),
    "configuration_required": Kind(200, "TOOL_EXECUTION_ERROR", "load", "TOOL_CONFIGURATION_REQUIRED"),
    "schema_unavailable": Kind(200, "TOOL_INVALID", "load", "SCHEMA_UNAVAILABLE"),
    "execution_error": Kind(200, "TOOL_EXECUTION_ERROR", "execute", "TOOL_EXECUTION_FAILED"),
    "timeout": Kind(200, "EXECUTION_TIMEOUT", "execute", "EXECUTION_TIMEOUT"),
}
REFUSED = {401: "unauthorized", 403: "forbidden", 503: "busy"}


class Failed(Exception):
    """Why there is no output, in words that the caller may see."""

    def __init__(
        self,
        kind: str,
        message: str,
        *,
        retryable: bool | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = KINDS[kind]
        self.message = message
        self.retryable = self.kind.retryable if retryable is None else retryable
        self.headers = headers

    @classmethod
    def of(cls, failure: ToolFailure) -> Failed:
        return cls(failure.code, failure.message, retryable=failure.retryable)

    def fields(self, version: Version) -> dict[str, Any]:
        """What a failure says in this version."""
        if version == "1.0":
            return {"success": False, "error": {"code": self.kind.code, "message": self.message}}
        return {
            "success": False,
            "error": self.message,
            "errorStage": self.kind.stage,
            "errorCode": self.kind.code_1_1,
            "retryable": self.retryable,
        }


class Answer(NamedTuple):
    """An answer before it is sent, alone, in a batch or at the end of a stream."""

    body: bytes
    ok: bool = True
    status: int = 200
    headers: Mapping[str, str] | None = None

    def response(self) -> Response:
        return Response(self.body, self.status, self.headers, "application/json")


def failed(failure: Failed, version: Version, elapsed_ms: int | None, **more: Any) -> Answer:
    """A failure; with the time that it took unless nothing was asked of the executor yet."""
    fields = {**failure.fields(version), "executionTimeMs": elapsed_ms, **more}
    if elapsed_ms is None and version == "1.0":
        del fields["executionTimeMs"]
    elif elapsed_ms is None:
        fields["executionTimeMs"] = 0
    return Answer(encode_value(fields), False, failure.kind.status, failure.headers)


def executed(outcome: ToolOutcome, version: Version, elapsed_ms: int) -> Answer:
    """How an execution ended. The output stays the bytes that it is."""
    more: dict[str, Any] = {}
    if outcome.resolved_version is not None:
        more["resolvedVersion"] = outcome.resolved_version
    if outcome.logs:
        more["logs"] = outcome.logs
    if outcome.logs_truncated:
        more["logsTruncated"] = True
    if outcome.run_id is not None:
        more["runId"] = outcome.run_id
    if outcome.failure is not None:
        return failed(Failed.of(outcome.failure), version, elapsed_ms, **more)
    rest = encode_value({"executionTimeMs": elapsed_ms, **more})
    return Answer(b'{"success":true,"output":%b,%b' % (outcome.output_json or b"null", rest[1:]))


def described(tool: bytes, resolved_version: str | None) -> Answer:
    """What a tool is; `tool` is JSON already."""
    version = b"" if resolved_version is None else b',"resolvedVersion":' + encode_value(resolved_version)
    return Answer(b'{"success":true,"tool":%b%b}' % (tool, version))


def together(answers: Sequence[Answer], elapsed_ms: int) -> Answer:
    """The answers of a batch, in order; a success when all are."""
    ok = all(answer.ok for answer in answers)
    results = b",".join(answer.body for answer in answers)
    words = (b"true" if ok else b"false", results, elapsed_ms)
    return Answer(b'{"success":%b,"results":[%b],"executionTimeMs":%d}' % words, ok)
