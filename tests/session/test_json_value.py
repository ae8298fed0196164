from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import time
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
import pydantic
import pytest

from hutch.session.json_value import (
    MAX_DEPTH,
    NotJsonSafe,
    decode_value,
    encode_value,
    well_formed,
)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Point(msgspec.Struct, rename="camel"):
    x_axis: int
    tags: set[str] = set()


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any = None


class User(pydantic.BaseModel):
    name: str = pydantic.Field(alias="fullName")
    born: datetime.date | None = None


def nested(depth: int, wrap: Callable[[Any], Any] = lambda inner: [inner]) -> Any:
    value: Any = wrap(1)
    for _ in range(depth - 1):
        value = wrap(value)
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, b"null"),
        (True, b"true"),
        (1.5, b"1.5"),
        ("x", b'"x"'),
        ((1, [2]), b"[1,[2]]"),
        ({"a": {"b": []}}, b'{"a":{"b":[]}}'),
        ({1: "a", None: "b", False: "c", 1.5: "d"}, b'{"1":"a","null":"b","false":"c","1.5":"d"}'),
        ({"__proto__": 1, "constructor": 2}, b'{"__proto__":1,"constructor":2}'),
        ("\ud800\x00\u2028", b'"\\ud800\\u0000\\u2028"'),
        (Color.RED, b'"red"'),
        (Level.HIGH, b"3"),
        (Point(1, {"t"}), b'{"xAxis":1,"tags":["t"]}'),
        (Pair(Point(2), Color.RED), b'{"left":{"xAxis":2,"tags":[]},"right":"red"}'),
        (User(fullName="Ann", born=datetime.date(2000, 1, 2)), b'{"fullName":"Ann","born":"2000-01-02"}'),
        ([Pair(User(fullName="Bo"))], b'[{"left":{"fullName":"Bo","born":null},"right":null}]'),
        (datetime.datetime(2020, 1, 2, 3, tzinfo=datetime.UTC), b'"2020-01-02T03:00:00Z"'),
        (uuid.UUID(int=1), b'"00000000-0000-0000-0000-000000000001"'),
        (decimal.Decimal("1.10"), b'"1.10"'),
        (10**308, str(10**308).encode()),
        ("9" * 400, b'"' + b"9" * 400 + b'"'),
    ],
)
def test_json_safe_values_become_their_json_text(value: object, text: bytes) -> None:
    assert encode_value(value) == text


class Custom:
    pass


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (float("nan"), "$ is NaN"),
        ({"a": [0, 1, 2, float("-inf")]}, "$.a[3] is -Infinity"),
        ({"a b": {1, 2}}, '$["a b"] is a set'),
        ([b"x"], "$[0] is a bytes"),
        (Custom(), "$ is a Custom"),
        ({"f": print}, "$.f is a builtin_function_or_method"),
        ({"a": {(1, 2): 3}}, "$.a has a tuple as a key"),
        (Pair([Custom()]), "$.left[0] is a Custom"),
        (Pair(Point(1, {"t"}), float("nan")), "$.right is NaN"),
        ([10**400], "$[0] is an integer too large for JavaScript"),
        ([-(10**5000)], "$[0] is an integer too large for JavaScript"),
        ((x for x in ()), "$ is a generator"),
        (1j, "$ is a complex"),
    ],
)
def test_value_that_is_not_json_is_refused_with_its_path(value: object, fault: str) -> None:
    with pytest.raises(NotJsonSafe) as caught:
        encode_value(value)
    assert str(caught.value) == fault


def test_cycles_are_refused_in_lists_dicts_and_models() -> None:
    loop: list[Any] = []
    loop.append({"back": loop})
    with pytest.raises(NotJsonSafe, match=r"^\$\[0\]\.back contains itself"):
        encode_value(loop)
    pair = Pair(1)
    pair.right = pair
    with pytest.raises(NotJsonSafe, match=r"^\$\.right contains itself"):
        encode_value(pair)


def test_value_used_twice_is_not_a_cycle() -> None:
    shared = [1]
    assert encode_value([shared, shared]) == b"[[1],[1]]"


