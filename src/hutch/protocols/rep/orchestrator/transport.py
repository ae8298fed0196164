"""Non-blocking transport to a runtime process: lines in both directions, stderr and exit status."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import IO

from hutch.child_process.process import ChildProcess, read_available
from hutch.streams.lines import LineSplitter, LineTooLong
from hutch.tasks import finish

MAX_LINE_BYTES = 32 * 1024 * 1024
STDERR_TAIL_BYTES = 8 * 1024
# Time that the process has to exit after its stdin was closed. The built-in runtime needs less time to exit,
# and a reaper needs less time to end all its processes.
END_SECONDS = 4.0
# Time to wait for the exit status after the output or input has ended, so that the error message can contain
# the status.
_EXIT_SECONDS = 2.0


class RuntimeTransport:
    """Line transport of one runtime process. Calls `on_line` with each line, without its newline, and then
    `on_end`.

    Belongs to the event loop that created it. A line longer than MAX_LINE_BYTES ends the connection, so that
    the buffer stays small.
    """

    def __init__(self, process: ChildProcess, *, on_stderr: Callable[[bytes], None] | None = None) -> None:
        self.on_line: Callable[[bytes], None] = _ignore
        self.on_end: Callable[[str], None] = _ignore
        self._process = process
        self._on_stderr = on_stderr
        self._lines = LineSplitter(MAX_LINE_BYTES)
        self._reason: str | None = None
        self._stderr_tail = bytearray()
        self._unsent = bytearray()
        self._is_finished = False
        self._exited = asyncio.Event()
        self._exit_code: int | None = None
        self._loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.abandon()
            raise
        self._loop.add_reader(self._pidfd, self._reap)
        self._loop.add_reader(process.stdout.fileno(), self._read_stdout)
        self._loop.add_reader(process.stderr.fileno(), self._read_stderr)

    @property
    def stderr_tail(self) -> str:
        return self._stderr_tail.decode(errors="replace").strip()

    @property
    def exit_code(self) -> int | None:
        """Exit code as in a shell (128 + N for signal N). None while the process runs."""
        return self._exit_code

    def send(self, data: bytes) -> None:
        """Sends data without blocking. Data that the pipe does not accept is buffered."""
        if self._process.stdin.closed:
            return
        is_waiting = bool(self._unsent)
        self._unsent += data
        if not is_waiting:
            self._write()

    def end_input(self) -> None:
        """Closes the runtime's stdin and drops unsent data."""
        stdin = self._process.stdin
        if not stdin.closed:
            self._unsent.clear()
            self._loop.remove_writer(stdin.fileno())
            stdin.close()

    async def wait_exit(self, seconds: float) -> bool:
        """Returns True if the process exited within the given time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._exited.wait()
        return self._exited.is_set()

    async def close(self, *, at_once: bool = False) -> None:
        """Ends the process and every process that it started, even if the caller is cancelled."""
        self.on_line = self.on_end = _ignore
        await finish(self._terminate(at_once))

    async def _terminate(self, at_once: bool) -> None:
        self.end_input()
        self._process.terminate(at_once=at_once)
        if not await self.wait_exit(END_SECONDS):
            self._process.kill()
            await self._exited.wait()
        self._stop_reading(self._process.stdout)
        self._stop_reading(self._process.stderr)
        self._process.close()

    # --- reading ---

    def _read_stdout(self) -> None:
        for data in read_available(self._process.stdout):
            if not data:
                self._stop_reading(self._process.stdout)
                self._finish_soon(
                    "its output ended in the middle of a line" if self._lines.pending_bytes else None
                )
                return
            self._feed(data)
            if self._is_finished:
                return

    def _feed(self, data: bytes) -> None:
        try:
            lines = self._lines.feed(data)
        except LineTooLong:
            self._stop_reading(self._process.stdout)
            self._reason = f"it wrote a line of more than {MAX_LINE_BYTES} bytes"
            self._finish()
            return
        for line in lines:
            self.on_line(line)

    def _read_stderr(self) -> None:
        for data in read_available(self._process.stderr):
            if not data:
                self._stop_reading(self._process.stderr)
                return
            self._stderr_tail += data
            del self._stderr_tail[:-STDERR_TAIL_BYTES]
            if self._on_stderr is not None:
                self._on_stderr(data)

    def _stop_reading(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._loop.remove_reader(pipe.fileno())
            pipe.close()

    # --- writing ---

    def _write(self) -> None:
        fd = self._process.stdin.fileno()
        try:
            del self._unsent[: os.write(fd, self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.end_input()
            self._finish_soon("it closed its input")
            return
        if self._unsent:
            self._loop.add_writer(fd, self._write)
        else:
            self._loop.remove_writer(fd)

    # --- exit ---

    def _reap(self) -> None:
        self._exit_code = self._process.exit_code()
        if self._exit_code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._exited.set()
        # Do not wait for the end of stdout, because another process may still hold it open.
        self._finish_soon(None)

    def _finish_soon(self, reason: str | None) -> None:
        """Reports the end as soon as the exit status is known, or after a timeout. Pending output is still
        read.
        """
        self._reason = self._reason or reason
        if self._exited.is_set() and self._process.stdout.closed:
            self._finish()
        elif not self._is_finished:
            self._loop.call_later(_EXIT_SECONDS, self._finish)

    def _finish(self) -> None:
        if not self._is_finished:
            self._is_finished = True
            reasons = (self._reason, None if self._exit_code is None else _describe_exit(self._exit_code))
            self.on_end(", and ".join(text for text in reasons if text) or "it closed its output")


def _describe_exit(code: int) -> str:
    return f"it was ended by signal {code - 128}" if code > 128 else f"it ended with exit code {code}"


def _ignore(_: object) -> None:
    """Does nothing. Default of the callbacks."""
