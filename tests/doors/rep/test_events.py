"""Events: each once, in order, and never more than fit."""

from __future__ import annotations

from hutch.doors.rep import events
from hutch.doors.rep.events import Events


def test_events_are_handed_out_once_and_in_order() -> None:
    told = Events()
    for number in range(3):
        told.add("log", level="info", message=str(number))
    assert [each["message"] for each in told.drain()] == ["0", "1", "2"]
    assert told.drain() == []


def test_one_answer_carries_so_much_and_the_rest_comes_next() -> None:
    told = Events()
    for _ in range(100):
        told.add("log", level="info", message="x" * 60_000)
    first = told.drain()
    assert 60 < len(first) < 75
    assert len(told) == 100 - len(first)
    assert len(first) + len(told.drain()) == 100


def test_logs_that_nobody_fetches_are_left_out_and_counted_but_steps_are_not() -> None:
    told = Events()
    for _ in range(1_000):
        told.add("log", level="info", message="x" * 60_000)
    told.add("step", state="succeeded", step_id="a")
    kept = []
    while taken := told.drain():
        kept += taken
    logs = [each for each in kept if each["type"] == "log" and each["level"] == "info"]
    [note] = [each for each in kept if each.get("level") == "warning"]
    assert len(logs) * 60_000 <= events.MAX_PENDING_BYTES + 120_000
    assert note["message"] == f"{1_000 - len(logs)} log events were left out: nobody fetched them"
    assert [each["step_id"] for each in kept if each["type"] == "step"] == ["a"]


def test_message_of_a_log_is_shortened() -> None:
    told = Events()
    told.add("log", level="info", message="x" * 1_000_000)
    assert len(told.drain()[0]["message"]) == 64 * 1024 + 1