@pytest.mark.parametrize(
    "wrap", [lambda inner: [inner], lambda inner: {"a": inner}, Pair], ids=["list", "dict", "dataclass"]
)
def test_depth_is_bounded_where_python_would_overflow(wrap: Callable[[Any], Any]) -> None:
    encode_value(nested(MAX_DEPTH // 2, wrap))
    for depth in (MAX_DEPTH * 2, 5_000):
        with pytest.raises(NotJsonSafe, match="nested deeper than 128 levels") as caught:
            encode_value(nested(depth, wrap))
        assert len(str(caught.value)) < 300
    assert decode_value(encode_value(nested(MAX_DEPTH))) == nested(MAX_DEPTH)
    with pytest.raises(NotJsonSafe):
        encode_value(nested(MAX_DEPTH + 1))


def test_model_whose_serializer_fails_is_refused() -> None:
    class Broken(pydantic.BaseModel):
        @pydantic.model_serializer
        def fail(self) -> dict[str, Any]:
            raise LookupError("no such thing")

    with pytest.raises(NotJsonSafe):
        encode_value({"a": Broken()})


def test_small_values_are_encoded_quickly() -> None:
    value = {"a": 1, "b": 2}
    best = min(_time(lambda: encode_value(value)) for _ in range(5))
    assert best < 50e-6  # takes about 3 µs; the limit allows for a busy machine


def _time(work: Callable[[], object], rounds: int = 1_000) -> float:
    started = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - started) / rounds


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":[1,2.5,-3e2,true,false,null,"x"]}',
        b'"\\ud800"',
        b'{"\\udfff":"a\\ud83d","ok":"\\ud83d\\ude00"}',
        b'{"__proto__":{"x":1}}',
        b'"\\u0000\\u2028"',
        b"  [ ]  ",
        b"123456789012345678901234567890",
    ],
)
def test_json_text_becomes_its_value(text: bytes) -> None:
    assert decode_value(text) == json.loads(text)
    assert decode_value(memoryview(text)) == json.loads(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"NaN",
        b"[Infinity]",
        b"1e999",
        b'["\\ud800", NaN]',
        b'["\\ud800", 1e999]',
        b'["\\ud800", -Infinity]',
        b'["\\ud800", ' + b"1" * 5_000 + b"]",
        b'"\xff"',
        b'["\\ud800","\xed\xa0\x80"]',
        b"[1] x",
        b"{a:1}",
        b"'a'",
    ],
)
def test_malformed_text_is_refused(text: bytes) -> None:
    with pytest.raises(NotJsonSafe, match="malformed JSON"):
        decode_value(text)


def test_text_that_is_too_deep_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(NotJsonSafe, match="deeper than 128"):
        decode_value(b"[" * 200_000 + b"]" * 200_000)
    with pytest.raises(NotJsonSafe, match="deeper than 128"):
        decode_value(b'["\\ud800",' + b"[" * 128 + b"]" * 128 + b"]")


def test_lone_surrogates_are_replaced() -> None:
    assert well_formed("a\ud800b😀") == "a\ufffdb😀"


@pytest.mark.parametrize("text", [b"[" + b"[] , " * 260_000 + b"1]", b"[" + b"100, " * 260_000 + b"1]"])
def test_long_text_with_too_many_values_is_refused(text: bytes) -> None:
    with pytest.raises(NotJsonSafe, match="more than 250000 values"):
        decode_value(text)


def test_short_text_may_have_any_number_of_values() -> None:
    assert len(decode_value(b"[" + b"1," * 520_000 + b"1]")) == 520_001
    with pytest.raises(NotJsonSafe, match="lone surrogates and more than 250000 values"):
        decode_value(b'["\\ud800",' + b"1," * 260_000 + b"1]")


def test_punctuation_in_strings_does_not_count_as_values() -> None:
    text = 'a,[{\\"' * 600_000
    assert decode_value(encode_value([text])) == [text]


@pytest.mark.parametrize("value", [[0] * 249_999, [{}] * 124_999, ["\ud800"] * 249_999])
def test_text_with_the_maximum_number_of_values_is_decoded(value: Any) -> None:
    assert decode_value(encode_value(value)) == value


def test_lone_surrogates_do_not_bypass_the_limit_of_values() -> None:
    with pytest.raises(NotJsonSafe, match="more than 250000 values"):
        decode_value(b'["\\ud800",' + b"{}," * 130_000 + b"1]")


def test_letters_are_kept_in_text_with_lone_surrogates() -> None:
    value = {"d": "dD\ud800\\ud800", "0": [1.5, True, "\udfff\U0001f600"]}
    assert decode_value(json.dumps(value).encode()) == value


def test_number_of_escapes_is_limited_only_with_lone_surrogates() -> None:
    assert decode_value(b'"' + b"\\u00e9" * 260_000 + b'"') == "é" * 260_000
    with pytest.raises(NotJsonSafe, match="lone surrogates and more than 250000 values or escapes"):
        decode_value(b'"' + b"\\ud800" * 260_000 + b'"')
