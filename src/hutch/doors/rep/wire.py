"""Lines to a runtime and lines from it, its stderr always taken in, and its end seen, whatever it does."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import IO

from hutch.doors.rep.launch import Launched
from hutch.doors.rep.rpc import Lines

MAX_LINE_BYTES = 32 * 1024 * 1024
COMPLAINT_BYTES = 8 * 1024
# After its input ended: more than our own runtime takes to leave, and a warden to end everything.
END_SECONDS = 4.0
# Between the end of its output or input and its own, so that we can say how it ended.
_LAST_SECONDS = 2.0
_READ_BYTES = 65_536
_READS_AT_ONCE = 16


class Wire:
    """Belongs to the event loop that made it. `on_line` gets lines, each without its end, until `on_end`.

    A line of more than MAX_LINE_BYTES is the end: no more than that is ever held.
    """

    def __init__(self, launched: Launched, *, on_stderr: Callable[[bytes], None] | None = None) -> None:
        self.on_line: Callable[[bytes], None] = _nobody
        self.on_end: Callable[[str], None] = _nobody
        self._launched = launched
        self._on_stderr = on_stderr
        self._lines = Lines(MAX_LINE_BYTES)
        self._why: str | None = None
        self._complaint = bytearray()
        self._unsent = bytearray()
        self._is_over = False
        self._exited = asyncio.Event()
        self._code: int | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(launched.pid)
        except OSError:
            launched.abandon()
            raise
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(launched.stdout.fileno(), self._hear)
        self._loop.add_reader(launched.stderr.fileno(), self._hear_complaint)

    @property
    def complaint(self) -> str:
        """The last of what it wrote to stderr."""
        return self._complaint.decode(errors="replace").strip()

    @property
    def exit_code(self) -> int | None:
        """As a shell tells it; None while it runs."""
        return self._code

    def send(self, data: bytes) -> None:
        """Never waits; what it does not take in is held here."""
        if self._launched.stdin.closed:
            return
        waits = bool(self._unsent)
        self._unsent += data
        if not waits:
            self._write()

    def end_input(self) -> None:
        """Nothing more is said, also nothing that was held."""
        stdin = self._launched.stdin
        if not stdin.closed:
            self._unsent.clear()
            self._loop.remove_writer(stdin.fileno())
            stdin.close()

    async def exited(self, seconds: float) -> bool:
        """Whether it has ended within so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        return self._exited.is_set()

    async def close(self, *, at_once: bool = False) -> None:
        """Ends the process and all that it started. Comes to its end even if cancelled."""
        self.on_line = self.on_end = _nobody
        ending = asyncio.ensure_future(self._ended(at_once))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait((ending,))
            raise

    async def _ended(self, at_once: bool) -> None:
        self.end_input()
        self._launched.end(at_once=at_once)
        if not await self.exited(END_SECONDS):
            self._launched.kill()
            await self._exited.wait()
        self._stop_reading(self._launched.stdout)
        self._stop_reading(self._launched.stderr)
        self._launched.close()

    # --- what it says ---

    def _hear(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._launched.stdout.fileno(), _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._stop_reading(self._launched.stdout)
                self._end_soon("its output ended in the middle of a line" if self._lines.held else None)
                return
            self._take(data)
            if self._is_over:
                return

    def _take(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            if len(line) > MAX_LINE_BYTES:
                self._overlong()
                return
            self.on_line(line)
        if self._lines.held > MAX_LINE_BYTES:
            self._overlong()

    def _overlong(self) -> None:
        self._stop_reading(self._launched.stdout)
        self._why = f"it said a line of more than {MAX_LINE_BYTES} bytes"
        self._over()

    def _hear_complaint(self) -> None:
        for _ in range(_READS_AT_ONCE):
            try:
                data = os.read(self._launched.stderr.fileno(), _READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._stop_reading(self._launched.stderr)
                return
            self._complaint += data
            del self._complaint[:-COMPLAINT_BYTES]
            if self._on_stderr is not None:
                self._on_stderr(data)

    def _stop_reading(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._loop.remove_reader(pipe.fileno())
            pipe.close()

    # --- what it is told ---

    def _write(self) -> None:
        fd = self._launched.stdin.fileno()
        try:
            del self._unsent[: os.write(fd, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.end_input()
            self._end_soon("it closed its input")
            return
        if self._unsent:
            self._loop.add_writer(fd, self._write)
        else:
            self._loop.remove_writer(fd)

    # --- its end ---

    def _reap(self) -> None:
        self._code = self._launched.ended()
        if self._code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exited.set()
        # Whoever else holds its output is not the runtime.
        self._end_soon(None)

    def _end_soon(self, why: str | None) -> None:
        """Once it is known how the process ended, or that it does not; what it said before is still read."""
        self._why = self._why or why
        if self._exited.is_set() and self._launched.stdout.closed:
            self._over()
        elif not self._is_over:
            self._loop.call_later(_LAST_SECONDS, self._over)

    def _over(self) -> None:
        if not self._is_over:
            self._is_over = True
            told = (self._why, None if self._code is None else _described(self._code))
            self.on_end(", and ".join(each for each in told if each) or "it closed its output")


def _described(code: int) -> str:
    return f"it was ended by signal {code - 128}" if code > 128 else f"it ended with exit code {code}"


def _nobody(_: object) -> None:
    """Hears what nobody listens to."""
