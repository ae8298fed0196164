"""How a run is shown: the board that events are put on, and the two ways to see it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from tests.doors.rep.flows import chain, document, step

from hutch.cli.flow_board import Board
from hutch.cli.flow_view import Lines, Live
from hutch.doors.rep import flow as flows
from hutch.doors.rep.outcome import RunEnd

FLOW = flows.read(document([step("b"), step("a", "flow.run"), step("c")], chain("a", "b", "c")))


def told(step_id: str, state: str, **more: Any) -> dict[str, Any]:
    return {"type": "step", "step_id": step_id, "state": state, **more}


def ended(**more: Any) -> RunEnd:
    given = {"run_id": "r", "flow": "demo", "engine": "hutch", "status": "completed", "exit_code": 0, **more}
    return RunEnd(**given)


def test_board_has_the_steps_in_their_order_and_their_states() -> None:
    board = Board(FLOW)
    assert list(board.steps) == ["a", "b", "c"]
    board.hear(told("a", "started", attempt=1))
    board.hear(told("a", "succeeded", duration_ms=250))
    board.hear({"type": "skipped", "step_id": "b"})
    states = {each.id: (each.state, each.attempt) for each in board.steps.values()}
    assert states == {"a": ("succeeded", 1), "b": ("skipped", 0), "c": ("waiting", 0)}
    assert board.steps["a"].seconds == 0.25
    assert (board.count("succeeded"), board.count("waiting")) == (1, 1)


def test_steps_of_a_flow_inside_stand_after_theirs_and_are_not_counted() -> None:
    board = Board(FLOW)
    for inner in ("a/x", "a/y", "a/x/deep"):
        board.hear(told(inner, "started", kind="wait"))
    assert list(board.steps) == ["a", "a/x", "a/x/deep", "a/y", "b", "c"]
    assert len(board.own) == 3


@pytest.mark.parametrize(
    "event",
    [
        {"type": "weather"},
        {"type": "step"},
        {"type": "step", "step_id": 7, "state": "started"},
        told("zzz", "started"),
        told("zzz/inner", "started"),
        told("a", "napping"),
        told("a", "succeeded", duration_ms="long", attempt="first"),
    ],
)
def test_events_that_are_unknown_or_odd_do_no_harm(event: dict[str, Any]) -> None:
    Board(FLOW).hear(event)
    Live(FLOW, io.StringIO()).event(event)
    Lines(FLOW, io.StringIO()).event(event)


def test_what_a_runtime_says_cannot_command_a_terminal() -> None:
    stream = io.StringIO()
    view = Lines(FLOW, stream)
    view.event({"type": "log", "level": "error", "message": "\x1b[2Jgone\nnext"})
    view.stderr(b"\x1b]0;title\x07half")
    view.stderr(b" a line\n")
    view.end(ended())
    said = stream.getvalue()
    assert "\x1b" not in said
    assert "\x07" not in said
    assert said.splitlines()[0] == "hutch: error: ?[2Jgone next"
    assert said.splitlines()[1].endswith("half a line")


def test_live_view_takes_back_what_it_drew() -> None:
    stream = io.StringIO()
    view = Live(FLOW, stream)
    view.tick()
    first = stream.getvalue()
    assert first.count("\n") == 4, "three steps and the bar"
    view.say("something")
    assert stream.getvalue().removeprefix(first).startswith("\x1b[4A\r\x1b[Jhutch: something\n")


def test_nothing_is_drawn_while_somebody_is_asked() -> None:
    stream = io.StringIO()
    view = Live(FLOW, stream)
    view.hold()
    before = stream.getvalue()
    view.tick()
    view.say("later")
    assert stream.getvalue() == before
    view.release()
    assert "later" in stream.getvalue()


def test_quiet_lines_still_pass_on_what_the_runtime_complains_of() -> None:
    stream = io.StringIO()
    view = Lines(FLOW, stream, quiet=True)
    view.event(told("a", "started"))
    view.stderr(b"oh dear\n")
    view.end(ended())
    assert stream.getvalue() == "oh dear\n"


def test_lines_tell_what_was_over_before_and_leave_out_what_is_for_logs() -> None:
    stream = io.StringIO()
    view = Lines(FLOW, stream)
    view.event(told("a", "succeeded", restored=True))
    view.event({"type": "log", "level": "debug", "message": "GET / 200"})
    view.event({"type": "log", "level": "warning", "message": "trying again", "step_id": "b"})
    assert stream.getvalue() == "hutch: a succeeded before\nhutch: b: warning: trying again\n"
