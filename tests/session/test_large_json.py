"""Decoding in pieces: a text gives the same values and the same refusals as if it were decoded at once."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from tests.support.stalls import LoopStalls, repeat_on_stall

from hutch.session import large_json
from hutch.session.json_value import NotJsonSafe, decode_value, encode_value
from hutch.session.large_json import (
    DuplicateKey,
    decode_large_value,
    encode_large_result,
    encode_large_value,
)
from hutch.strict_json import find_duplicate_key

MILLION = 1_000_000


@pytest.fixture(params=[1, 3, 17])
def _small_pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_json, "LARGE_TEXT_BYTES", 0)
    monkeypatch.setattr(large_json, "_PIECE_BYTES", request.param)
    monkeypatch.setattr(large_json, "_STRING_BYTES", 15 + request.param)


def random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.random()
    if depth > 4 or kind < 0.3:
        return rng.choice([1, -2.5, 1e300, "", 'a"b\\', "é,[{:", "\\\\", True, None, "\ud800", 10**20])
    if kind < 0.65:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    keys = [f"{number}{rng.choice(',:[é')}" for number in range(rng.randrange(5))]
    return {key: random_value(rng, depth + 1) for key in keys}


@pytest.mark.usefixtures("_small_pieces")
async def test_pieces_decode_like_the_whole_text() -> None:
    rng = random.Random(1)
    for number in range(300):
        value = random_value(rng)
        text = json.dumps(value, indent=number % 3 or None).encode()
        assert await decode_large_value(text) == value
        # Replace or remove one character. The result or the refusal must be that of the normal decoder.
        at = rng.randrange(len(text))
        changed = text[:at] + rng.choice([b"", b",", b"]", b"}", b'"', b"\\", b"[", b":"]) + text[at + 1 :]
        assert await _outcome(changed) == _expected(changed), changed


@pytest.mark.parametrize("place", ["before", "after", "inside"])
async def test_megabytes_of_spaces_are_ignored(place: str) -> None:
    spaces = b" " * (5 * MILLION) + b"\n"
    texts = {
        "before": spaces + b'[1, "  "]',
        "after": b'[1, "  "]' + spaces,
        "inside": b'[1,%b"  "]' % spaces,
    }
    assert await decode_large_value(texts[place]) == [1, "  "]


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize("plain_letters", [True, False])
async def test_long_strings_decode_like_short_ones(plain_letters: bool) -> None:
    rng = random.Random(2)
    parts = ["a", "é", "€", "😀", "\\", '"', "\n", "\\u0041", "u", ",", "]"]
    for _ in range(300):
        first, second = ("".join(rng.choices(parts, k=rng.randrange(60))) for _ in range(2))
        value = rng.choice([first, [first, second], {first: second, "k": [second]}, [[first], 1, [second]]])
        text = json.dumps(value, ensure_ascii=not plain_letters).encode()
        assert await decode_large_value(text) == value, text
        # Remove one byte, so that an escape, a character or a string is incomplete. Both decoders
        # must return the same value or refuse the text.
        at = rng.randrange(len(text))
        changed = text[:at] + text[at + 1 :]
        assert await _outcome(changed) == _expected(changed), changed


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize(
    "escapes", [r"\ud83d", r"\ude00", r"\ud83d\ude00", r"\\ud83d\ude00", r"\ud83dx\ude00"]
)
async def test_surrogates_in_a_long_string_decode_like_those_in_a_short_one(escapes: str) -> None:
    for before in range(40):
        text = f'["{"x" * before}{escapes * 10}"]'.encode()
        assert await decode_large_value(text) == json.loads(text)


async def _outcome(text: bytes) -> str:
    try:
        return json.dumps(await decode_large_value(text))
    except DuplicateKey:
        return "duplicate key"
    except NotJsonSafe:
        return "malformed"


def _expected(text: bytes) -> str:
    try:
        value = decode_value(text)
    except NotJsonSafe:
        return "malformed"
    return json.dumps(value) if find_duplicate_key(text) is None else "duplicate key"


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize(
    "text",
    [
        "[1,]",
        "[,1]",
        "[1,,2]",
        "[ ,1]",
        "[1],[2]",
        "[1],",
        '{"a":1,}',
        '{"a":[1,2},3]',
        "[1,2",
        "[1,2]]",
        '[1,"a]',
        "1,2",
        '{"a":1,"b":[2,{"c":3}]',
        "[[1,2],3}",
        "[1e999,1]",
        "",
    ],
)
async def test_malformed_text_is_refused(text: str) -> None:
    with pytest.raises(NotJsonSafe):
        await decode_large_value(text.encode())


@pytest.mark.usefixtures("_small_pieces")
@pytest.mark.parametrize(
    "text", ['{"a":1,"b":2,"a":3}', '[{"a":[1,2],"a":{}}]', '{"a":{"b":[1,2],"\\u0062":1}}']
)
async def test_key_that_occurs_twice_is_refused(text: str) -> None:
    with pytest.raises(DuplicateKey):
        await decode_large_value(text.encode())


async def test_depth_and_number_of_values_are_limited() -> None:
    with pytest.raises(NotJsonSafe, match="nested deeper than 128 levels"):
        await decode_large_value(b"[" * 129 + b"1," * 40_000 + b"1" + b"]" * 129)
    with pytest.raises(NotJsonSafe, match="has more than 50000 values"):
        await decode_large_value(b"[" + b"1," * 60_000 + b"1]", 50_000)


# Decoding one of these texts in one step stalls the event loop for 0.05 to 2.5 s.
SLOW: dict[str, Callable[[], bytes]] = {
    "exponents": lambda: b"[" + b"1e300," * 250_000 + b"1]",
    "digits": lambda: b"[" + b"1.2345678901234567e-300," * 40_000 + b"1]",
    "keys": lambda: b"{" + b",".join(b'"k%d":1' % number for number in range(200_000)) + b"}",
    "objects": lambda: b"[" + b'{"a":1},' * 250_000 + b"1]",
    "arrays": lambda: b"[" + b"[]," * 300_000 + b"1]",
    "depth": lambda: b"[" + (b"[" * 120 + b"]" * 120 + b",") * 3_000 + b"1]",
    "a string of line breaks": lambda: b'"%b"' % (b"\\n" * 5_000_000),
    "a string of escapes": lambda: b'"%b"' % (rb"\u4e41" * 1_600_000),
    "a string of lone surrogates": lambda: b'"%b"' % (rb"\ud800" * 1_600_000),
    "a long number": lambda: b"[0.%b]" % (b"1" * 9_000_000),
    "long keys": lambda: b'{"%b":' % (rb"\u4e41" * 5_000) * 120 + b"1" + b"}" * 120,
    "a string that does not end": lambda: b'["%b' % (rb"\u4e41" * 1_600_000),
}


@pytest.mark.parametrize("name", SLOW)
@repeat_on_stall
async def test_slow_text_does_not_block_the_event_loop(name: str) -> None:
    text = SLOW[name]()
    value: Any = None
    async with LoopStalls() as stalls:
        with contextlib.suppress(NotJsonSafe):
            value = await decode_large_value(text, MILLION)
    assert value is None or len(value) > 1_000 or text.endswith(b"}}")
    stalls.assert_short()


@repeat_on_stall
async def test_value_with_long_strings_is_encoded_in_pieces() -> None:
    """Encoding this value in one step takes 40 to 90 ms."""
    value = {"a": [1, {"b\ud800": '"\\' * 4_000_000}, "é" * 100_000 + "\ud800"], "c": [], "d": 10**20}
    async with LoopStalls() as stalls:
        text = await encode_large_value(value)
    assert json.loads(text) == value
    stalls.assert_short()


LONG = 'é"\x01\ud800😀' * 60_000
RESULTS: list[Any] = [
    LONG,
    [LONG, {"a": LONG, "": [1, None, {"b": [LONG]}]}, 2.5, LONG],
    {LONG: LONG, "n": list(range(20_000))},
    {1: LONG, "1": True},
    [LONG] * 5,
    (LONG, LONG),
    {"date": date(2031, 2, 3), "text": LONG},
]


@pytest.mark.parametrize("value", RESULTS, ids=range(len(RESULTS)))
async def test_large_result_is_encoded_as_at_once(value: Any) -> None:
    assert await encode_large_result(value) == encode_value(value)


def nested(levels: int) -> Any:
    value: Any = LONG
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([LONG, {"a": [float("nan")]}], r"\$\[1\]\.a\[0\] is NaN"),
        ({"a": LONG, "b": object()}, r"\$\.b is an object"),
        (nested(200), "nested deeper than 128 levels"),
    ],
    ids=["NaN", "an object", "levels"],
)
async def test_large_result_that_is_not_json_names_the_invalid_part(value: Any, problem: str) -> None:
    with pytest.raises(NotJsonSafe, match=problem):
        await encode_large_result(value)
