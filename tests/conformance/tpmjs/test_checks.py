"""Every check of `hutch check` passes on a compliant executor and fails when its requirement is broken."""

from __future__ import annotations

import pytest
from tests.conformance.tpmjs import faults
from tests.conformance.tpmjs.fake_executor import PACKAGE, FakeExecutor, FakeReply, Fault, ReceivedRequest
from tests.conformance.tpmjs.faults import (
    accepts,
    accepts_oversized,
    at,
    capability,
    execution,
    for_code,
    for_path,
    header,
    in_1_1,
    streams,
    unstructured,
)
from tests.conformance.tpmjs.suite_helpers import ASYNC, NAMES, TIMEOUT, UNDER_LOAD, finding


@pytest.mark.parametrize("name", [name for name in NAMES if name not in (TIMEOUT, ASYNC)])
async def test_check_passes_on_compliant_executor(executor: FakeExecutor, name: str) -> None:
    found = await finding(executor, name)
    assert found.outcome == "passed", found.detail


async def test_asynchronous_call_is_followed_to_its_end(executor: FakeExecutor) -> None:
    executor.has_queue = True
    found = await finding(executor, ASYNC)
    assert found.outcome == "passed", found.detail
    assert "/runs/1" in [request.path for request in executor.requests]


@pytest.mark.parametrize(
    "fault",
    [
        capability("executionModes", ["sync", "stream"]),
        at("POST /execute-async", http=200),
        at("POST /execute-async", runId=...),
        at("POST /execute-async", statusUrl=""),
        at("GET /runs/1", http=404),
        at("GET /runs/1", status="failed"),
    ],
    ids=["modes", "status", "no run", "no url", "no page", "failed run"],
)
async def test_check_of_asynchronous_calls_fails(executor: FakeExecutor, fault: Fault) -> None:
    executor.has_queue = True
    executor.fault = fault
    found = await finding(executor, ASYNC)
    assert found.outcome == "failed", found.detail


