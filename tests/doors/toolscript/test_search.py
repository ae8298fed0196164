from __future__ import annotations

import time

import pytest
from tests.doors.toolscript.scripted import Given

from hutch.doors.toolscript.catalog import Catalog
from hutch.doors.toolscript.search import Found, Index, near_names


def takes(**described: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"description": text} for name, text in described.items()}}


TOOLS = (
    Given(
        "github",
        "create_issue",
        "Opens a new issue in a repository.",
        takes(title="The headline", repo="Where"),
    ),
    Given("github", "list_issues", "Lists the issues of a repository.", takes(repo="Where")),
    Given("github", "createPullRequest", "Proposes changes for review.", takes(branch="The branch to merge")),
    Given("github", "search_repositories", "Finds repositories by keyword."),
    Given("weather", "get_forecast", "Tells the weather of the next days.", takes(city="Name of a town")),
    Given("files", "read_file", "Reads a file from disk and gives its text.", takes(path="Where it is")),
    Given("files", "delete-file", "Removes a file for good."),
    Given("mail", "send", "Sends a message to people.", takes(recipients="Addresses", subject="Its subject")),
)


@pytest.fixture(scope="module")
def index() -> Index:
    return Index(Catalog.of(TOOLS))


def find(index: Index, query: str, limit: int = 3, threshold: float = 0.35) -> list[str]:
    return [each.entry.qualified for each in index.search(query, limit=limit, threshold=threshold)]


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("create issue", "github__create_issue"),
        ("How can I create an issue on GitHub, please?", "github__create_issue"),
        ("list all issues", "github__list_issues"),
        ("pull request", "github__createPullRequest"),
        ("createPullRequest", "github__createPullRequest"),
        ("create_pull_request", "github__createPullRequest"),
        ("github__create_issue", "github__create_issue"),
        ("forecasts", "weather__get_forecast"),
        ("weather in town", "weather__get_forecast"),
        ("recipients", "mail__send"),
        ("removing files", "files__delete-file"),
        ("repo search", "github__search_repositories"),
    ],
)
def test_the_best_comes_first(index: Index, query: str, best: str) -> None:
    assert find(index, query)[0] == best


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("creat isue", "github__create_issue"),
        ("wheather forcast", "weather__get_forecast"),
        ("delte file", "files__delete-file"),
        ("readfile", "files__read_file"),
        ("pul requets", "github__createPullRequest"),
        ("gihtub serach repositries", "github__search_repositories"),
    ],
)
def test_slips_are_understood(index: Index, query: str, best: str) -> None:
    assert find(index, query)[0] == best


@pytest.mark.parametrize(
    "query", ["kubernetes pods", "zzzz", "", "  ", "?!", '"', "a OR b NOT (c", "zzz:xyz*", "\ud800", "🙂"]
)
def test_what_is_not_there_is_not_found_and_no_query_is_a_fault(index: Index, query: str) -> None:
    assert find(index, query) == []


def test_scores_are_from_0_to_1_and_fall_and_hold_to_limit_and_threshold(index: Index) -> None:
    found = index.search("create issue in repository", limit=100, threshold=0.0)
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert len(found) > 3
    assert find(index, "create issue in repository", limit=2, threshold=0.0) == [
        each.entry.qualified for each in found[:2]
    ]
    above = [each.entry.qualified for each in found if each.score >= 0.5]
    assert find(index, "create issue in repository", limit=100, threshold=0.5) == above


def best(index: Index, query: str) -> Found:
    return index.search(query, limit=1, threshold=0.0)[0]


def test_the_reason_says_what_was_found_where(index: Index) -> None:
    assert best(index, "create issue").reason == "create, issue in its name"
    assert best(index, "create isue").reason == "create, issue (for isue) in its name"
    assert best(index, "weather city tomorrow").reason == (
        "weather in its server's name; city in its arguments; not tomorrow"
    )
    assert best(index, "readfile").reason == "its name is like the query"


def test_a_name_counts_more_than_a_description(index: Index) -> None:
    tools = Catalog.of([Given("s", "a", "Sends mail. Mail, mail, mail."), Given("s", "mail", "Does it.")])
    assert find(Index(tools), "mail") == ["s__mail", "s__a"]


def test_one_tool_alone_is_found_too() -> None:
    assert find(Index(Catalog.of([TOOLS[0]])), "create issue") == ["github__create_issue"]
    assert find(Index(Catalog()), "create issue") == []


def test_500_tools_are_searched_in_ten_milliseconds() -> None:
    verbs = ["create", "list", "get", "delete", "update", "search", "move", "copy", "archive", "star"]
    nouns = ["issue", "repository", "branch", "commit", "file", "user", "team", "comment", "release", "page"]
    described = takes(owner="The owner", repo="The repository", page="Which page", query="What to look for")
    tools = [
        Given(
            f"server{n % 5}",
            f"{verbs[n % 10]}_{nouns[n // 10 % 10]}_{n}",
            f"Does {n}: {nouns[n % 10]}.",
            described,
        )
        for n in range(500)
    ]
    index = Index(Catalog.of(tools))
    queries = [
        "create issue",
        "how do I list all the files of a repository",
        "delte brnch on server3",
        "repo",
    ]
    began = time.process_time()
    for query in queries:
        assert find(index, query)
    assert (time.process_time() - began) / len(queries) < 0.01


def test_long_queries_are_cut() -> None:
    assert find(Index(Catalog.of(TOOLS)), "create issue " * 100_000)[0] == "github__create_issue"


def test_near_names_are_those_that_somebody_may_have_meant() -> None:
    known = ["github__create_issue", "github__list_issues", "mail__send"]
    assert near_names("github__creat_isue", known)[0] == "github__create_issue"
    assert near_names("github.createIssue", known)[0] == "github__create_issue"
    assert near_names("x", known) == []
