"""Search of run records: filters, order, cursor and bounds, on SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any

import pytest
from tests.store.factories import make_run

from hutch.errors import SearchTimeout
from hutch.store.models import NewRun
from hutch.store.store import Store
from hutch.store.tables import run_search
from hutch.store.tables.run_search import EndedStatus, Match, RunQuery


def include(*values: str) -> Match:
    return Match(any_of=values)


def exclude(*values: str) -> Match:
    return Match(none_of=values)


def at(second: int) -> str:
    return f"2031-02-03T04:05:{second:02}.000Z"


RUNS = [
    NewRun(make_run("ada", run_id="a0", created_at=at(0), duration_ms=5.0, label="Get_User")),
    NewRun(
        make_run("ada", run_id="a1", created_at=at(1), duration_ms=1.0, outcome="timeout"), None, ("gh.get",)
    ),
    NewRun(
        make_run("bob", run_id="b2", created_at=at(2), duration_ms=9.0, protocol="mcp"),
        None,
        ("gh.get", "gh.put"),
    ),
    NewRun(
        make_run(
            "bob",
            run_id="b3",
            created_at=at(3),
            duration_ms=3.0,
            outcome="runtime_error",
            engine="deno",
            error_message="TypeError: no such Thing",
        ),
        None,
        (),
        ("api.test",),
    ),
    NewRun(
        make_run("ada", run_id="a4", created_at=at(4), duration_ms=3.0, label="get_all", parent_run_id="b2")
    ),
]

COMPLETED: frozenset[EndedStatus] = frozenset({"completed"})
FAILED: frozenset[EndedStatus] = frozenset({"failed"})
FILTERS: list[tuple[dict[str, Any], str]] = [
    ({}, "a4 b3 b2 a1 a0"),
    ({"descending": False}, "a0 a1 b2 b3 a4"),
    ({"sort": "duration"}, "b2 a0 b3 a4 a1"),
    ({"sort": "duration", "descending": False, "owner": include("ada")}, "a1 a4 a0"),
    ({"owner": include("ada")}, "a4 a1 a0"),
    ({"owner": exclude("ada")}, "b3 b2"),
    ({"owner": include("ada", "bob"), "protocol": exclude("mcp")}, "a4 b3 a1 a0"),
    ({"protocol": include("mcp")}, "b2"),
    ({"engine": include("deno")}, "b3"),
    ({"ended": FAILED}, "b3 a1"),
    ({"ended": FAILED, "owner": include("bob")}, "b3"),
    ({"ended": COMPLETED}, "a4 b2 a0"),
    ({"outcome": include("timeout")}, "a1"),
    ({"outcome": include("timeout"), "ended": COMPLETED}, ""),
    ({"outcome": exclude("timeout"), "ended": FAILED}, "b3"),
    ({"label": include("get_all")}, "a4"),
    ({"label": include("get_*")}, "a4 a0"),
    ({"label": exclude("get_all")}, "b3 b2 a1 a0"),
    ({"tool": include("gh.get")}, "b2 a1"),
    ({"tool": include("gh.get"), "owner": include("bob")}, "b2"),
    ({"tool": include("gh.get"), "sort": "duration"}, "b2 a1"),
    ({"tool": include("gh.get", "gh.put")}, "b2 a1"),
    ({"tool": exclude("gh.put")}, "a4 b3 a1 a0"),
    ({"host": include("api.test")}, "b3"),
    ({"host": exclude("api.test"), "ended": FAILED}, "a1"),
    ({"parent": "b2"}, "a4"),
    ({"text": include("USER")}, "a0"),
    ({"text": include("gh.p", "api.t")}, "b3 b2"),
    ({"text": include("%")}, ""),
    ({"text": exclude("gh.", "get_")}, "b3"),
    ({"text": include("such thing")}, "b3"),
    ({"text": Match(("b",), ("thing",))}, "b2"),
    ({"text": include("such thing"), "owner": include("ada")}, ""),
    ({"since": at(1), "until": at(3)}, "b2 a1"),
    ({"since": at(1), "until": at(4), "sort": "duration"}, "b2 b3 a1"),
]


@pytest.mark.parametrize("paged", [False, True])
async def test_filters_find_the_matching_runs_in_order(store: Store, paged: bool) -> None:
    await store.runs.add_new(RUNS)
    for filters, expected in FILTERS:
        found: list[str] = []
        query = RunQuery(**filters, limit=1 if paged else 100)
        while True:
            page = await store.runs.search(query)
            found += [run.run_id for run in page.runs]
            if page.next is None:
                break
            query = RunQuery(**filters, limit=1, after=page.next)
        assert (filters, " ".join(found)) == (filters, expected)


async def test_search_stops_after_a_bounded_number_of_rows_and_can_be_continued(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_search, "MAX_SCANNED", 2)
    await store.runs.add_new(RUNS)
    filters: dict[str, Any] = {"text": include("user")}
    first = await store.runs.search(RunQuery(**filters))
    assert (first.runs, first.next, first.is_partial) == ([], (at(3), "b3"), True)
    second = await store.runs.search(RunQuery(**filters, after=first.next))
    assert (second.runs, second.next) == ([], (at(1), "a1"))
    third = await store.runs.search(RunQuery(**filters, after=second.next))
    assert ([run.run_id for run in third.runs], third.next, third.is_partial) == (["a0"], None, False)


@pytest.mark.parametrize(
    "filters",
    [
        {"tool": include("gh.get")},
        {"host": include("api.test")},
        {"outcome": include("runtime_error")},
        {"label": include("x")},
        {"parent": "b2"},
        {"text": include("user"), "sort": "duration"},
    ],
)
async def test_search_of_an_owner_tells_nothing_about_runs_of_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]
) -> None:
    monkeypatch.setattr(run_search, "MAX_SCANNED", 1)
    others = {"label": "x", "outcome": "runtime_error", "parent_run_id": "b2"}
    await store.runs.add_new(
        NewRun(make_run("bob", run_id=f"b{n}", created_at=at(n), **others), None, ("gh.get",), ("api.test",))
        for n in range(3)
    )
    page = await store.runs.search(RunQuery(owner=include("ada"), **filters))
    assert (page.runs, page.next, page.is_partial) == ([], None, False)


async def test_counts_ignore_the_status_and_say_if_they_are_complete(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.runs.add_new(RUNS)
    assert await store.runs.count(RunQuery()) == (3, 2, 0, True)
    assert await store.runs.count(RunQuery(owner=include("ada"), ended=FAILED, limit=1)) == (2, 1, 0, True)
    assert await store.runs.count(RunQuery(text=include("gh."), outcome=include("x"))) == (1, 1, 0, True)
    assert await store.runs.count(RunQuery(text=include("thing"))) == (0, 1, 0, True)
    monkeypatch.setattr(run_search, "MAX_SCANNED", 2)
    assert await store.runs.count(RunQuery()) == (1, 1, 0, False)


async def test_search_that_takes_too_long_is_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = """
        WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers)
        SELECT MAX(n) FROM numbers
    """
    with pytest.raises(SearchTimeout):
        await store._database.search(endless, 0.05)
    await store.runs.add_new(RUNS)
    assert len((await store.runs.search(RunQuery())).runs) == len(RUNS)
