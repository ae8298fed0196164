"""Says on stderr what is being waited for: in place on a terminal, else now and then on a line."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import TextIO

CLEAR = "\r\x1b[K"
TERMINAL_SECONDS = 1.0
LINE_SECONDS = 15.0


class Progress:
    """What is going on, for people who wait."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()

    def now(self, what: str) -> None:
        """Of every step; only a terminal can forget it again."""
        if self._terminal:
            self._write(f"{CLEAR}{what[:78]}")

    def say(self, what: str) -> None:
        """What takes so long that everybody should know."""
        self._write(f"{CLEAR}{what[:78]}" if self._terminal else f"hutch: {what}\n")

    def clear(self) -> None:
        if self._terminal:
            self._write(CLEAR)

    @contextlib.asynccontextmanager
    async def waiting(self, what: str, most: float) -> AsyncIterator[None]:
        """Says again and again for how long it has been waited for."""
        began = time.monotonic()

        async def tell() -> None:
            while True:
                self.say(f"{what}: {time.monotonic() - began:.0f} s of at most {most:.0f} s")
                await asyncio.sleep(TERMINAL_SECONDS if self._terminal else LINE_SECONDS)

        telling = asyncio.create_task(tell())
        try:
            yield
        finally:
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling

    def _write(self, text: str) -> None:
        # Whoever closed stderr does not want to know.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()
