"""Tests of the live view and the line view of a run, and of the step table that both use."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from tests.protocols.rep.flows import chain, document, step

from hutch.cli.flow.view import LineView, LiveView, StepTable
from hutch.protocols.rep.ir.parse import parse_flow
from hutch.protocols.rep.orchestrator.options import RunOutcome

FLOW = parse_flow(document([step("b"), step("a", "flow.run"), step("c")], chain("a", "b", "c")))


def step_event(step_id: str, state: str, **more: Any) -> dict[str, Any]:
    return {"type": "step", "step_id": step_id, "state": state, **more}


def outcome(**more: Any) -> RunOutcome:
    fields = {"run_id": "r", "flow": "demo", "engine": "hutch", "status": "completed", "exit_code": 0, **more}
    return RunOutcome(**fields)


def test_table_has_steps_in_order_with_their_states() -> None:
    table = StepTable(FLOW)
    assert [step.id for step in table.steps] == ["a", "b", "c"]
    table.apply_event(step_event("a", "started", attempt=1))
    table.apply_event(step_event("a", "succeeded", duration_ms=250))
    table.apply_event({"type": "skipped", "step_id": "b"})
    states = {row.id: (row.state, row.attempt) for row in table.steps}
    assert states == {"a": ("succeeded", 1), "b": ("skipped", 0), "c": ("waiting", 0)}
    assert table.steps[0].seconds == 0.25
    assert (table.count("succeeded"), table.count("waiting")) == (1, 1)


def test_steps_of_a_subflow_follow_their_step_and_are_not_counted() -> None:
    table = StepTable(FLOW)
    for inner in ("a/x", "a/y", "a/x/deep"):
        table.apply_event(step_event(inner, "started", kind="wait"))
    assert [step.id for step in table.steps] == ["a", "a/x", "a/x/deep", "a/y", "b", "c"]
    assert len(table.top_level_steps) == 3


@pytest.mark.parametrize(
    "event",
    [
        {"type": "weather"},
        {"type": "step"},
        {"type": "step", "step_id": 7, "state": "started"},
        step_event("zzz", "started"),
        step_event("zzz/inner", "started"),
        step_event("a", "napping"),
        step_event("a", "succeeded", duration_ms="long", attempt="first"),
    ],
)
def test_unknown_and_malformed_events_are_ignored(event: dict[str, Any]) -> None:
    StepTable(FLOW).apply_event(event)
    LiveView(FLOW, io.StringIO()).handle_event(event)
    LineView(FLOW, io.StringIO()).handle_event(event)


def test_control_characters_of_a_runtime_are_replaced() -> None:
    stream = io.StringIO()
    view = LineView(FLOW, stream)
    view.handle_event({"type": "log", "level": "error", "message": "\x1b[2Jgone\nnext"})
    view.handle_stderr(b"\x1b]0;title\x07half")
    view.handle_stderr(b" a line\n")
    view.show_outcome(outcome())
    output = stream.getvalue()
    assert "\x1b" not in output
    assert "\x07" not in output
    assert output.splitlines()[0] == "hutch: error: ?[2Jgone next"
    assert output.splitlines()[1].endswith("half a line")


def test_live_view_replaces_control_characters_in_ids_of_a_runtime() -> None:
    stream = io.StringIO()
    view = LiveView(FLOW, stream)
    view.handle_event(step_event("a/\x1b]0;title\x07x", "started", kind="wait"))
    lines = "".join(view.render())
    assert "a/\N{REPLACEMENT CHARACTER}]0;title" in lines
    assert "\x07" not in lines


def test_live_view_erases_what_it_drew() -> None:
    stream = io.StringIO()
    view = LiveView(FLOW, stream)
    view.tick()
    first = stream.getvalue()
    assert first.count("\n") == 4, "three steps and the bar"
    view.print_message("something")
    assert stream.getvalue().removeprefix(first).startswith("\x1b[4A\r\x1b[Jhutch: something\n")


def test_live_view_draws_nothing_while_paused() -> None:
    stream = io.StringIO()
    view = LiveView(FLOW, stream)
    view.pause()
    before = stream.getvalue()
    view.tick()
    view.print_message("later")
    assert stream.getvalue() == before
    view.resume()
    assert "later" in stream.getvalue()


def test_quiet_view_still_prints_the_runtimes_stderr() -> None:
    stream = io.StringIO()
    view = LineView(FLOW, stream, quiet=True)
    view.handle_event(step_event("a", "started"))
    view.handle_stderr(b"oh dear\n")
    view.show_outcome(outcome())
    assert stream.getvalue() == "oh dear\n"


def test_line_view_shows_restored_steps_and_hides_debug_logs() -> None:
    stream = io.StringIO()
    view = LineView(FLOW, stream)
    view.handle_event(step_event("a", "succeeded", restored=True))
    view.handle_event({"type": "log", "level": "debug", "message": "GET / 200"})
    view.handle_event({"type": "log", "level": "warning", "message": "trying again", "step_id": "b"})
    assert stream.getvalue() == "hutch: a succeeded earlier\nhutch: b: warning: trying again\n"


def test_many_items_are_added_in_time() -> None:
    table = StepTable(FLOW)
    began = time.process_time()
    for index in range(10_000):
        table.apply_event(step_event(f"a/{index}", "started", kind="wait"))
    assert time.process_time() - began < 5
    assert [step.id for step in table.steps][9_999:] == ["a/9998", "a/9999", "b", "c"]


def test_row_of_a_for_each_counts_its_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    view = LiveView(FLOW, io.StringIO())
    view.handle_event(step_event("a", "started", kind="for_each"))
    view.handle_event({"type": "items", "step_id": "a", "count": 30, "max_parallel": 4})
    for state in ("started", "succeeded"):
        view.handle_event(step_event("a/0", state, kind="wait"))
    view.handle_event(step_event("a/1", "started", kind="wait"))
    assert view.render()[0].endswith("1/30 items")
