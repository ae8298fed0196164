from __future__ import annotations

import time

import pytest

from hutch.errors import InvalidTool
from hutch.session.tools.names import RESERVED_WORDS, check_namespace, is_identifier, safe_names


def only(original: str) -> str:
    (safe,) = safe_names([original])
    return safe


@pytest.mark.parametrize(
    ("original", "safe"),
    [
        ("add", "add"),
        ("my-tool.with spaces", "my_tool_with_spaces"),
        ("  ---tool name---  ", "tool_name"),
        ("a__b", "a__b"),
        ("$x", "$x"),
        ("_hidden_", "hidden"),
        ("__proto__", "proto"),
        ("constructor", "constructor"),
        ("3d.render", "_3d_render"),
        ("delete", "delete_"),
        ("", "_"),
        ("   ", "_"),
        ("---", "_"),
        ("größe", "gr_e"),
        ("名前", "_"),
        ("a\nb\u2028c", "a_b_c"),
        ("٣x", "x"),  # a digit, but not an ASCII digit
    ],
)
def test_original_name_becomes_an_identifier(original: str, safe: str) -> None:
    assert only(original) == safe
    assert is_identifier(safe)


@pytest.mark.parametrize("word", sorted(RESERVED_WORDS))
def test_reserved_words_get_a_trailing_underscore(word: str) -> None:
    assert only(word) == f"{word}_"


def test_words_of_strict_and_module_code_are_reserved() -> None:
    assert {"await", "yield", "let", "static", "enum", "null", "true", "eval", "arguments"} <= RESERVED_WORDS
    assert not {"async", "of", "get", "type", "then", "constructor"} & RESERVED_WORDS


def test_collisions_are_numbered_in_order_of_insertion() -> None:
    assert safe_names(["x", "x!", "x?"]) == {"x": "x", "x__2": "x!", "x__3": "x?"}
    assert list(safe_names(["b", "a"])) == ["b", "a"]


def test_generated_names_do_not_collide_with_literal_ones() -> None:
    assert safe_names(["x", "x", "x__2"]) == {"x": "x", "x__2": "x", "x__2__2": "x__2"}
    assert safe_names(["x__2", "x", "x"]) == {"x__2": "x__2", "x": "x", "x__3": "x"}


def test_many_equal_names_are_numbered_in_linear_time() -> None:
    started = time.process_time()
    assert len(safe_names(["x"] * 50_000)) == 50_000
    assert time.process_time() - started < 5


@pytest.mark.parametrize("name", ["tools", "_", "$", "a1", "constructor", "async", "__proto__"])
def test_identifiers_are_accepted_as_namespaces(name: str) -> None:
    check_namespace(name)


@pytest.mark.parametrize(
    "name",
    ["", "my-tools", "1a", "a b", "tools\n", "größe", "class", "let", "undefined", "globalThis", None, 5],
)
def test_other_namespaces_are_refused(name: object) -> None:
    with pytest.raises(
        InvalidTool, match=r"^Invalid provider namespace: .*\. Expected a JavaScript identifier"
    ):
        check_namespace(name)


def test_error_message_shows_the_namespace_on_one_line() -> None:
    with pytest.raises(InvalidTool, match="Invalid provider namespace: my-tools"):
        check_namespace("my-tools")
    with pytest.raises(InvalidTool) as caught:
        check_namespace("a\nb")
    assert "\n" not in str(caught.value)
