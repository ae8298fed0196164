"""Shows progress on stderr, in place on a terminal and otherwise as occasional lines."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import TextIO

from hutch.text import printable

CLEAR = "\r\x1b[K"
TERMINAL_SECONDS = 1.0
LINE_SECONDS = 15.0


class Progress:
    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty()

    def show(self, text: str) -> None:
        """Shows the current step. Prints nothing without a terminal."""
        if self._is_terminal:
            self._write(f"{CLEAR}{printable(text[:78])}")

    def report(self, text: str) -> None:
        """Announces a slow operation, even if the output is not a terminal."""
        shown = printable(text)
        self._write(f"{CLEAR}{shown[:78]}" if self._is_terminal else f"hutch: {shown}\n")

    def clear(self) -> None:
        if self._is_terminal:
            self._write(CLEAR)

    @contextlib.asynccontextmanager
    async def waiting(self, text: str, max_seconds: float) -> AsyncIterator[None]:
        """Reports the elapsed time repeatedly until the body of the context ends."""
        started = time.monotonic()

        async def report_elapsed() -> None:
            while True:
                self.report(f"{text}: {time.monotonic() - started:.0f} s of at most {max_seconds:.0f} s")
                await asyncio.sleep(TERMINAL_SECONDS if self._is_terminal else LINE_SECONDS)

        reporter = asyncio.create_task(report_elapsed())
        try:
            yield
        finally:
            reporter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reporter

    def _write(self, text: str) -> None:
        # Ignore errors, because stderr may be closed.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
