from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from hutch.egress.pattern_search import MAX_SEARCHED_ANCHORS, PatternSearch


def covered(patterns: Iterable[bytes], data: bytes) -> list[tuple[int, int]]:
    """Simple and slow search that finds every pattern at every position and merges overlapping ranges. The
    tests compare its results with those of the real search.
    """
    found = []
    for pattern in set(patterns):
        at = data.find(pattern)
        while at >= 0:
            found.append((at, at + len(pattern)))
            at = data.find(pattern, at + 1)
    spans: list[tuple[int, int]] = []
    for start, end in sorted(found):
        if spans and start < spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def random_bytes(rng: random.Random, alphabet: bytes, low: int, high: int) -> bytes:
    return bytes(rng.choice(alphabet) for _ in range(rng.randint(low, high)))


# Most alphabets are small, so that patterns overlap often. One alphabet contains the line feed, which
# separates the patterns inside the automaton.
@pytest.mark.parametrize("alphabet", [b"a", b"ab", b"ab\n", b"\\u0", bytes(range(256))])
@pytest.mark.parametrize("count", [1, 3, 30, 2 * MAX_SEARCHED_ANCHORS])
def test_search_finds_the_same_as_a_slow_reference(alphabet: bytes, count: int) -> None:
    rng = random.Random(count)
    for longest in (5, 20, 60):
        patterns = [random_bytes(rng, alphabet, 4, longest) for _ in range(count)]
        search = PatternSearch(patterns)
        parts = []
        for _ in range(12):
            pattern = rng.choice(patterns)
            cut = rng.randint(0, len(pattern))
            parts += [pattern[:cut], pattern, pattern[cut:], random_bytes(rng, alphabet, 0, 9)]
        rng.shuffle(parts)
        data = b"".join(parts)
        assert list(search.find(data)) == covered(patterns, data)
        assert search.may_contain(data)


@pytest.mark.parametrize("count", [1, 2 * MAX_SEARCHED_ANCHORS])
def test_pattern_is_found_at_every_position(count: int) -> None:
    rng = random.Random(count)
    patterns = [random_bytes(rng, b"0123456789abcdef", 15, 15) for _ in range(count)]
    search = PatternSearch(patterns)
    for at in range(40):
        data = b"." * at + patterns[-1] + b"." * (40 - at)
        assert list(search.find(data)) == [(at, at + 15)]


def test_end_node_is_the_longest_start_of_a_pattern() -> None:
    search = PatternSearch([b"abcabd", b"bcabcx", b"caba"])
    for data, longest in {b"abcab": 5, b"xabcabc": 5, b"abcabcab": 5, b"abx": 0, b"abcabd": 0}.items():
        assert search.automaton.depth(search.end_node(data)) == longest, data
