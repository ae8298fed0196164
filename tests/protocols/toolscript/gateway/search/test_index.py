from __future__ import annotations

import time

import pytest
from tests.protocols.toolscript.fakes import FakeTool
from tests.protocols.toolscript.gateway.search.quality import QUERIES, TOOLS_OF_PUBLISHED_SERVERS, measure

from hutch.protocols.toolscript.gateway.catalog import Catalog
from hutch.protocols.toolscript.gateway.search.index import SearchIndex, SearchResult, similar_names, stem


def takes(**described: str) -> dict[str, object]:
    return {"type": "object", "properties": {name: {"description": text} for name, text in described.items()}}


TOOLS = (
    FakeTool(
        "github",
        "create_issue",
        "Opens a new issue in a repository.",
        takes(title="The headline", repo="Where"),
    ),
    FakeTool("github", "list_issues", "Lists the issues of a repository.", takes(repo="Where")),
    FakeTool(
        "github", "createPullRequest", "Proposes changes for review.", takes(branch="The branch to merge")
    ),
    FakeTool("github", "search_repositories", "Finds repositories by keyword."),
    FakeTool("weather", "get_forecast", "Returns the weather of some days.", takes(city="Name of a city")),
    FakeTool("files", "read_file", "Reads a file from disk and gives its text.", takes(path="Where it is")),
    FakeTool("files", "delete-file", "Removes a file for good."),
    FakeTool(
        "mail", "send", "Sends a message to people.", takes(recipients="Addresses", subject="Its subject")
    ),
)


@pytest.fixture(scope="module")
def index() -> SearchIndex:
    return SearchIndex(Catalog.of(TOOLS))


def find(index: SearchIndex, query: str, limit: int = 3, threshold: float = 0.35) -> list[str]:
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
        ("weather in city", "weather__get_forecast"),
        ("recipients", "mail__send"),
        ("removing files", "files__delete-file"),
        ("repo search", "github__search_repositories"),
    ],
)
def test_best_match_comes_first(index: SearchIndex, query: str, best: str) -> None:
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
def test_typos_are_corrected(index: SearchIndex, query: str, best: str) -> None:
    assert find(index, query)[0] == best


@pytest.mark.parametrize(
    "query", ["kubernetes pods", "zzzz", "", "  ", "?!", '"', "a OR b NOT (c", "zzz:xyz*", "\ud800", "🙂"]
)
def test_unmatched_and_odd_queries_find_nothing(index: SearchIndex, query: str) -> None:
    assert find(index, query) == []


def test_scores_are_normalised_sorted_and_limited(index: SearchIndex) -> None:
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


def best(index: SearchIndex, query: str) -> SearchResult:
    return index.search(query, limit=1, threshold=0.0)[0]


def test_reason_names_words_and_fields(index: SearchIndex) -> None:
    assert best(index, "create issue").reason == "create, issue in its name"
    assert best(index, "create isue").reason == "create, issue (for isue) in its name"
    assert best(index, "weather city tomorrow").reason == (
        "weather in its server's name; city in its arguments; not tomorrow"
    )
    assert best(index, "readfile").reason == "its name is like the query"


def test_name_counts_more_than_description(index: SearchIndex) -> None:
    tools = Catalog.of(
        [FakeTool("s", "a", "Sends mail. Mail, mail, mail."), FakeTool("s", "mail", "Does it.")]
    )
    assert find(SearchIndex(tools), "mail") == ["s__mail", "s__a"]


def test_single_tool_is_found() -> None:
    assert find(SearchIndex(Catalog.of([TOOLS[0]])), "create issue") == ["github__create_issue"]
    assert find(SearchIndex(Catalog()), "create issue") == []


