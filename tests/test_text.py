"""Terminal-safe strings, timestamps and suggestions for misspelled names."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from hutch.text import (
    PROSE,
    columns,
    did_you_mean,
    format_rfc3339,
    format_unix_time,
    has_control_character,
    is_storable_text,
    now_rfc3339,
    printable,
)


@pytest.mark.parametrize(
    "text", ["", "plain text", "Grüße, 世界", "\N{GRINNING FACE}", "e\u0301", "1\u202f234 名\u3000前\u00a0"]
)
def test_printable_leaves_ordinary_text_unchanged(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("char", "shown"),
    [
        ("\x1b", "\\u001b"),
        ("\x00", "\\u0000"),
        ("\r", "\\u000d"),
        ("\n", "\\u000a"),
        ("\t", "\\u0009"),
        ("\x7f", "\\u007f"),
        ("\x9b", "\\u009b"),  # CSI as one character
        ("\u202e", "\\u202e"),  # right-to-left override
        ("\u2066", "\\u2066"),  # left-to-right isolate
        ("\u200b", "\\u200b"),  # zero-width space
        ("\u200d", "\\u200d"),
        ("\u2028", "\\u2028"),  # line separator
        ("\u2029", "\\u2029"),  # paragraph separator
        ("\x85", "\\u0085"),  # next line
        ("\u200f", "\\u200f"),  # right-to-left mark
        ("\u061c", "\\u061c"),  # Arabic letter mark
        ("\ufeff", "\\ufeff"),  # byte order mark
        ("\ud800", "\\ud800"),
        ("\ue000", "\\ue000"),
        ("\U000e0041", "\\U000e0041"),  # a tag character, invisible
    ],
)
def test_printable_escapes_characters_that_a_terminal_interprets_or_hides(char: str, shown: str) -> None:
    assert printable(f"a{char}b") == f"a{shown}b"


def test_printable_keeps_the_characters_asked_for() -> None:
    assert printable("a\tb\nc\x1b", keep="\n\t") == "a\tb\nc\\u001b"
    family = "\N{MAN}\u200d\N{GIRL}"
    assert printable(f"{family}\n\tb\u202e", keep=PROSE) == f"{family}\n\tb\\u202e"


def test_printable_uses_a_replacement_where_columns_matter() -> None:
    assert printable("a\x1b\U000e0041b", replacement="\N{REPLACEMENT CHARACTER}") == "a\ufffd\ufffdb"
    assert printable("a\x1bb\n", replacement="") == "ab"


@pytest.mark.parametrize(
    "code", [*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
def test_printable_replaces_every_control_character_and_direction_override(code: int) -> None:
    assert printable(f"a{chr(code)}b", replacement="?") == "a?b"


def test_columns_of_wide_and_combining_characters() -> None:
    assert columns("") == 0
    assert columns("plain") == 5
    assert columns("世界") == 4
    assert columns("e\u0301") == 1
    assert columns("Grüße") == 5


@pytest.mark.parametrize("char", ["\x00", "\n", "\x1b", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\ud800"])
def test_control_characters_are_found(char: str) -> None:
    assert has_control_character(f"a{char}")
    assert not has_control_character("Grüße, 世界 \u00a0")


def test_nul_and_lone_surrogates_cannot_be_stored() -> None:
    assert is_storable_text("Grüße\n\x1b \N{GRINNING FACE}")
    assert not is_storable_text("a\0")
    assert not is_storable_text("a\ud83d")


def test_timestamp_is_utc_with_milliseconds() -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    text = now_rfc3339()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert before <= datetime.fromisoformat(text) <= datetime.now(UTC)


def test_timestamp_of_another_time_zone_is_converted() -> None:
    moment = datetime(2031, 2, 3, 4, 5, 6, 789_999, timezone(timedelta(hours=2)))
    assert format_rfc3339(moment) == "2031-02-03T02:05:06.789Z"
    assert format_rfc3339(datetime(2031, 2, 3, tzinfo=UTC)) == "2031-02-03T00:00:00.000Z"


@pytest.mark.parametrize("seconds", [0, 1_926_907_506.789_999, 1_926_907_506.999_999_9, 951_782_399.5, -0.25])
def test_unix_time_is_formatted_like_the_same_moment(seconds: float) -> None:
    assert format_unix_time(seconds) == format_rfc3339(datetime.fromtimestamp(seconds, UTC))


def test_suggestion_is_the_most_similar_name() -> None:
    assert did_you_mean("timout_ms", ["timeout_ms", "port", "tool_timeout_ms"]) == "timeout_ms"
    assert did_you_mean("zzz", ["timeout_ms", "port"]) is None
    assert did_you_mean("port", iter(["prot"])) == "prot"
    assert did_you_mean("x", []) is None


def test_suggestion_needs_the_similarity_asked_for() -> None:
    assert did_you_mean("parameter", ["params"]) == "params"
    assert did_you_mean("parameter", ["params"], cutoff=0.85) is None


def test_long_names_and_long_lists_get_no_suggestion() -> None:
    long = "a" * 101
    assert did_you_mean(long, [long]) is None
    assert did_you_mean("a" * 100, [long, "a" * 99]) == "a" * 99
    assert did_you_mean("port", ["port"] * 1_001) is None


def test_hostile_names_get_a_suggestion_in_time() -> None:
    """For a thousand names that consist of the same letters, difflib needs seconds."""
    name = "ab" * 50
    candidates = ["ba" * (50 - number % 5) + "b" * (number % 3) for number in range(1_000)]
    began = time.process_time()
    for _ in range(10):
        assert did_you_mean(name, candidates) is not None
    assert time.process_time() - began < 2
