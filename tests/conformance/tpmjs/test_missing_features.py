"""Missing keys, optional features and limits that cannot be tested."""

from __future__ import annotations

import pytest
from tests.conformance.tpmjs import faults
from tests.conformance.tpmjs.fake_executor import FakeExecutor, FakeReply, Fault, ReceivedRequest, answering
from tests.conformance.tpmjs.faults import at, capability, execution, for_path
from tests.conformance.tpmjs.suite_helpers import ASYNC, KEY, finding

from hutch.conformance.tpmjs.client import ExecutorClient, upload
from hutch.conformance.tpmjs.report import ExecutorReport


async def test_missing_capability_is_reported_like_in_the_specification(executor: FakeExecutor) -> None:
    executor.fault = capability("maxExecutionTimeMs", ...)
    found = await finding(executor, "maxExecutionTimeMs in capabilities")
    assert (
        ExecutorReport("", [found]).finding_lines(found)[0]
        == "  ✗ Missing: maxExecutionTimeMs in capabilities"
    )


async def test_capabilities_are_not_tested_without_info(executor: FakeExecutor) -> None:
    executor.fault = at("GET /info", http=404)
    found = await finding(executor, "maxExecutionTimeMs in capabilities")
    assert (found.outcome, "expected 200, got 404" in found.detail) == ("not_tested", True)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("The same routes under /api", for_path("/api/execute-tool", 404)),
        ("1.1: a failed execution", faults.supports_1_0_only),
        ("1.1: a refused request", faults.supports_1_0_only),
        ("1.1: POST /load-and-describe", at("POST /load-and-describe", http=404)),
        ("POST /validate-tool", at("POST /validate-tool", http=404)),
        ("POST /execute-batch", at("POST /execute-batch", http=404)),
        ("GET /openapi.json", at("GET /openapi.json", http=404)),
        (ASYNC, lambda request, reply: None),
        ("Streaming: POST /execute-tool with Accept: text/event-stream", faults.has_no_stream),
    ],
)
async def test_missing_optional_feature_is_not_a_failure(
    executor: FakeExecutor, name: str, fault: Fault
) -> None:
    executor.fault = fault
    found = await finding(executor, name)
    assert (found.outcome, found.detail) == ("not_supported", "not supported by this executor")


@pytest.mark.parametrize(
    "name",
    [
        "Authentication enforced when configured",
        "A wrong key is refused",
        "GET /health and GET /info need no key",
        "The scheme bearer is accepted in lower case",
    ],
)
async def test_keys_are_not_tested_on_an_open_executor(executor: FakeExecutor, name: str) -> None:
    executor.key = None
    assert (await finding(executor, name, key=None)).outcome == "not_tested"


async def test_executor_that_ignores_keys_fails(executor: FakeExecutor) -> None:
    executor.key = None
    assert (await finding(executor, "Authentication enforced when configured")).outcome == "failed"


@pytest.mark.parametrize(
    ("key", "reason"), [(None, "give it with --api-key"), ("another", "it did not accept the one")]
)
async def test_executions_are_not_tested_without_the_key(
    executor: FakeExecutor, key: str | None, reason: str
) -> None:
    found = await finding(executor, "POST /execute-tool accepts valid request", key=key)
    assert (found.outcome, reason in found.detail) == ("not_tested", True)
    assert (await finding(executor, "A wrong key is refused", key=key)).outcome == "passed"


async def test_authentication_is_half_tested_without_the_key(executor: FakeExecutor) -> None:
    found = await finding(executor, "Authentication enforced when configured", key=None)
    assert (found.outcome, "refused without a key" in found.detail) == ("not_tested", True)


async def test_protected_health_and_info_are_requested_with_the_key(executor: FakeExecutor) -> None:
    """The specification's text allows `/health` and `/info` to require a key. The specification's test suite
    does not.
    """

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if request.method == "GET" and "authorization" not in request.headers:
            reply.status = 401

    executor.fault = fault
    for name in ("GET /health returns 200", "GET /info returns capabilities"):
        assert (await finding(executor, name)).outcome == "passed"
    assert (await finding(executor, "GET /health and GET /info need no key")).outcome == "failed"


async def test_key_is_redacted_in_details(executor: FakeExecutor) -> None:
    executor.fault = execution(http=500, success=f"you sent {KEY}")
    found = await finding(executor, "POST /execute-tool accepts valid request")
    assert (found.outcome, "you sent ***" in found.detail, KEY in found.detail) == ("failed", True, False)


async def test_refusal_is_read_from_a_server_that_closes_during_the_upload() -> None:
    refusal = b'{"success": false, "error": {"code": "PAYLOAD_TOO_LARGE", "message": "no"}}'
    response = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal)
    with answering(response, reset=True) as address:
        async with ExecutorClient(f"http://{address}", None, print) as client:
            for chunked in (False, True):
                answer = await upload(client, "/execute-tool", b" " * 10_000_000, 10, chunked=chunked)
                assert answer.refusal(413)["code"] == "PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize(
    ("value", "reason"), [(..., "no maxRequestBodyBytes"), (2**40, "is too much to send")]
)
async def test_unknown_or_huge_body_limit_is_not_tested(
    executor: FakeExecutor, value: object, reason: str
) -> None:
    executor.fault = capability("maxRequestBodyBytes", value)
    found = await finding(executor, "Request body limit enforced")
    assert (found.outcome, reason in found.detail) == ("not_tested", True)