RESULT = b'event: result\ndata: {"success": true, "output": 1}\n\n'
BAD_HEALTH_CHECK = {"name": "x", "description": "", "inputSchema": {}, "healthCheck": {"cleanup": [{}]}}
BROKEN: list[tuple[str, Fault]] = [
    ("GET /health returns 200", at("GET /health", http=503)),
    (
        "1.1: the health check that the tool declares",
        at("POST /load-and-describe", tool=BAD_HEALTH_CHECK),
    ),
    ("GET /health includes protocolVersion", at("GET /health", protocolVersion=...)),
    ("GET /health includes protocolVersion", at("GET /health", protocolVersion=1.0)),
    ("GET /health includes implementationVersion", at("GET /health", implementationVersion=...)),
    ("GET /health includes status ok", at("GET /health", status="healthy")),
    ("POST /execute-tool accepts valid request", execution(http=500)),
    ("POST /execute-tool accepts valid request", execution(success="yes")),
    ("POST /execute-tool returns success response", execution(output=...)),
    ("POST /execute-tool returns success response", execution(success=False)),
    ("POST /execute-tool returns executionTimeMs", execution(executionTimeMs=...)),
    ("POST /execute-tool returns executionTimeMs", execution(executionTimeMs=-1)),
    ("POST /execute-tool returns executionTimeMs", execution(executionTimeMs=1.5)),
    ("POST /execute-tool returns executionTimeMs", execution(executionTimeMs="1")),
    (
        "POST /execute-tool accepts a request without version",
        lambda request, reply: "version" in (request.body or {}) or setattr(reply, "status", 400),
    ),
    ("POST /execute-tool returns error for invalid tool", for_code("PACKAGE_NOT_FOUND", http=500)),
    ("POST /execute-tool returns error for invalid tool", for_code("PACKAGE_NOT_FOUND", code="E404")),
    ("POST /execute-tool returns error for invalid tool", for_code("PACKAGE_NOT_FOUND", message="")),
    ("POST /execute-tool refuses malformed JSON", for_code("INVALID_REQUEST", http=500)),
    ("POST /execute-tool refuses malformed JSON", unstructured(400)),
    ("POST /execute-tool refuses an empty body", accepts(None)),
    ("POST /execute-tool refuses a body that is null", accepts(None)),
    ("POST /execute-tool refuses a missing packageName", accepts({"packageName": None})),
    ("POST /execute-tool refuses a missing name", accepts({"name": None})),
    ("POST /execute-tool refuses params that are an array", accepts({"params": []})),
    ("CORS headers present", header("GET /health", "Access-Control-Allow-Origin", None)),
    ("CORS headers present", header("GET /health", "Access-Control-Allow-Origin", "https://tpmjs.com")),
    ("CORS headers present", header("POST /execute-tool", "Access-Control-Allow-Origin", None)),
    ("OPTIONS preflight works", at("OPTIONS /execute-tool", http=405)),
    ("OPTIONS preflight works", header("OPTIONS /health", "Access-Control-Allow-Methods", None)),
    ("OPTIONS preflight works", header("OPTIONS /execute-tool", "Access-Control-Allow-Headers", "*")),
    ("GET /info returns capabilities", at("GET /info", http=404)),
    ("GET /info returns capabilities", at("GET /info", capabilities=[])),
    ("GET /info returns capabilities", at("GET /info", name=...)),
    ("GET /info returns capabilities", capability("supportsCallbacks", "no")),
    ("protocolVersion in /info", at("GET /info", protocolVersion=...)),
    ("isolation in capabilities", capability("isolation", "strong")),
    ("executionModes in capabilities", capability("executionModes", "sync")),
    ("maxExecutionTimeMs in capabilities", capability("maxExecutionTimeMs", 59_999)),
    ("maxExecutionTimeMs in capabilities", capability("maxExecutionTimeMs", "120000")),
    ("maxRequestBodyBytes in capabilities", capability("maxRequestBodyBytes", 0)),
    ("OPTIONS preflight works for /info", at("OPTIONS /info", http=404)),
    ("Authentication enforced when configured", faults.accepts_without_key),
    ("Authentication enforced when configured", for_code("UNAUTHORIZED", code="NO")),
    ("A wrong key is refused", faults.accepts_wrong_keys),
    ("Request body limit enforced", accepts_oversized(chunked=False)),
    ("PACKAGE_NOT_FOUND for a package that does not exist", for_code("PACKAGE_NOT_FOUND", code="E")),
    ("TOOL_NOT_FOUND for an export that does not exist", for_code("TOOL_NOT_FOUND", code="E")),
    ("INVALID_REQUEST for an invalid request", for_code("INVALID_REQUEST", code="E")),
    ("Unknown endpoint is a structured 404", unstructured(404)),
    ("The tool's output is returned", execution(output=None)),
    ("POST //execute-tool works", for_path("//execute-tool", 404)),
    ("The same routes under /api", for_path("/api/info", 404)),
    ("The same routes under /api", for_path("/api/execute-tool", 500)),
    ("A wrong method is a structured 405 or 404", unstructured(405)),
    ("A wrong method is a structured 405 or 404", at("GET /execute-tool", http=200)),
    ("POST /execute-tool refuses a packageName that is not a string", accepts({"packageName": 7})),
    ("POST /execute-tool refuses env values that are not strings", accepts({"env": {"NAME": 7}})),
    ("POST /execute-tool refuses invalid packages and versions", accepts({"version": "file:."})),
    (
        "POST /execute-tool refuses invalid packages and versions",
        accepts({"packageName": f"{PACKAGE}; exit 0"}),
    ),
    ("GET /health and GET /info need no key", at("GET /info", http=401)),
    ("The scheme bearer is accepted in lower case", faults.rejects_lower_case_bearer),
    ("A body of maxRequestBodyBytes is accepted", faults.refuses_limit),
    ("Request body limit enforced without Content-Length", accepts_oversized(chunked=True)),
    ("Concurrent executions are answered or get Retry-After", faults.busy_without_hint),
    ("1.1: a failed execution", in_1_1(retryable=None)),
    ("1.1: a failed execution", in_1_1(error={"message": "no"})),
    ("1.1: a failed execution", in_1_1(errorStage="install")),
    ("1.1: a refused request", in_1_1(errorCode="TOOL_NOT_FOUND")),
    ("1.1: POST /load-and-describe", at("POST /load-and-describe", tool={"name": "t"})),
    ("1.1: POST /load-and-describe", at("POST /load-and-describe", success=False)),
    ("An unknown protocol version is answered as 1.0", faults.unknown_versions_fail),
    ("Streaming: POST /execute-tool with Accept: text/event-stream", faults.answers_no_stream),
    ("Streaming: POST /execute-tool with Accept: text/event-stream", streams(b"")),
    ("Streaming: POST /execute-tool with Accept: text/event-stream", streams(RESULT + RESULT)),
    ("Streaming: POST /execute-tool with Accept: text/event-stream", streams(b"data: {}\n\n" + RESULT)),
    ("Streaming: POST /execute-tool with Accept: text/event-stream", streams(b"event: result\ndata: x\n\n")),
    ("POST /validate-tool", at("POST /validate-tool", tool=None)),
    ("POST /validate-tool", for_code("TOOL_NOT_FOUND", code="E")),
    ("POST /execute-batch", at("POST /execute-batch", results=[])),
    ("POST /execute-batch", at("POST /execute-batch", executionTimeMs=...)),
    ("POST /execute-batch", at("POST /execute-batch", success=...)),
    (ASYNC, at("POST /execute-async", http=200)),
    (ASYNC, capability("supportsCallbacks", True)),
    ("GET /openapi.json", at("GET /openapi.json", openapi=...)),
    ("GET /openapi.json", at("GET /openapi.json", paths={"/health": {}})),
]


