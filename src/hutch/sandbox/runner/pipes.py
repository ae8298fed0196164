"""Pipes and sockets between the host and a runner process: its connection, captured output, wake-up file."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from pathlib import Path

from hutch.tasks import finish

_READ_BYTES = 65_536
# Maximum reads in one callback, to bound its duration.
_MAX_READS = 64
_ACCEPT_RETRY_SECONDS = 0.1


class OutputPipe:
    """Reads stdout or stderr of a process continuously, so that the process never blocks."""

    def __init__(self, on_data: Callable[[bytes], None]) -> None:
        self._on_data = on_data
        self._fd, self.child_fd = os.pipe()
        os.set_blocking(self._fd, False)
        self._loop = asyncio.get_running_loop()

    def start_reading(self) -> None:
        """Starts reading. Closes the write end, because the process has its own copy by now."""
        self._close_child_fd()
        self._loop.add_reader(self._fd, self.drain)

    def drain(self) -> None:
        for _ in range(_MAX_READS):
            try:
                data = os.read(self._fd, _READ_BYTES)
            except (BlockingIOError, OSError):
                return
            if not data:
                self._loop.remove_reader(self._fd)
                return
            self._on_data(data)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
        # Forget the descriptor, because its number may be reused from now on.
        self._fd = -1
        self._close_child_fd()

    def _close_child_fd(self) -> None:
        if self.child_fd >= 0:
            os.close(self.child_fd)
        self.child_fd = -1


class WakeupFile:
    def __init__(self) -> None:
        # The host sets the length of the file to the number of lines that it has sent to the runner. It
        # writes nothing into the file, so the file takes no memory.
        self._file = open(os.memfd_create("hutch-wakeup"), "r+b", buffering=0)  # noqa: SIM115

    def open_for_process(self) -> int:
        """Opens a read-only descriptor for the runner. The caller closes it after the start."""
        return os.open(f"/proc/self/fd/{self._file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)

    def set_line_count(self, lines: int) -> None:
        # Do not use `contextlib.suppress`, which takes about a microsecond more.
        try:  # noqa: SIM105
            os.ftruncate(self._file.fileno(), lines)
        except OSError:
            pass

    def close(self) -> None:
        self._file.close()


class RunnerListener:
    """Listens on a Unix socket and connects `protocol` to the first client.

    This class does not use `asyncio.Server`. If a server accepts a connection in the iteration of the event
    loop in which the server is closed, `Server._attach` raises AssertionError and the connection leaks.
    """

    def __init__(self, protocol: asyncio.Protocol, path: Path) -> None:
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._connecting: asyncio.Task[object] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.setblocking(False)
            self._socket.bind(str(path))
            self._socket.listen(1)
            self._start_accepting()
        except BaseException:
            self._socket.close()
            raise

    def _start_accepting(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        self._loop.remove_reader(self._socket)
        try:
            connection, _ = self._socket.accept()
        except OSError:
            # Try again later: no descriptor is free, or the client has closed the connection.
            self._retry = self._loop.call_later(_ACCEPT_RETRY_SECONDS, self._start_accepting)
            return
        connection.setblocking(False)
        self._connecting = self._loop.create_task(
            self._loop.connect_accepted_socket(lambda: self._protocol, connection)
        )

    async def close(self) -> None:
        """Stops listening. An accepted connection stays open and belongs to the protocol."""
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
        if self._connecting is not None:
            await finish(asyncio.wait((self._connecting,)))
