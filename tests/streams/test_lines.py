"""Splitting byte streams into lines: chunks of any size, and lines that are too long."""

from __future__ import annotations

import tracemalloc

import pytest

from hutch.streams.lines import LineSplitter, LineTooLong


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("max_bytes", [12, 1_000])
@pytest.mark.parametrize("size", range(1, 25))
def test_lines_are_reassembled_from_chunks(size: int, max_bytes: int, truncate: bool) -> None:
    data = b"first\n\nsecond line\r\nthird"
    splitter = LineSplitter(max_bytes, truncate=truncate)
    lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    assert lines == [b"first", b"", b"second line\r"]
    assert splitter.pending_bytes == 5
    assert splitter.feed(b"\n") == [b"third"]
    assert splitter.pending_bytes == 0


@pytest.mark.parametrize(
    "chunks", [[b"x" * 11], [b"x" * 6, b"x" * 5], [b"x" * 11 + b"\n"], [b"ok\n" + b"x" * 11 + b"\nok\n"]]
)
def test_line_beyond_the_maximum_is_an_error_before_it_is_complete(chunks: list[bytes]) -> None:
    *before, last = chunks
    splitter = LineSplitter(10)
    for chunk in before:
        splitter.feed(chunk)
    with pytest.raises(LineTooLong, match="longer than 10 bytes"):
        splitter.feed(last)


def test_many_lines_in_one_chunk_may_be_longer_than_the_maximum_together() -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(b"x" * 10 + b"\n" + b"y" * 10 + b"\n" + b"z" * 10) == [b"x" * 10, b"y" * 10]
    assert splitter.feed(b"\n") == [b"z" * 10]


def test_only_the_beginning_of_a_long_line_is_kept_when_truncating() -> None:
    splitter = LineSplitter(5, truncate=True)
    assert [splitter.feed(b"x" * 100) for _ in range(100)] == [[]] * 100
    assert splitter.pending_bytes == 5
    assert splitter.feed(b"yy\nok\n") == [b"xxxxx", b"ok"]
    assert splitter.feed(b"1234\n12345\n123456\n") == [b"1234", b"12345", b"12345"]


@pytest.mark.parametrize("size", range(1, 12))
def test_truncation_does_not_depend_on_the_chunks(size: int) -> None:
    data = b"abcdefgh\n12\nxyz\nabcdefgh"
    splitter = LineSplitter(3, truncate=True)
    lines = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    assert lines == [b"abc", b"12", b"xyz"]
    assert splitter.feed(b"\n") == [b"abc"]


def test_endless_line_needs_no_more_memory_than_the_maximum() -> None:
    splitter, chunk = LineSplitter(1_000, truncate=True), b"x" * 10_000
    tracemalloc.start()
    try:
        for _ in range(1_000):
            splitter.feed(chunk)
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
