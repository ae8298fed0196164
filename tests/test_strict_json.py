"""Strict JSON: finite numbers, UTF-8, and the depth of a text without parsing it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from hutch.strict_json import ExcessCounter, find_duplicate_key, find_excess, is_too_deep, parse_json


def test_valid_json_is_parsed() -> None:
    assert parse_json(b'{"a": [1, 2.5, -1e3, null, true, "\\ud800 \xc3\xa9"]}') == {
        "a": [1, 2.5, -1000.0, None, True, "\ud800 é"]
    }
    assert parse_json(' "é" ') == "é"


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}'])
def test_constants_of_javascript_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        parse_json(text)


@pytest.mark.parametrize("text", [b"1e999", "[-1e999]"])
def test_numbers_out_of_range_are_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="out of range"):
        parse_json(text)


@pytest.mark.parametrize("text", ["", '"a', "\ufeff{}", "{} {}", "{a:1}", "'a'", "[1,]", "01", b"{"])
def test_malformed_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)


@pytest.mark.parametrize("text", [b'"\xff"', "{}".encode("utf-16")])
def test_only_utf_8_is_accepted(text: bytes) -> None:
    with pytest.raises(UnicodeDecodeError):
        parse_json(text)


@pytest.mark.parametrize(
    ("line", "deep"),
    [
        (b"[" * 128 + b"]" * 128, False),
        (b"[" * 129 + b"]" * 129, True),
        (b'{"a":' * 128 + b"1" + b"}" * 128, False),
        (b'{"a":' * 129 + b"1" + b"}" * 129, True),
        (b"[" + b"[]," * 500 + b"1]", False),
        (b"[" * 127 + b"[],[],[]" * 100 + b"]" * 127, False),
        (b"[" * 128 + b"[],[],[]" * 100 + b"]" * 128, True),
        (b'["' + b"[" * 500 + b'"]', False),
        (b'["\\"' + b"[" * 500 + b'"]', False),
        (b'["\\\\",' + b"[" * 500 + b"]" * 500 + b"]", True),
        (b'["\\\\\\"' + b"[" * 500 + b'"]', False),
        (b'["a","' + b'{"a' * 300 + b'"]', True),  # already too deep before the syntax error
        (b"[" * 200_000 + b"]" * 200_000, True),
        (b"]" * 500 + b"[" * 500, False),  # malformed from its first byte, so the decoder reports the error
    ],
)
def test_depth_is_determined_from_the_text_alone(line: bytes, deep: bool) -> None:
    assert is_too_deep(line, 128) is deep


def test_depth_limit_is_a_parameter() -> None:
    assert is_too_deep(b"[[]]", 1)
    assert not is_too_deep(b"[[]]", 2)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (b"1", 0),
        (b"[]", 1),
        (b"[1,2,3]", 3),
        (b'{"a":{"b":[]}}', 3),
        (b'["a,[{",1]', 2),
        (b'["\\",[[",{}]', 3),
        (b'["\\\\",{}]', 3),
        (b'["","",""]', 3),
        (b'{"[":"{","]":"}"}', 2),
    ],
)
def test_values_outside_of_strings_are_counted(line: bytes, values: int) -> None:
    assert find_excess(line, 128, values) is None
    assert find_excess(line, 128, values - 1) == "values"


@pytest.mark.parametrize("at", range(-4, 4))
@pytest.mark.parametrize("escape", [b'\\"', b"\\\\", b'\\\\\\"'])
def test_long_text_is_counted_in_slices_that_do_not_split_escapes(at: int, escape: bytes) -> None:
    """The escape is near the end of the first slice, and a slice has one mebibyte."""
    text = b'["' + b"x" * (1024 * 1024 + at) + escape + b'[[,,",1,[[]]]'
    assert find_excess(text, 3, 5) is None
    assert find_excess(text, 3, 4) == "values"
    assert find_excess(text, 2, 5) == "depth"


# Large texts are made by functions. Otherwise pytest would make all of them when it collects the tests.
TEN_MB = 10_000_000


@pytest.mark.parametrize(
    "make_line",
    [
        lambda: b"[" * TEN_MB,
        lambda: b"[]" * (TEN_MB // 2),
        lambda: (b"[" * 128 + b"]" * 128) * (TEN_MB // 256),
        lambda: b"[" * 127 + b"[]" * (TEN_MB // 2) + b"]" * 127,
        lambda: b'["' + b'[\\"' * (TEN_MB // 3) + b'"]',
        lambda: b"[" + b'"[",' * (TEN_MB // 4) + b"1]",
        lambda: b'["' + b'\\"[' * (TEN_MB // 3),
        lambda: b"[" * 200 + b'"' + b"\\" * TEN_MB,
        lambda: b"[" * 200 + b'"' * TEN_MB,
    ],
    ids=[
        "open",
        "pairs",
        "at the limit",
        "near the limit",
        "escapes",
        "strings",
        "open string",
        "\\",
        "quotes",
    ],
)
def test_ten_hostile_megabytes_are_checked_in_linear_time(make_line: Callable[[], bytes]) -> None:
    line = make_line()
    started = time.process_time()
    is_too_deep(line, 128)
    find_excess(line, 128, 250_000)
    assert time.process_time() - started < 10  # takes less than a second when the machine is idle


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (b'[1, {}, "a", {"a": {"b": 1}, "b": 1}]', None),
        (b'{"a": 1, "b": {"a": 1}, "a": 1}', "a"),
        (b'[{"a": "\\"}"}, {"b" : 1, "\\u0062"\n: 2}]', "b"),
    ],
)
def test_duplicate_key_is_found(text: bytes, key: str | None) -> None:
    assert find_duplicate_key(text) == key


@pytest.mark.parametrize(
    "make_text",
    [
        lambda: b'{"a":"' + b"\\n" * (TEN_MB // 2) + b'"}',
        lambda: b'{"a":"' + b"x" * TEN_MB + b'"}',
        lambda: b'{"a":[' + b'{"a":1},' * (TEN_MB // 20) + b"1]}",
        lambda: b'{"a":' * 100 + b'"' + b":{" * (TEN_MB // 2) + b'"' + b"}" * 100,
    ],
    ids=["escapes", "string", "objects", "punctuation"],
)
def test_duplicate_key_is_searched_in_linear_time(make_text: Callable[[], bytes]) -> None:
    text = make_text()
    started = time.process_time()
    assert find_duplicate_key(text) is None
    assert time.process_time() - started < 10  # takes about half a second when the machine is idle


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_text_in_parts_is_counted_like_the_whole_text(size: int) -> None:
    text = json.dumps(["\\", '"', '\\"', '[,"', {"a\\": [1, [2]]}] * 3).encode()
    parts = [text[start : start + size] for start in range(0, len(text), size)]
    for max_depth, max_values in ((3, 30), (4, 29), (4, 35), (4, 36), (9, 99)):
        counter = ExcessCounter(max_depth, max_values)
        found = [excess for part in parts if (excess := counter.add(part))]
        assert found[:1] == [excess for excess in (find_excess(text, max_depth, max_values),) if excess]
