"""Syntax of references."""

from __future__ import annotations

import time

import pytest

from hutch.protocols.rep.ir.references import (
    MAX_REFERENCE_CHARS,
    MAX_SEGMENTS,
    BadReference,
    Reference,
    parse_reference,
    parse_template,
)


@pytest.mark.parametrize(
    "text",
    ["", "$", "$5.00", "$inputs.x", "$stepping.x", "$.other.x", "hello $input.name", "$(x)", "${name}"],
)
def test_other_texts_are_not_references(text: str) -> None:
    assert parse_reference(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "$step",
        "$step.",
        "$input.",
        "$input..a",
        "$input.a[",
        "$input.a[x]",
        '$input["a',
        "$input.a()",
        "$step[0]",
    ],
)
def test_malformed_reference_is_refused(text: str) -> None:
    with pytest.raises(BadReference):
        parse_reference(text)


def test_length_of_a_reference_is_limited() -> None:
    keys = ".k" * MAX_SEGMENTS
    assert parse_reference(f"$input{keys}") is not None
    with pytest.raises(BadReference, match=f"has more than {MAX_SEGMENTS} keys and indexes"):
        parse_reference(f"$input{keys}.k")
    long = f"$input.{'k' * MAX_REFERENCE_CHARS}"
    with pytest.raises(BadReference, match=f"expected at most {MAX_REFERENCE_CHARS} characters") as refused:
        parse_reference(long)
    assert len(str(refused.value)) < 200
    assert parse_reference(long.replace("$input", "$other")) is None


def test_long_references_are_parsed_in_time() -> None:
    text = "$step" + ".a" * 30_000
    began = time.process_time()
    for _ in range(100):
        with pytest.raises(BadReference):
            parse_reference(text, {"a"})
    assert time.process_time() - began < 1


def test_longest_matching_id_wins() -> None:
    steps = {"a", "a.b", "a.b.c.d"}
    assert parse_reference("$step.a.b.c", steps) == Reference("$step.a.b.c", "a.b", ("c",), "step")
    assert parse_reference("$step.a.x", steps) == Reference("$step.a.x", "a", ("x",), "step")
    assert parse_reference("$step.a[0].b", steps) == Reference("$step.a[0].b", "a", (0, "b"), "step")


def test_item_and_index_are_references_only_inside_of_for_each() -> None:
    assert parse_reference("$item.name", in_item=True) == Reference("$item.name", None, ("name",), "item")
    assert parse_reference("$index", in_item=True) == Reference("$index", None, (), "index")
    assert parse_reference("$item.name") is None
    assert parse_reference("$index") is None
    assert parse_template("${item.name}") == ("${item.name}",)
    with pytest.raises(BadReference, match=r"\$index is a number"):
        parse_reference("$index.x", in_item=True)
