"""Splits byte streams into lines of bounded length."""

from __future__ import annotations


class LineTooLong(ValueError):
    """A line is longer than its splitter allows."""


class LineSplitter:
    """Reassembles the lines of a byte stream from chunks of any size.

    A line longer than `max_bytes` raises LineTooLong, even before the line is complete. With `truncate`, the
    line is cut to `max_bytes` instead.
    """

    def __init__(self, max_bytes: int, *, truncate: bool = False) -> None:
        self._max_bytes = max_bytes
        self._truncate = truncate
        self._parts: list[bytes] = []
        self._pending_bytes = 0

    @property
    def pending_bytes(self) -> int:
        """Number of bytes buffered for the incomplete line, at most `max_bytes`."""
        return self._pending_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines completed by `data`, without their line breaks. Raises LineTooLong."""
        *lines, rest = data.split(b"\n")
        # Upper bound for the length of every line. If it is below the limit, as in most calls, no line has to
        # be checked.
        longest = self._pending_bytes + len(data)
        if lines and self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
            self._parts.clear()
            self._pending_bytes = 0
        if rest:
            self._parts.append(rest)
            self._pending_bytes += len(rest)
        return lines if longest <= self._max_bytes else self._bounded(lines)

    def _bounded(self, lines: list[bytes]) -> list[bytes]:
        limit = self._max_bytes
        if not self._truncate:
            if self._pending_bytes > limit or any(len(line) > limit for line in lines):
                raise LineTooLong(f"a line is longer than {limit} bytes")
            return lines
        if self._pending_bytes > limit:
            # Earlier parts were within the limit, so only the last part exceeds it.
            last = self._parts.pop()
            if kept := last[: limit - self._pending_bytes]:
                self._parts.append(kept)
            self._pending_bytes = limit
        return [line[:limit] for line in lines]