def test_500_tools_are_searched_in_ten_milliseconds() -> None:
    verbs = ["create", "list", "get", "delete", "update", "search", "move", "copy", "archive", "star"]
    nouns = ["issue", "repository", "branch", "commit", "file", "user", "team", "comment", "release", "page"]
    described = takes(owner="The owner", repo="The repository", page="Which page", query="What to look for")
    tools = [
        FakeTool(
            f"server{n % 5}",
            f"{verbs[n % 10]}_{nouns[n // 10 % 10]}_{n}",
            f"Does {n}: {nouns[n % 10]}.",
            described,
        )
        for n in range(500)
    ]
    index = SearchIndex(Catalog.of(tools))
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
    assert find(SearchIndex(Catalog.of(TOOLS)), "create issue " * 100_000)[0] == "github__create_issue"


def test_similar_names_are_suggested() -> None:
    known = ["github__create_issue", "github__list_issues", "mail__send"]
    assert similar_names("github__creat_isue", known)[0] == "github__create_issue"
    assert similar_names("github.createIssue", known)[0] == "github__create_issue"
    assert similar_names("x", known) == []


# --- quality ---


@pytest.fixture(scope="module")
def published() -> SearchIndex:
    return SearchIndex(Catalog.of(TOOLS_OF_PUBLISHED_SERVERS))


def test_queries_cover_many_published_servers() -> None:
    expected = {name.partition("__")[0] for query in QUERIES for name in query.expected}
    assert len(expected) >= 12
    assert len(QUERIES) >= 150
    halves = [query.half for query in QUERIES]
    assert halves.count("tuning") == halves.count("kept")


@pytest.mark.parametrize(("half", "recall", "mrr"), [("tuning", 0.95, 0.84), ("kept", 0.9, 0.77)])
def test_search_quality(published: SearchIndex, half: str, recall: float, mrr: float) -> None:
    quality = measure(published, half)
    assert quality.recall >= recall, quality.missed
    assert quality.mrr >= mrr


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("show git history", "git__git_log"),
        ("read a file", "filesystem__read_text_file"),
        ("remember something about the user", "memory__add_observations"),
    ],
)
def test_query_without_words_of_the_name_finds_the_tool(
    published: SearchIndex, query: str, expected: str
) -> None:
    assert find(published, query)[0] == expected


# --- words ---


@pytest.mark.parametrize(
    "forms",
    [
        "delete deletes deleted deleting deletion",
        "commit commits committed committing",
        "query queries querying queried",
        "navigate navigates navigation",
        "configure configuration",
        "deploy deployment deployments",
        "write writes writing written wrote",
        "search searches searching",
    ],
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [("news", "new"), ("format", "form"), ("user", "use"), ("notion", "note"), ("string", "str")],
)
def test_different_words_have_different_stems(one: str, other: str) -> None:
    assert stem(one) != stem(other)


def test_synonyms_of_verbs_and_nouns_are_found(index: SearchIndex) -> None:
    assert find(index, "erase a document")[0] == "files__delete-file"
    assert best(index, "erase a document").reason == (
        "delete (for erase) in its name; file (for document) in its server's name"
    )


def test_exact_words_count_more_than_synonyms() -> None:
    tools = Catalog.of([FakeTool("s", "delete_page"), FakeTool("s", "remove_page")])
    assert find(SearchIndex(tools), "remove page")[0] == "s__remove_page"
    assert find(SearchIndex(tools), "delete page")[0] == "s__delete_page"


def test_separated_words_are_joined() -> None:
    tools = Catalog.of([FakeTool("s", "get_timezone"), FakeTool("s", "get_zone"), FakeTool("s", "get_time")])
    assert find(SearchIndex(tools), "time zone")[0] == "s__get_timezone"


def test_product_names_are_not_split_in_descriptions() -> None:
    index = SearchIndex(Catalog.of([FakeTool("s", "push", "Pushes to GitHub.")]))
    assert find(index, "hub") == []
    assert find(index, "GitHub") == ["s__push"]


def test_words_in_all_names_of_a_server_do_not_count_as_names() -> None:
    tools = Catalog.of(
        [
            FakeTool("web", "browser_click"),
            FakeTool("web", "browser_close"),
            FakeTool("web", "browser_open"),
            FakeTool("os", "default_browser"),
        ]
    )
    assert find(SearchIndex(tools), "browser")[0] == "os__default_browser"


