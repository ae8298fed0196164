"""Query parameters."""

from __future__ import annotations

import pytest

from hutch.http.errors import ApiError
from hutch.http.requests import MAX_TEXT_CHARS, query_flag, query_integer, query_number, query_text


@pytest.mark.parametrize(("value", "expected"), [(None, 7), ("", 7), (" ", 7), ("1", 1), (" 100 ", 100)])
def test_integer_has_a_default_and_a_range(value: str | None, expected: int) -> None:
    params = {} if value is None else {"n": value}
    assert query_integer(params, "n", 7, 100) == expected


@pytest.mark.parametrize("value", ["0", "-1", "x", "101", "1e1", "1.0", "9" * 5_000, "٣"])
def test_integer_out_of_range_is_named(value: str) -> None:
    with pytest.raises(ApiError) as caught:
        query_integer({"n": value}, "n", 7, 100)
    assert caught.value.kind == "invalid_request"
    assert caught.value.message == f"n: expected a number from 1 to 100, got {value[:40]!r}"


def test_large_limits_are_written_as_integers() -> None:
    with pytest.raises(ApiError, match=f"from 0 to {2**53}, got 'x'"):
        query_integer({"n": "x"}, "n", 0, 2**53, minimum=0)


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "1.1", "x"])
def test_number_accepts_decimals_within_a_range(value: str) -> None:
    assert query_number({"n": "0.25"}, "n", 0.5, 1) == 0.25
    assert query_number({"n": " "}, "n", 0.5, 1) == 0.5
    with pytest.raises(ApiError, match="n: expected a number from 0 to 1, got"):
        query_number({"n": value}, "n", 0.5, 1)


def test_text_is_limited() -> None:
    assert query_text({}, "t") == ""
    assert query_text({"t": "x" * MAX_TEXT_CHARS}, "t") == "x" * MAX_TEXT_CHARS
    for value in ("x" * (MAX_TEXT_CHARS + 1), "a\0b"):
        with pytest.raises(ApiError, match="t: expected at most 1000 characters, without NUL"):
            query_text({"t": value}, "t")


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("1", True), ("YES", True), ("0", False)])
def test_flag(value: str, expected: bool) -> None:
    assert query_flag({"f": value}, "f") is expected
    assert query_flag({}, "f") is False
