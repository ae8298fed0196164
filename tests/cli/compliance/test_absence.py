"""What is not there: keys that were not given, what is optional, and limits that cannot be tried."""

from __future__ import annotations

import pytest
from tests.cli.compliance import spoils
from tests.cli.compliance.asking import ASYNC, KEY, finding
from tests.cli.compliance.executor import Asked, Executor, Reply, Spoil, answering
from tests.cli.compliance.spoils import at, capability, execution, for_path

from hutch.cli.compliance.client import Client
from hutch.cli.compliance.upload import upload


async def test_capability_that_is_not_there_is_named_as_the_specification_does(executor: Executor) -> None:
    executor.spoil = capability("maxExecutionTimeMs", ...)
    found = await finding(executor, "maxExecutionTimeMs in capabilities")
    assert found.lines()[0] == "  ✗ Missing: maxExecutionTimeMs in capabilities"


async def test_capabilities_are_not_tested_where_there_is_no_info(executor: Executor) -> None:
    executor.spoil = at("GET /info", http=404)
    found = await finding(executor, "maxExecutionTimeMs in capabilities")
    assert (found.outcome, "expected 200, got 404" in found.detail) == ("not_tested", True)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("The same routes under /api", for_path("/api/execute-tool", 404)),
        ("1.1: a failed execution", spoils.speaks_1_0_only),
        ("1.1: a refused request", spoils.speaks_1_0_only),
        ("1.1: POST /load-and-describe", at("POST /load-and-describe", http=404)),
        ("POST /validate-tool", at("POST /validate-tool", http=404)),
        ("POST /execute-batch", at("POST /execute-batch", http=404)),
        ("GET /openapi.json", at("GET /openapi.json", http=404)),
        (ASYNC, lambda asked, reply: None),
        ("Streaming: POST /execute-tool with Accept: text/event-stream", spoils.has_no_stream),
    ],
)
async def test_what_is_optional_and_not_there_is_no_failure(
    executor: Executor, name: str, spoil: Spoil
) -> None:
    executor.spoil = spoil
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
async def test_keys_are_not_tested_where_there_is_none(executor: Executor, name: str) -> None:
    executor.key = None
    assert (await finding(executor, name, key=None)).outcome == "not_tested"


async def test_executor_that_ignores_the_key_it_should_have_fails(executor: Executor) -> None:
    executor.key = None
    assert (await finding(executor, "Authentication enforced when configured")).outcome == "failed"


@pytest.mark.parametrize(
    ("key", "reason"), [(None, "give it with --api-key"), ("another", "it did not accept the one")]
)
async def test_executions_are_not_tested_without_the_key(
    executor: Executor, key: str | None, reason: str
) -> None:
    found = await finding(executor, "POST /execute-tool accepts valid request", key=key)
    assert (found.outcome, reason in found.detail) == ("not_tested", True)
    assert (await finding(executor, "A wrong key is refused", key=key)).outcome == "passed"


async def test_key_that_is_not_given_leaves_authentication_half_tested(executor: Executor) -> None:
    found = await finding(executor, "Authentication enforced when configured", key=None)
    assert (found.outcome, "refused without a key" in found.detail) == ("not_tested", True)


async def test_closed_health_and_info_are_asked_with_the_key(executor: Executor) -> None:
    """The specification's words allow it, its test suite does not."""

    def spoil(asked: Asked, reply: Reply) -> None:
        if asked.method == "GET" and "authorization" not in asked.headers:
            reply.status = 401

    executor.spoil = spoil
    for name in ("GET /health returns 200", "GET /info returns capabilities"):
        assert (await finding(executor, name)).outcome == "passed"
    assert (await finding(executor, "GET /health and GET /info need no key")).outcome == "failed"


async def test_key_is_shown_to_nobody(executor: Executor) -> None:
    executor.spoil = execution(http=500, success=f"you sent {KEY}")
    found = await finding(executor, "POST /execute-tool accepts valid request")
    assert (found.outcome, "you sent ***" in found.detail, KEY in found.detail) == ("failed", True, False)


async def test_refusal_is_heard_from_a_server_that_hangs_up_on_the_body() -> None:
    refusal = b'{"success": false, "error": {"code": "PAYLOAD_TOO_LARGE", "message": "no"}}'
    said = b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%b" % (len(refusal), refusal)
    with answering(said, reset=True) as address:
        async with Client(f"http://{address}", None, print) as client:
            for chunked in (False, True):
                answer = await upload(client, "/execute-tool", b" " * 10_000_000, 10, chunked=chunked)
                assert answer.refusal(413)["code"] == "PAYLOAD_TOO_LARGE"


@pytest.mark.parametrize(
    ("value", "reason"), [(..., "no maxRequestBodyBytes"), (2**40, "is too much to send")]
)
async def test_limit_that_cannot_be_tried_is_not_tested(
    executor: Executor, value: object, reason: str
) -> None:
    executor.spoil = capability("maxRequestBodyBytes", value)
    found = await finding(executor, "Request body limit enforced")
    assert (found.outcome, reason in found.detail) == ("not_tested", True)
