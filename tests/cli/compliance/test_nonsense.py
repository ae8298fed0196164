"""Servers that are no executors, or mad ones: a report all the same, and nothing is raised."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cli.compliance.asking import NAMES, WAKE, finding, report
from tests.cli.compliance.executor import Asked, Executor, Reply, answering

from hutch.cli.compliance import load
from hutch.cli.compliance.subject import Patience


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load has tests of its own."""
    monkeypatch.setattr(load, "LOOKS", 1)
    monkeypatch.setattr(load, "ROUNDS", 1)


@pytest.mark.parametrize(
    "body",
    [None, [], 7, "x", {}, b"", b"{", b"<html>", b"[" * 100_000, b'{"a": 1e999}', b"\xff", {"success": True}],
    ids=lambda body: repr(body)[:20],
)
async def test_nonsense_for_an_answer_is_reported(executor: Executor, body: Any) -> None:
    executor.spoil = lambda asked, reply: setattr(reply, "body", body)
    found = await report(executor.url)
    assert [each.name for each in found.findings] == NAMES
    assert (found.verdict("core"), found.passed) == ("FAIL", False)


@pytest.mark.parametrize("wrong", [None, [[]], {"a": {}}, -1.5, "", 10**30])
async def test_nonsense_in_every_field_is_reported(executor: Executor, wrong: Any) -> None:
    def nonsense(value: Any) -> Any:
        return {name: nonsense(each) for name, each in value.items()} if isinstance(value, dict) else wrong

    def spoil(asked: Asked, reply: Reply) -> None:
        if isinstance(reply.body, dict):
            reply.body = {**nonsense(reply.body), "success": reply.body.get("success")}

    executor.spoil = spoil
    assert not (await report(executor.url, slow=WAKE)).passed


async def test_what_a_terminal_would_obey_is_not_shown(executor: Executor) -> None:
    executor.spoil = lambda asked, reply: setattr(reply, "body", "\x1b]0;owned\x07\u202e<html>".encode())
    found = await finding(executor, "GET /health includes status ok")
    assert (found.outcome, found.detail.isprintable()) == ("failed", True)


HTML = b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\nContent-Type: text/html\r\n\r\n<!doctype html>"


@pytest.mark.parametrize(
    ("said", "scheme", "reason"),
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
async def test_who_does_not_even_answer_health_is_asked_no_more(
    said: bytes | None, scheme: str, reason: str
) -> None:
    with answering(said) as address:
        found = await report(f"{scheme}://{address}", patience=Patience(answer=0.2))
    [first] = found.findings
    assert (first.outcome, first.detail.startswith(reason)) == ("failed", True), first.detail
    assert found.verdict("core") == "FAIL"


async def test_page_instead_of_an_executor_is_told_as_such() -> None:
    with answering(HTML) as address:
        found = await report(f"http://{address}")
    details = {each.name: each.detail for each in found.findings}
    assert details["GET /health includes protocolVersion"] == (
        "GET /health: the answer (200) is no JSON: an HTML page"
    )


async def test_redirect_is_told_with_its_target() -> None:
    said = b"HTTP/1.1 308 Moved\r\nLocation: https://executor.example/health\r\nContent-Length: 0\r\n\r\n"
    with answering(said) as address:
        found = await report(f"http://{address}")
    assert "to https://executor.example/health; redirects are not followed" in found.findings[0].detail


async def test_executor_that_hangs_on_executions_is_waited_for_once(executor: Executor) -> None:
    executor.spoil = lambda asked, reply: setattr(reply, "hangs", asked.executes)
    found = await report(executor.url, patience=Patience(execution=0.3))
    details = {each.name: (each.outcome, each.detail) for each in found.findings}
    name = "POST /execute-tool accepts valid request"
    assert details[name] == ("failed", "POST /execute-tool: no answer within 0.3 s")
    assert details["POST /execute-tool refuses malformed JSON"][0] == "not_tested"
    assert sum(asked.executes and asked.method == "POST" for asked in executor.seen) == 1


async def test_answer_without_end_is_cut(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.cli.compliance.client.MAX_ANSWER_BYTES", 1000)
    executor.spoil = lambda asked, reply: setattr(reply, "body", b" " * 1001)
    found = await finding(executor, "GET /health returns 200")
    assert (found.outcome, "more than 1000 bytes" in found.detail) == ("failed", True)
