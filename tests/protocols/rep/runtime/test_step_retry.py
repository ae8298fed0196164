"""Retries of steps: which failures are retried, how often, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.protocols.rep.flow_harness import FlowHarness
from tests.support.flows import chain, flow, node

from hutch.protocols.rep.ir.flow import FlowNode
from hutch.protocols.rep.runtime.step_retry import StepRetries


@pytest.fixture
def harness() -> FlowHarness:
    return FlowHarness()


async def test_retries_are_counted_and_the_last_attempt_is_reported(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("bad", "fail", retries=3, backoff_ms=1)]))
    assert (harness.attempts["bad"], ended.error["data"]["attempt"]) == (4, 3)
    assert [each["attempt"] for each in ended.events if each.get("state") == "started"] == [0, 1, 2, 3]
    assert ended.steps().count(("bad", "failed")) == 1


async def test_step_that_succeeds_after_retries_has_succeeded(harness: FlowHarness) -> None:
    ended = await harness.run(flow([node("a", "fail", retries=5, times=2)]))
    assert ended.outputs == {"a": 3}
    assert ended.logs() == [
        "attempt 1 failed: failed on request",
        "trying again",
        "attempt 2 failed: failed on request",
        "trying again",
    ]


async def test_non_retriable_failure_is_not_retried(harness: FlowHarness) -> None:
    await harness.run(flow([node("bad", "fail", retries=3, retriable=False)]))
    assert harness.attempts["bad"] == 1


async def test_unresolved_reference_fails_without_retry(harness: FlowHarness) -> None:
    nodes = [node("a", "echo", value={"x": 1}), node("b", "echo", retries=5, value="$step.a.y")]
    ended = await harness.run(flow(nodes, chain("a", "b")))
    assert "$step.a.y" in ended.error["message"]
    assert ended.error["data"]["retriable"] is False
    assert [each for each in ended.steps() if each[1] == "started"] == [("a", "started"), ("b", "started")]


async def test_step_waiting_for_its_retry_uses_no_slot(harness: FlowHarness) -> None:
    nodes = [node("bad", "fail", retries=1, backoff_ms=60_000), node("other", "hold")]
    run = harness.flow_run(flow(nodes), concurrency=1)
    running = asyncio.ensure_future(run.run())
    await harness.until_running("other")
    assert harness.attempts["bad"] == 1
    run.cancel()
    assert (await running).cancelled


async def test_retry_starts_after_the_backoff_unless_it_is_cancelled() -> None:
    events: list[tuple[str, dict[str, Any]]] = []
    started: asyncio.Queue[tuple[str, int]] = asyncio.Queue()
    retries = StepRetries(
        lambda node, attempt: started.put_nowait((node.id, attempt)),
        lambda type, **fields: events.append((type, fields)),
        "outer/",
    )
    loop = asyncio.get_running_loop()
    began = loop.time()
    retries.schedule(FlowNode(id="a", kind="fail", with_={}, backoff_ms=200), 1)
    assert started.empty()
    async with asyncio.timeout(30):
        assert await started.get() == ("a", 1)
    # The bound is a bit less than 0.2 s, because the event loop may run a timer too early by the resolution
    # of its clock.
    assert loop.time() - began >= 0.19
    message = {"level": "warning", "message": "trying again in 0.2 s", "step_id": "outer/a", "attempt": 1}
    assert events == [("log", message)]
    retries.schedule(FlowNode(id="cancelled", kind="fail", with_={}, backoff_ms=1), 2)
    retries.cancel()
    retries.schedule(FlowNode(id="later", kind="fail", with_={}, backoff_ms=20), 1)
    async with asyncio.timeout(30):
        assert await started.get() == ("later", 1)
    assert started.empty()