def test_accents_are_ignored() -> None:
    assert find(SearchIndex(Catalog.of([FakeTool("s", "find_café")])), "cafe") == ["s__find_café"]


def test_first_sentence_counts_more_than_the_rest() -> None:
    tools = Catalog.of(
        [
            FakeTool("s", "a", "Does something. Not for invoices."),
            FakeTool("s", "b", "Prints invoices. Does nothing."),
        ]
    )
    assert find(SearchIndex(tools), "invoices", threshold=0.0) == ["s__b", "s__a"]


def test_tool_that_changes_nothing_comes_first_unless_a_change_is_wanted() -> None:
    tools = Catalog.of([FakeTool("s", "delete_folder"), FakeTool("s", "list_folder")])
    assert find(SearchIndex(tools), "folder") == ["s__list_folder", "s__delete_folder"]
    assert find(SearchIndex(tools), "erase folder")[0] == "s__delete_folder"


# --- deprecated tools ---


@pytest.mark.parametrize(
    "description",
    [
        "Sends mail. DEPRECATED: use other.",
        "Deprecated. Sends mail.",
        "[deprecated] Sends mail.",
        "Sends mail (deprecated).",
        "Sends mail. This tool is deprecated and will be removed.",
        "Sends mail. Has been deprecated",
    ],
)
def test_deprecated_tools_come_last(description: str) -> None:
    tools = Catalog.of([FakeTool("a", "send_mail", description), FakeTool("b", "mail", "Sends mail.")])
    found = SearchIndex(tools).search("send mail", limit=3, threshold=0.0)
    assert [each.entry.qualified for each in found] == ["b__mail", "a__send_mail"]
    assert found[1].reason == "send, mail in its name; deprecated"


def test_tools_about_deprecated_things_are_not_deprecated() -> None:
    tools = Catalog.of([FakeTool("s", "list_apis", "Lists deprecated APIs of a cluster.")])
    assert best(SearchIndex(tools), "list apis").score == 1


def test_replacement_has_the_score_of_the_deprecated_tool() -> None:
    tools = Catalog.of(
        [
            FakeTool("s", "fetch_mail", "Deprecated: use inbox instead of this and not outbox."),
            FakeTool("s", "inbox"),
            FakeTool("s", "outbox"),
            FakeTool("t", "inbox"),
        ]
    )
    found = SearchIndex(tools).search("fetch_mail", limit=9, threshold=0.2)
    names = [each.entry.qualified for each in found]
    assert names[0] == "s__inbox"
    assert "s__outbox" not in names


def test_tools_that_replace_each_other_are_both_deprecated() -> None:
    tools = Catalog.of(
        [FakeTool("s", "one", "Deprecated: use two."), FakeTool("s", "two", "Deprecated: use one.")]
    )
    assert best(SearchIndex(tools), "one").score < 1


# --- limits ---


def test_hostile_queries_take_bounded_time() -> None:
    tools = [
        FakeTool(f"server{n % 50}", f"{tool.name}_{n}", tool.description, tool.input_schema)
        for n in range(4_000)
        for tool in [TOOLS_OF_PUBLISHED_SERVERS[n % len(TOOLS_OF_PUBLISHED_SERVERS)]]
    ]
    index = SearchIndex(Catalog.of(tools))
    queries = [
        "get list show create delete update search find page file user name id url query text",
        "create make new add open start delete remove get show read list search find update edit",
        " ".join(f"qzx{n}vwk" for n in range(100)),
        "a" * 1_000,
        "pull request " * 80,
        " ".join("abcdefghijklmnopqrstuvwxyz"),
        "\U0010ffff" * 1_000,
    ]
    for query in queries:
        began = time.process_time()
        index.search(query, limit=100, threshold=0.0)
        assert time.process_time() - began < 0.2
