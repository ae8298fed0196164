from __future__ import annotations

import itertools

import pytest
from tests.protocols.toolscript.fakes import FakeTool

from hutch.protocols.toolscript.gateway.catalog import Catalog, assign_names, camel_case


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


def test_names_are_limited() -> None:
    assert len(camel_case("x" * 10_000_000)) == 100


def test_colliding_names_are_numbered_independently_of_their_order() -> None:
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
        assert assign_names(order, "tool").names == expected


def test_collisions_are_reported() -> None:
    naming = assign_names(["get-user", "get_user", "x"], "tool")
    assert naming.collisions == [("getUser", {"get_user": "getUser", "get-user": "getUser_2"})]


def test_names_without_letters_get_a_default() -> None:
    assert assign_names(["", "🙂", "--"], "tool").names == {"": "tool", "--": "tool_2", "🙂": "tool_3"}


def test_thousands_of_equal_names_are_numbered_quickly() -> None:
    names = assign_names([f"a{'-' * n}b" for n in range(1, 5_000)], "tool").names
    assert len(set(names.values())) == len(names)


def test_every_tool_has_a_unique_qualified_name() -> None:
    catalog = Catalog.of(
        [FakeTool("a", "b__c"), FakeTool("a__b", "c"), FakeTool("x", "\ud800"), FakeTool("x", "\ud801")]
    )
    assert [each.qualified for each in catalog] == ["a__b__c", "a__b__c__2", "x__\ufffd", "x__\ufffd__2"]
    assert catalog.by_qualified_name("a__b__c__2") is catalog.by_original_name("a__b", "c")


def test_first_of_two_tools_with_the_same_name_is_used() -> None:
    catalog = Catalog.of([FakeTool("a", "b", "first"), FakeTool("a", "b", "second")])
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
        ("unknown", []),
    ],
)
def test_filter_selects_servers_and_tools(only: str | None, names: list[str]) -> None:
    catalog = Catalog.of(
        [FakeTool("github", "get_user"), FakeTool("github", "get-user"), FakeTool("fs-server", "read")]
    )
    assert [each.qualified for each in catalog.filtered(only)] == names


def test_filter_does_not_change_names() -> None:
    catalog = Catalog.of([FakeTool("github", "get_user"), FakeTool("github", "get-user")])
    assert [each.member for each in catalog.filtered("github__get-user")] == ["getUser_2"]
    assert catalog.unknown_items("github,githb") == ["githb"]
