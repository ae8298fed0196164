"""Conversion of a program's output to events of the program's run. Each line is an event."""

from __future__ import annotations

from typing import Literal

from hutch.session.events.output_lines import MAX_LINE_CHARS, MAX_OUTPUT_LINES, OutputLines
from hutch.session.run import RunHandle, log_listener

Chunk = tuple[Literal["stdout", "stderr"], bytes]


def lines_of(*chunks: Chunk) -> list[str]:
    lines: list[str] = []
    output = OutputLines(RunHandle(listeners=[log_listener(lines.append)]), None)
    for stream, data in chunks:
        output(stream, data)
    output.end()
    return lines


def test_lines_are_joined_from_parts_of_each_stream() -> None:
    chunks: list[Chunk] = [("stdout", b"a\nb"), ("stderr", b"warn"), ("stdout", b"c\r\n"), ("stderr", b"ing")]
    assert lines_of(*chunks) == ["a", "bc", "warning"]


def test_character_may_be_cut_between_two_parts() -> None:
    text = "ä€".encode()
    assert lines_of(*(("stdout", text[index : index + 1]) for index in range(len(text)))) == ["ä€"]


def test_long_and_many_lines_are_bounded() -> None:
    assert lines_of(("stdout", b"x" * (MAX_LINE_CHARS + 5)), ("stdout", b"y\n")) == [
        "x" * MAX_LINE_CHARS,
        "y",
    ]
    assert len(lines_of(("stdout", b"\n" * 1_000_000))) == MAX_OUTPUT_LINES


def test_output_is_passed_on() -> None:
    passed: list[Chunk] = []
    output = OutputLines(RunHandle(), lambda stream, data: passed.append((stream, data)))
    output("stderr", b"x")
    assert passed == [("stderr", b"x")]