@pytest.mark.parametrize(
    ("name", "fault"), BROKEN, ids=[f"{name}, {number}" for number, (name, _) in enumerate(BROKEN)]
)
async def test_check_fails_when_its_requirement_is_broken(
    executor: FakeExecutor, name: str, fault: Fault
) -> None:
    executor.fault = fault
    found = await finding(executor, name)
    assert found.outcome == "failed", found.detail
    assert found.detail


def test_every_check_has_a_failing_case() -> None:
    elsewhere = {
        TIMEOUT,
        UNDER_LOAD,
        "GET /health answers within a second",
        "CORS headers on errors",
        "A failed installation reveals nothing about the server",
    }
    assert {name for name, _ in BROKEN} | elsewhere == set(NAMES)


@pytest.mark.parametrize("status", [400, 401, 404])
async def test_cors_headers_are_required_on_every_error(executor: FakeExecutor, status: int) -> None:
    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if reply.status == status:
            reply.headers.clear()

    executor.fault = fault
    found = await finding(executor, "CORS headers on errors")
    assert (found.outcome, f"({status})" in found.detail) == ("failed", True)


@pytest.mark.parametrize(
    "message",
    [
        "npm ERR! code E404",
        "npm error 404 Not Found",
        "ENOENT: no such file, open '/tmp/executor-1/package.json'",
        "see /root/.npm/_logs/2026-02-03T12_00_00_000Z-debug-0.log",
        "Cannot find package in C:\\executor",
        "no\n    at install (install.js:12:3)",
        "file:///app/index.js",
    ],
)
async def test_failed_installation_that_reveals_server_details_fails(
    executor: FakeExecutor, message: str
) -> None:
    executor.fault = for_code("PACKAGE_NOT_FOUND", message=message)
    found = await finding(executor, "A failed installation reveals nothing about the server")
    assert found.outcome == "failed"
