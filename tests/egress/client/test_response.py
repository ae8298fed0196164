from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from hutch.egress.client.response import MAX_GZIP_MEMBERS, PIECE_BYTES, BadEncoding, BodyDecoder

TEXT = b"some text, " * 20_000


def bomb(mebibytes: int) -> bytes:
    """Returns `size` bytes at a ratio of 1000:1, made quickly by repeating one compressed mebibyte."""
    deflating = zlib.compressobj(9, zlib.DEFLATED, -15)
    one = deflating.compress(bytes(1024 * 1024)) + deflating.flush(zlib.Z_FULL_FLUSH)
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + one * mebibytes


def deflated(data: bytes, *, wrapped: bool = True) -> bytes:
    deflating = zlib.compressobj(9, zlib.DEFLATED, 15 if wrapped else -15)
    return deflating.compress(data) + deflating.flush()


def decoded(encoding: str, data: bytes, size: int = 1_000_000) -> bytes:
    decoder, out = BodyDecoder(encoding), b""
    for at in range(0, len(data), size):
        decoder.feed(data[at : at + size])
        while piece := decoder.pull():
            assert encoding in ("", "identity") or len(piece) <= PIECE_BYTES
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
def test_accepted_encodings_are_decoded(encoding: str, data: bytes, size: int) -> None:
    expected = b"" if not data else TEXT if len(data) != 3000 else data
    assert decoded(encoding, data, size) == expected


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "x" * 1000])
def test_other_encodings_are_rejected(encoding: str) -> None:
    with pytest.raises(BadEncoding, match=r"but only gzip, deflate was asked for"):
        BodyDecoder(encoding)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_invalid_or_truncated_data_is_rejected(encoding: str) -> None:
    with pytest.raises(BadEncoding, match="the compressed data is invalid"):
        decoded(encoding, b"\xff" * 100)
    data = gzip.compress(TEXT) if encoding == "gzip" else deflated(TEXT)
    with pytest.raises(BadEncoding, match="is truncated"):
        decoded(encoding, data[:-10])


def test_data_after_the_end_is_ignored() -> None:
    assert decoded("gzip", gzip.compress(TEXT) + b"\0" * 100) == TEXT
    assert decoded("deflate", deflated(TEXT) + b"more", 1000) == TEXT


def test_too_many_gzip_members_are_rejected() -> None:
    with pytest.raises(BadEncoding, match="compressed parts"):
        decoded("gzip", gzip.compress(b"") * (MAX_GZIP_MEMBERS + 1))


def test_compression_bomb_is_never_in_memory() -> None:
    data = bomb(32)
    decoder, total = BodyDecoder("gzip"), 0
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
