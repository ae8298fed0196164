"""npm version ranges; the cases follow npm's documentation."""

from __future__ import annotations

import pytest

from hutch.npm.semver import exact_version, parse_range, sort_key


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("1.2.3", "1.2.3", "1.2.4 1.2.3-a"),
        ("1", "1.0.0 1.9.9", "0.9.9 2.0.0 2.0.0-0"),
        ("1.2.x", "1.2.0 1.2.9", "1.3.0 1.2.0-a"),
        ("*", "0.0.0 9.9.9", "1.0.0-a"),
        ("", "1.0.0", "1.0.0-a"),
        ("^1.2.3", "1.2.3 1.9.0", "1.2.2 2.0.0 2.0.0-0 1.3.0-a"),
        ("^0.2.3", "0.2.3 0.2.9", "0.3.0 0.2.2"),
        ("^0.0.3", "0.0.3", "0.0.4"),
        ("^0.0", "0.0.9", "0.1.0"),
        ("^0.x", "0.9.0", "1.0.0"),
        ("^1.2.3-beta.2", "1.2.3-beta.2 1.2.3-beta.10 1.2.3 1.9.0", "1.2.3-beta.1 1.2.4-beta.3"),
        ("~1.2.3", "1.2.3 1.2.9", "1.3.0 1.2.2"),
        ("~1", "1.9.0", "2.0.0"),
        (">=1 <2", "1.0.0 1.9.9", "0.9.9 2.0.0"),
        (">1", "2.0.0", "1.9.9"),
        (">1.2.3", "1.2.4", "1.2.3 1.2.4-a"),
        ("<=1", "1.9.9 0.1.0", "2.0.0"),
        ("<1.2", "1.1.9", "1.2.0 1.2.0-a"),
        ("< 1.2.3", "1.2.2", "1.2.3"),
        ("1 - 2", "1.0.0 2.9.9", "3.0.0 0.9.9"),
        ("1.2.3 - 2.3.4", "1.2.3 2.3.4", "2.3.5"),
        ("^1 || ^3", "1.1.0 3.1.0", "2.0.0"),
        ("<2.0.0", "1.9.9", "2.0.0-a 2.0.0"),
        ("1.2.3-a", "1.2.3-a", "1.2.3"),
        ("<=1.2.3-a", "1.2.2 1.2.3-a", "1.2.3"),
        ("~1.2.0-a", "1.2.0-a 1.2.0 1.2.9", "1.3.0-a"),
        (">=1.2.3-a >=1.2.4", "1.2.4", "1.2.3-b"),
        ("~>1.x", "1.9.0", "2.0.0"),
        ("^*", "9.9.9", "1.0.0-a"),
        (">x", "", "1.0.0 0.0.0"),
    ],
)
def test_range_matches_the_versions_that_npm_says(text: str, inside: str, outside: str) -> None:
    wanted = parse_range(text)
    assert wanted is not None
    versions = [*inside.split(), *outside.split()]
    assert all(map(exact_version, versions))
    assert [version for version in versions if wanted.matches(version)] == inside.split()


def test_versions_are_ordered_by_precedence() -> None:
    rising = "0.9.0 1.0.0-1 1.0.0-2 1.0.0-10 1.0.0-alpha 1.0.0-alpha.1 1.0.0-beta 1.0.0 1.0.1 1.10.0"
    falling = [*reversed(rising.split())]
    assert sorted(falling, key=sort_key) == rising.split()


@pytest.mark.parametrize(
    "text", ["1.2.3.4", "^", "a b", "1 2 - 3", "latest", "01.2", "1..2", "^^1", "1.2.3-01"]
)
def test_invalid_range_is_none(text: str) -> None:
    assert parse_range(text) is None
