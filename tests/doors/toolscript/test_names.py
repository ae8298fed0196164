from __future__ import annotations

import itertools

import pytest
from tests.doors.toolscript.scripted import Given

from hutch.doors.toolscript.catalog import Catalog
from hutch.doors.toolscript.names import camel_case, name_all


@pytest.mark.parametrize(
    ("original", "name"),
    [
        ("create_issue", "createIssue"),
        ("create-issue", "createIssue"),
        ("create.issue/now", "createIssueNow"),
        ("create issue", "createIssue"),
        ("getUserName", "getUserName"),
        ("get_userName", "getUserName"),
        ("GetUser", "getUser"),
        ("HTTPGet", "httpGet"),
        ("API_call", "apiCall"),
        ("get_HTTP_status", "getHTTPStatus"),
        ("GET_USER_NAME", "getUserName"),
        ("ID", "id"),
        ("_private_", "private"),
        ("2fa_check", "_2faCheck"),
        ("v2", "v2"),
        ("$ref", "$ref"),
        ("größe_lesen", "größeLesen"),
        ("e\u0301tat", "état"),
        ("天気_予報", "天気予報"),
        ("delete", "delete"),
        ("__proto__", "proto"),
        ("constructor", "constructor_"),
        ("then", "then_"),
        ("to_string", "toString_"),
        ("toJSON", "toJSON_"),
        ("🙂", ""),
        ("", ""),
        ("\ud800", ""),
        ("a\ud800b", "aB"),
        ("x'];evil();//", "xEvil"),
    ],
)
def test_names_become_camel_case(original: str, name: str) -> None:
    assert camel_case(original) == name


def test_names_are_bounded() -> None:
    assert len(camel_case("x" * 10_000_000)) == 100


def test_of_names_that_collide_each_gets_its_own_whatever_their_order() -> None:
    originals = ["get-user", "get_user", "getUser", "get user", "get_user_2", "other"]
    expected = {
        "getUser": "getUser",
        "get_user": "getUser_2",
        "get user": "getUser_3",
        "get-user": "getUser_4",
        "get_user_2": "getUser2",
        "other": "other",
    }
    for order in itertools.permutations(originals):
        assert name_all(order, "tool").names == expected


def test_a_collision_is_told_with_what_became_of_each() -> None:
    naming = name_all(["get-user", "get_user", "x"], "tool")
    assert naming.collisions == [("getUser", {"get_user": "getUser", "get-user": "getUser_2"})]


def test_the_nameless_get_names_too() -> None:
    assert name_all(["", "🙂", "--"], "tool").names == {"": "tool", "--": "tool_2", "🙂": "tool_3"}


def test_thousands_of_equal_names_are_soon_told_apart() -> None:
    names = name_all([f"a{'-' * n}b" for n in range(1, 5_000)], "tool").names
    assert len(set(names.values())) == len(names)


def test_every_tool_has_a_qualified_name_of_its_own() -> None:
    catalog = Catalog.of([Given("a", "b__c"), Given("a__b", "c"), Given("x", "\ud800"), Given("x", "\ud801")])
    assert [each.qualified for each in catalog] == ["a__b__c", "a__b__c__2", "x__\ufffd", "x__\ufffd__2"]
    assert catalog.called("a__b__c__2") is catalog.original("a__b", "c")


def test_of_two_tools_with_one_name_the_first_counts() -> None:
    catalog = Catalog.of([Given("a", "b", "first"), Given("a", "b", "second")])
    assert [each.description for each in catalog] == ["first"]
    assert catalog.duplicates == [("a", "b")]


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (None, ["github__get_user", "github__get-user", "fs-server__read"]),
        ("", ["github__get_user", "github__get-user", "fs-server__read"]),
        (" , ", ["github__get_user", "github__get-user", "fs-server__read"]),
        ("github", ["github__get_user", "github__get-user"]),
        ("github__get-user", ["github__get-user"]),
        ("fs-server, github__get_user", ["github__get_user", "fs-server__read"]),
        ("fsServer__read", ["fs-server__read"]),
        ("nobody", []),
    ],
)
def test_a_filter_names_servers_and_tools(only: str | None, names: list[str]) -> None:
    catalog = Catalog.of(
        [Given("github", "get_user"), Given("github", "get-user"), Given("fs-server", "read")]
    )
    assert [each.qualified for each in catalog.filtered(only)] == names


def test_a_filter_changes_no_names() -> None:
    catalog = Catalog.of([Given("github", "get_user"), Given("github", "get-user")])
    assert [each.member for each in catalog.filtered("github__get-user")] == ["getUser_2"]
    assert catalog.unknown("github,githb") == ["githb"]
