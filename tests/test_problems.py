"""Lists of problems: bounded in number and length."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hutch.problems import (
    MAX_MESSAGE_CHARS,
    MAX_PATH_CHARS,
    MAX_PROBLEMS,
    MORE_PROBLEMS,
    NameSuggester,
    Problem,
    ProblemList,
    cut,
    cut_middle,
    first_problems,
    similar_field,
)


class Invalid(Exception):
    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems


def endless() -> Iterator[Problem]:
    number = 0
    while True:
        yield Problem(f"items[{number}]", "expected a string")
        number += 1


def test_problem_is_written_with_its_path() -> None:
    assert str(Problem("a.b", "is missing")) == "a.b: is missing"
    assert str(Problem("", "is missing")) == "is missing"


def test_long_path_and_message_are_cut() -> None:
    problem = Problem("a" * 1_000_000 + "z", "b" * 1_000_000)
    assert (len(problem.path), len(problem.message)) == (MAX_PATH_CHARS, MAX_MESSAGE_CHARS)
    assert problem.path.endswith("az")
    assert problem.message.endswith("b…")


def test_list_without_problems_raises_nothing() -> None:
    ProblemList(Invalid).raise_if_any()


def test_all_problems_are_raised_together() -> None:
    problems = ProblemList(Invalid)
    problems.add("a", "is missing")
    problems.extend([Problem("b", "is missing")])
    assert len(problems) == 2
    with pytest.raises(Invalid) as raised:
        problems.raise_if_any()
    assert [str(each) for each in raised.value.problems] == ["a: is missing", "b: is missing"]


@pytest.mark.parametrize("count", [3, MAX_PROBLEMS])
def test_full_list_ends_the_validation_and_says_that_there_are_more(count: int) -> None:
    with pytest.raises(Invalid) as raised:
        ProblemList(Invalid, max_problems=count).extend(endless())
    assert len(raised.value.problems) == count + 1
    assert str(raised.value.problems[-1]) == MORE_PROBLEMS


def test_first_problems_of_an_endless_iterator_are_taken() -> None:
    found = first_problems(endless())
    assert len(found) == MAX_PROBLEMS + 1
    assert first_problems(found) == found
    assert first_problems(found[:3]) == found[:3]


def test_suggestions_stop_after_a_few() -> None:
    suggester = NameSuggester()
    found = [suggester.closest("prot", ["port"]) for _ in range(100)]
    assert found[0] == "port"
    assert found[-1] is None


def test_cut_text_keeps_its_maximum_length() -> None:
    assert cut("abc", 3) == cut_middle("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"
    assert cut_middle("a" * 20 + "z", 10) == "aaaaaa…aaz"


def test_similar_field_finds_longer_and_inner_names() -> None:
    known = ["code", "limits", "limits.timeout_ms", "label"]
    assert similar_field("timeout", known) == "limits.timeout_ms"
    assert similar_field("timeout_ms", known) == "limits.timeout_ms"
    assert similar_field("cod", known) == "code"
    assert similar_field("nothing", known) is None
