"""Faults: functions that change the responses of the fake executor."""

from __future__ import annotations

from typing import Any

from tests.conformance.tpmjs.fake_executor import FakeReply, Fault, ReceivedRequest, failure, success


def at(where: str, **changes: Any) -> Fault:
    """Changes fields of the responses to a request such as `GET /health`. `http` changes the status. The
    value `...` removes a field.
    """

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if f"{request.method} {request.path}" != where:
            return
        for name, value in changes.items():
            _change(reply, name, value)

    return fault


def execution(**changes: Any) -> Fault:
    """Changes the responses of successful executions."""

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if request.is_execution and isinstance(reply.body, dict) and reply.body["success"]:
            for name, value in changes.items():
                _change(reply, name, value)

    return fault


def _change(reply: FakeReply, name: str, value: Any) -> None:
    if name == "http":
        reply.status = value
    elif value is ...:
        reply.body.pop(name, None)
    elif isinstance(reply.body, dict):
        reply.body[name] = value


def capability(name: str, value: Any) -> Fault:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if (request.method, request.path) == ("GET", "/info"):
            reply.body["capabilities"].pop(name)
            if value is not ...:
                reply.body["capabilities"][name] = value

    return fault


def accepts(invalid: Any) -> Fault:
    """Answers execution requests that have this invalid body, or these invalid fields, with success."""

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        matches = request.has(**invalid) if isinstance(invalid, dict) else request.body == invalid
        if request.is_execution and matches and request.headers.get("authorization"):
            reply.status, reply.body = 200, success("done").body

    return fault


def for_code(code: str, /, **changes: Any) -> Fault:
    """Changes the code, the message or the status of errors that have this code."""

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        error = reply.body.get("error") if isinstance(reply.body, dict) else None
        if isinstance(error, dict) and error["code"] == code:
            reply.status = changes.get("http", reply.status)
            error.update((name, value) for name, value in changes.items() if name != "http")

    return fault


def header(where: str, name: str, value: str | None) -> Fault:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if f"{request.method} {request.path}" == where:
            reply.headers.pop(name)
            if value is not None:
                reply.headers[name] = value

    return fault


def unstructured(status: int) -> Fault:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if reply.status == status:
            reply.body = {"error": "no"}

    return fault


def accepts_without_key(request: ReceivedRequest, reply: FakeReply) -> None:
    if reply.status == 401:
        reply.status, reply.body = 200, success("done").body


def accepts_wrong_keys(request: ReceivedRequest, reply: FakeReply) -> None:
    if request.headers.get("authorization"):
        accepts_without_key(request, reply)


def rejects_lower_case_bearer(request: ReceivedRequest, reply: FakeReply) -> None:
    if request.headers.get("authorization", "").startswith("bearer "):
        reply.status = 401


def accepts_oversized(*, chunked: bool) -> Fault:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if reply.status == 413 and request.chunked == chunked:
            reply.status, reply.body = 200, success("done").body

    return fault


def refuses_limit(request: ReceivedRequest, reply: FakeReply) -> None:
    if request.size == 200_000:
        reply.status = 413


def for_path(path: str, status: int) -> Fault:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if request.raw_path == path:
            reply.status = status

    return fault


def in_1_1(**changes: Any) -> Fault:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if request.headers.get("x-tpmjs-protocol-version") == "1.1" and reply.status in (200, 400):
            reply.body.update(changes)

    return fault


def unknown_versions_fail(request: ReceivedRequest, reply: FakeReply) -> None:
    if request.headers.get("x-tpmjs-protocol-version") not in (None, "1.0", "1.1"):
        reply.status = 400


def streams(body: bytes) -> Fault:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if request.headers.get("accept") == "text/event-stream":
            reply.body = body

    return fault


def answers_no_stream(request: ReceivedRequest, reply: FakeReply) -> None:
    reply.headers.pop("Content-Type", None)


def busy_without_hint(request: ReceivedRequest, reply: FakeReply) -> None:
    if request.is_execution:
        reply.status, reply.body = 429, failure(request, "RATE_LIMITED").body


def supports_1_0_only(request: ReceivedRequest, reply: FakeReply) -> None:
    if "errorCode" in reply.body:
        error = {"code": "INVALID_REQUEST", "message": "no"}
        reply.body = {"success": False, "error": error, "executionTimeMs": 0}


def has_no_stream(request: ReceivedRequest, reply: FakeReply) -> None:
    answers_no_stream(request, reply)
    if (request.method, request.path) == ("GET", "/info"):
        reply.body["capabilities"] |= {"supportsStreaming": False, "executionModes": ["sync"]}
