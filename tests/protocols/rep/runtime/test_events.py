"""RunEventBuffer: order, response size and dropped logs."""

from __future__ import annotations

from hutch.protocols.rep.runtime import events
from hutch.protocols.rep.runtime.events import RunEventBuffer


def test_events_are_returned_once_and_in_order() -> None:
    buffer = RunEventBuffer()
    for number in range(3):
        buffer.add("log", level="info", message=str(number))
    assert [each["message"] for each in buffer.drain()] == ["0", "1", "2"]
    assert buffer.drain() == []


def test_drain_is_bounded_and_the_rest_comes_next() -> None:
    buffer = RunEventBuffer()
    for _ in range(100):
        buffer.add("log", level="info", message="x" * 60_000)
    first = buffer.drain()
    assert 7 < len(first) < 10
    assert len(buffer) == 100 - len(first)
    rest = []
    while batch := buffer.drain():
        rest += batch
    assert len(first) + len(rest) == 100


def test_unpolled_logs_are_dropped_and_counted_but_steps_are_kept() -> None:
    buffer = RunEventBuffer()
    for _ in range(1_000):
        buffer.add("log", level="info", message="x" * 60_000)
    buffer.add("step", state="succeeded", step_id="a")
    polled = []
    while batch := buffer.drain():
        polled += batch
    logs = [each for each in polled if each["type"] == "log" and each["level"] == "info"]
    [note] = [each for each in polled if each.get("level") == "warning"]
    assert len(logs) * 60_000 <= events.MAX_PENDING_BYTES + 120_000
    assert (
        note["message"] == f"{1_000 - len(logs)} log events were dropped because they were not polled in time"
    )
    assert [each["step_id"] for each in polled if each["type"] == "step"] == ["a"]


def test_long_log_message_is_truncated() -> None:
    buffer = RunEventBuffer()
    buffer.add("log", level="info", message="x" * 1_000_000)
    assert len(buffer.drain()[0]["message"]) == 64 * 1024 + 1
