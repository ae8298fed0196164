"""Ways to break the requirements of an executor, each as what happens to its answers."""

from __future__ import annotations

from typing import Any

from tests.cli.compliance.executor import Asked, Reply, Spoil, failure, success


def at(where: str, **changes: Any) -> Spoil:
    """Changes fields of the body, or the status (`http`), of requests such as `GET /health`; ... removes."""

    def spoil(asked: Asked, reply: Reply) -> None:
        if f"{asked.method} {asked.path}" != where:
            return
        for name, value in changes.items():
            _change(reply, name, value)

    return spoil


def execution(**changes: Any) -> Spoil:
    """Of executions that succeed."""

    def spoil(asked: Asked, reply: Reply) -> None:
        if asked.executes and isinstance(reply.body, dict) and reply.body["success"]:
            for name, value in changes.items():
                _change(reply, name, value)

    return spoil


def _change(reply: Reply, name: str, value: Any) -> None:
    if name == "http":
        reply.status = value
    elif value is ...:
        reply.body.pop(name, None)
    elif isinstance(reply.body, dict):
        reply.body[name] = value


def capability(name: str, value: Any) -> Spoil:
    def spoil(asked: Asked, reply: Reply) -> None:
        if (asked.method, asked.path) == ("GET", "/info"):
            reply.body["capabilities"].pop(name)
            if value is not ...:
                reply.body["capabilities"][name] = value

    return spoil


def accepts(wrong: Any) -> Spoil:
    """Executes what should have been refused: requests with this body, or that have these fields."""

    def spoil(asked: Asked, reply: Reply) -> None:
        hit = asked.of(**wrong) if isinstance(wrong, dict) else asked.body == wrong
        if asked.executes and hit and asked.headers.get("authorization"):
            reply.status, reply.body = 200, success("done").body

    return spoil


def for_code(code: str, /, **changes: Any) -> Spoil:
    """Of errors with this code: another code, message or status."""

    def spoil(asked: Asked, reply: Reply) -> None:
        error = reply.body.get("error") if isinstance(reply.body, dict) else None
        if isinstance(error, dict) and error["code"] == code:
            reply.status = changes.get("http", reply.status)
            error.update((name, value) for name, value in changes.items() if name != "http")

    return spoil


def header(where: str, name: str, value: str | None) -> Spoil:
    def spoil(asked: Asked, reply: Reply) -> None:
        if f"{asked.method} {asked.path}" == where:
            reply.headers.pop(name)
            if value is not None:
                reply.headers[name] = value

    return spoil


def unstructured(status: int) -> Spoil:
    def spoil(asked: Asked, reply: Reply) -> None:
        if reply.status == status:
            reply.body = {"error": "no"}

    return spoil


def everybody_may(asked: Asked, reply: Reply) -> None:
    if reply.status == 401:
        reply.status, reply.body = 200, success("done").body


def wrong_keys_may(asked: Asked, reply: Reply) -> None:
    if asked.headers.get("authorization"):
        everybody_may(asked, reply)


def only_bearer(asked: Asked, reply: Reply) -> None:
    if asked.headers.get("authorization", "").startswith("bearer "):
        reply.status = 401


def takes_too_much(*, chunked: bool) -> Spoil:
    def spoil(asked: Asked, reply: Reply) -> None:
        if reply.status == 413 and asked.chunked == chunked:
            reply.status, reply.body = 200, success("done").body

    return spoil


def refuses_limit(asked: Asked, reply: Reply) -> None:
    if asked.size == 200_000:
        reply.status = 413


def for_path(path: str, status: int) -> Spoil:
    def spoil(asked: Asked, reply: Reply) -> None:
        if asked.raw_path == path:
            reply.status = status

    return spoil


def in_1_1(**changes: Any) -> Spoil:
    def spoil(asked: Asked, reply: Reply) -> None:
        if asked.headers.get("x-tpmjs-protocol-version") == "1.1" and reply.status in (200, 400):
            reply.body.update(changes)

    return spoil


def unknown_versions_fail(asked: Asked, reply: Reply) -> None:
    if asked.headers.get("x-tpmjs-protocol-version") not in (None, "1.0", "1.1"):
        reply.status = 400


def streams(body: bytes) -> Spoil:
    def spoil(asked: Asked, reply: Reply) -> None:
        if asked.headers.get("accept") == "text/event-stream":
            reply.body = body

    return spoil


def answers_no_stream(asked: Asked, reply: Reply) -> None:
    reply.headers.pop("Content-Type", None)


def busy_without_hint(asked: Asked, reply: Reply) -> None:
    if asked.executes:
        reply.status, reply.body = 429, failure(asked, "RATE_LIMITED").body


def speaks_1_0_only(asked: Asked, reply: Reply) -> None:
    if "errorCode" in reply.body:
        error = {"code": "INVALID_REQUEST", "message": "no"}
        reply.body = {"success": False, "error": error, "executionTimeMs": 0}


def has_no_stream(asked: Asked, reply: Reply) -> None:
    answers_no_stream(asked, reply)
    if (asked.method, asked.path) == ("GET", "/info"):
        reply.body["capabilities"] |= {"supportsStreaming": False, "executionModes": ["sync"]}
