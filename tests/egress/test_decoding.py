from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from hutch.egress.decoding import MAX_MEMBERS, PIECE, BadEncoding, Decoder

TEXT = b"some text, " * 20_000


def bomb(mebibytes: int) -> bytes:
    """So much, in a thousandth of it, and made at once: one compressed mebibyte again and again."""
    deflating = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = deflating.compress(bytes(1024 * 1024)) + deflating.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + one * mebibytes


def deflated(data: bytes, *, wrapped: bool = True) -> bytes:
    deflating = zlib.compressobj(9, zlib.DEFLATED, 15 if wrapped else -15)
    return deflating.compress(data) + deflating.flush()


def decoded(encoding: str, data: bytes, size: int = 1_000_000) -> bytes:
    decoder, out = Decoder(encoding), b""
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        while piece := decoder.pull():
            assert encoding in ("", "identity") or len(piece) <= PIECE
            out += piece
    decoder.finish()
    return out


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 1_000_000])
@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("", TEXT[:3000]),
        ("identity", TEXT[:3000]),
        ("gzip", gzip.compress(TEXT)),
        ("X-GZIP", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:99]) + gzip.compress(TEXT[99:])),
        ("gzip, identity", gzip.compress(TEXT)),
        ("deflate", deflated(TEXT)),
        ("deflate", deflated(TEXT, wrapped=False)),
        ("gzip", b""),
    ],
)
def test_every_encoding_that_was_asked_for_is_undone(encoding: str, data: bytes, size: int) -> None:
    expected = b"" if not data else TEXT if len(data) != 3000 else data
    assert decoded(encoding, data, size) == expected


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "x" * 1000])
def test_what_was_not_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(BadEncoding, match=r"although only gzip, deflate was asked for"):
        Decoder(encoding)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_not_compressed_or_ends_early_is_noticed(encoding: str) -> None:
    with pytest.raises(BadEncoding, match="not compressed as it says"):
        decoded(encoding, b"\xff" * 100)
    data = gzip.compress(TEXT) if encoding == "gzip" else deflated(TEXT)
    with pytest.raises(BadEncoding, match="ends in the middle"):
        decoded(encoding, data[:-10])


def test_what_follows_the_end_is_nobodys() -> None:
    assert decoded("gzip", gzip.compress(TEXT) + b"\0" * 100) == TEXT
    assert decoded("deflate", deflated(TEXT) + b"more", 1000) == TEXT


def test_a_flood_of_empty_parts_is_refused() -> None:
    with pytest.raises(BadEncoding, match="compressed parts"):
        decoded("gzip", gzip.compress(b"") * (MAX_MEMBERS + 1))


def test_a_bomb_is_never_held_in_memory() -> None:
    data = bomb(32)
    decoder, total = Decoder("gzip"), 0
    tracemalloc.start()
    try:
        decoder.feed(data)
        while piece := decoder.pull():
            total += len(piece)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 32 * 1024 * 1024
    assert peak < 1024 * 1024
