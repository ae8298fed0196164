"""Undoes a body's compression piece by piece, so that a little that means a lot is never held as such."""

from __future__ import annotations

import zlib

PIECE = 64 * 1024
ACCEPTED = "gzip, deflate"
# Each costs a copy of what follows it.
MAX_MEMBERS = 1024

_GZIP = 16 + zlib.MAX_WBITS


class BadEncoding(ValueError):
    """The body is not encoded as its header says, or in a way that is not known here."""


class Decoder:
    """Of one body. Give it what came, then pull until there is nothing."""

    def __init__(self, encoding: str) -> None:
        """`encoding` is the value of Content-Encoding, or empty. Raises BadEncoding."""
        names = [
            name for each in encoding.lower().split(",") if (name := each.strip()) not in ("", "identity")
        ]
        if len(names) > 1 or (names and names[0] not in ("gzip", "x-gzip", "deflate")):
            raise BadEncoding(f"it is encoded as {encoding[:64]!r}, although only {ACCEPTED} was asked for")
        self._inflating: zlib._Decompress | None = None
        self._gzip = bool(names) and names[0] != "deflate"
        self._plain = not names
        self._members = 0
        self._more = False
        self._over = False
        self._waiting = b""

    def feed(self, data: bytes) -> None:
        self._waiting = self._waiting + data if self._waiting else data

    def pull(self) -> bytes:
        """Some of what was fed, decoded; empty when more has to be fed. Raises BadEncoding."""
        if self._plain or self._over:
            data, self._waiting = self._waiting, b""
            # After the end, as other clients do: nobody's.
            return data if self._plain else b""
        while self._waiting or self._more:
            if piece := self._inflate():
                return piece
        return b""

    @property
    def exhausted(self) -> bool:
        """Whether there is nothing to pull before more is fed."""
        return not self._waiting and not self._more

    def finish(self) -> None:
        """After the last of the body. Raises BadEncoding if there should have been more."""
        if self._inflating is not None:
            raise BadEncoding("it ends in the middle of what was compressed")

    def _inflate(self) -> bytes:
        inflating = self._inflating
        if inflating is None:
            # A body may be several gzip files, one after the other.
            if self._members and not (self._gzip and self._waiting.startswith(b"\x1f")):
                self._over = True
                self._waiting = b""
                return b""
            if self._members == MAX_MEMBERS:
                raise BadEncoding(f"it consists of more than {MAX_MEMBERS} compressed parts")
            self._inflating = inflating = zlib.decompressobj(self._window())
            self._members += 1
        try:
            piece = inflating.decompress(self._waiting, PIECE)
        except zlib.error:
            raise BadEncoding("it is not compressed as it says") from None
        self._waiting = inflating.unconsumed_tail
        # All input may be taken and some output still be to come.
        self._more = len(piece) == PIECE
        if inflating.eof:
            self._waiting = inflating.unused_data
            self._inflating = None
            self._more = False
        return piece

    def _window(self) -> int:
        if self._gzip:
            return _GZIP
        # RFC 9110, section 8.4.1.2: some servers send "deflate" without its wrapper.
        wrapped = self._waiting[0] & 0x0F == 8 and (
            len(self._waiting) < 2 or int.from_bytes(self._waiting[:2], "big") % 31 == 0
        )
        return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS
