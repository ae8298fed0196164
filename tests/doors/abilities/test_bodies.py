"""Bodies are cut where JavaScript would cut them."""

from __future__ import annotations

import pytest

from hutch.doors.abilities.bodies import cut

MARK = "\n\n[... Response truncated. Original length: {} characters]"


@pytest.mark.parametrize("body", [None, [], "x" * 8, {"a": 1}, "é" * 8, "\U0001f600" * 4])
def test_what_fits_is_as_it_was(body: object) -> None:
    shown = cut(body, 10)
    assert shown.body is body
    assert shown.original_length is None


def test_what_does_not_is_the_beginning_of_its_json() -> None:
    assert cut({"a": [1, 2, 3]}, 10).body == '{"a":[1,2,' + MARK.format(13)


def test_characters_are_counted_as_javascript_counts_them() -> None:
    shown = cut("\U0001f600" * 5, 10)
    assert shown.original_length == 12
    # The half of one that is left at the end goes too.
    assert shown.body == '"' + "\U0001f600" * 4 + MARK.format(12)


def test_a_lone_surrogate_is_no_obstacle() -> None:
    shown = cut("\ud800" + "x" * 20, 10)
    assert isinstance(shown.body, str)
    assert shown.body.startswith('"\\ud800xxx')
