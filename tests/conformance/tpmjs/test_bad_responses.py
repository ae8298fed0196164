"""Reports about broken executors and about servers that are not executors: the suite never raises."""

from __future__ import annotations

from typing import Any

import pytest
from tests.conformance.tpmjs.fake_executor import FakeExecutor, FakeReply, ReceivedRequest, answering
from tests.conformance.tpmjs.suite_helpers import NAMES, WAKE, finding, report

from hutch.conformance.tpmjs import target
from hutch.conformance.tpmjs.target import Timeouts


@pytest.fixture(autouse=True)
def small_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the load checks short, because the tests in this file do not concern load."""
    monkeypatch.setattr(target, "MIN_HEALTH_REQUESTS", 1)
    monkeypatch.setattr(target, "LOAD_ROUNDS", 1)


@pytest.mark.parametrize(
    "body",
    [None, [], 7, "x", {}, b"", b"{", b"<html>", b"[" * 100_000, b'{"a": 1e999}', b"\xff", {"success": True}],
    ids=lambda body: repr(body)[:20],
)
async def test_invalid_response_body_is_reported(executor: FakeExecutor, body: Any) -> None:
    executor.fault = lambda request, reply: setattr(reply, "body", body)
    found = await report(executor.url)
    assert [each.name for each in found.findings] == NAMES
    assert (found.verdict("core"), found.passed) == ("FAIL", False)


@pytest.mark.parametrize("wrong", [None, [[]], {"a": {}}, -1.5, "", 10**30])
async def test_invalid_value_in_every_field_is_reported(executor: FakeExecutor, wrong: Any) -> None:
    def invalid(value: Any) -> Any:
        return {name: invalid(child) for name, child in value.items()} if isinstance(value, dict) else wrong

    def fault(request: ReceivedRequest, reply: FakeReply) -> None:
        if isinstance(reply.body, dict):
            reply.body = {**invalid(reply.body), "success": reply.body.get("success")}

    executor.fault = fault
    assert not (await report(executor.url, slow=WAKE)).passed


async def test_control_characters_are_not_shown(executor: FakeExecutor) -> None:
    executor.fault = lambda request, reply: setattr(reply, "body", "\x1b]0;owned\x07\u202e<html>".encode())
    found = await finding(executor, "GET /health includes status ok")
    assert (found.outcome, found.detail.isprintable()) == ("failed", True)


HTML = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nContent-Type: text/html\r\n\r\n<!doctype html>"


@pytest.mark.parametrize(
    ("response", "scheme", "reason"),
    [
        (None, "http", "GET /health: no answer within 0.2 s"),
        (b"", "http", "GET /health: the connection was closed before an HTTP answer"),
        (b"220 mail.example.com\r\n", "http", "GET /health: the connection was closed before an HTTP answer"),
        (b"220 mail.example.com\r\n\r\n", "http", "GET /health: the answer is not HTTP: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "http", "GET /health: the answer is not HTTP: "),
        (b"HTTP/1.1 200 OK\r\n\r\n", "https", "GET /health: cannot connect: "),
    ],
    ids=["silent", "hangs up", "banner", "another protocol", "half an answer", "no TLS"],
)
async def test_suite_stops_if_health_is_not_answered(
    response: bytes | None, scheme: str, reason: str
) -> None:
    with answering(response) as address:
        found = await report(f"{scheme}://{address}", timeouts=Timeouts(response=0.2))
    [first] = found.findings
    assert (first.outcome, first.detail.startswith(reason)) == ("failed", True), first.detail
    assert found.verdict("core") == "FAIL"


async def test_html_page_is_reported_as_such() -> None:
    with answering(HTML) as address:
        found = await report(f"http://{address}")
    details = {each.name: each.detail for each in found.findings}
    assert details["GET /health includes protocolVersion"] == (
        "GET /health: the answer (200) is not JSON: an HTML page"
    )


async def test_redirect_is_reported_with_its_target() -> None:
    response = b"HTTP/1.1 308 Moved\r\nLocation: https://executor.example/health\r\nContent-Length: 0\r\n\r\n"
    with answering(response) as address:
        found = await report(f"http://{address}")
    assert "to https://executor.example/health; redirects are not followed" in found.findings[0].detail


async def test_executor_that_hangs_on_executions_is_tried_once(executor: FakeExecutor) -> None:
    executor.fault = lambda request, reply: setattr(reply, "hangs", request.is_execution)
    found = await report(executor.url, timeouts=Timeouts(execution=0.3))
    details = {each.name: (each.outcome, each.detail) for each in found.findings}
    name = "POST /execute-tool accepts valid request"
    assert details[name] == ("failed", "POST /execute-tool: no answer within 0.3 s")
    assert details["POST /execute-tool refuses malformed JSON"][0] == "not_tested"
    assert sum(request.is_execution and request.method == "POST" for request in executor.requests) == 1


async def test_endless_response_is_cut(executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.conformance.tpmjs.client.MAX_RESPONSE_BYTES", 1000)
    executor.fault = lambda request, reply: setattr(reply, "body", b" " * 1001)
    found = await finding(executor, "GET /health returns 200")
    assert (found.outcome, "more than 1000 bytes" in found.detail) == ("failed", True)
