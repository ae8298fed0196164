"""A way for the host to listen inside the network namespaces of its jails, with or without privileges."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

from hutch.errors import SandboxUnavailable
from hutch.sandbox import netns

ANSWER_SECONDS = 5.0
_REMEDY = "Run `hutch doctor`."


class Doorkeeper:
    """Opens doors in jails. Keeps one small process for that, from the first door on until it is closed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def listen(self, child_pid: int, port: int) -> socket.socket:
        """A listening TCP socket on 127.0.0.1:`port` as the jail sees it; the caller closes it.

        `child_pid` is what the jail's `--info-fd` told. Whoever asks makes sure afterwards that the jail is
        still there: of one that is gone, the number may have become another's.
        Raises SandboxUnavailable.
        """
        namespace = _namespace_of(child_pid)
        try:
            listener = await self._request(port, namespace)
            # It may have been killed since it was last asked.
            listener = listener or await self._request(port, namespace)
        finally:
            os.close(namespace)
        if listener is None:
            raise _unavailable("the process for it ended")
        return listener

    def start(self) -> None:
        """Starts the process ahead of need. Raises SandboxUnavailable."""
        if self._process is not None and self._process.poll() is None:
            return
        self._forget(self._process)
        if not sys.executable:
            raise _unavailable("Python does not know where it is itself")
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Alone: neither the environment nor installed packages have a say in what it does.
        command = [sys.executable, "-I", "-S", netns.__file__]
        null = subprocess.DEVNULL
        with theirs:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=null,
                    stderr=null,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise _unavailable(f"the process for it cannot be started: {error}") from None
        self._control = ours

    async def _request(self, port: int, namespace: int) -> socket.socket | None:
        """None if the process is gone."""
        self.start()
        process, control = self._process, self._control
        assert process is not None
        assert control is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                try:
                    handles = [theirs.fileno(), namespace]
                    socket.send_fds(control, [netns.REQUEST.pack(port)], handles, socket.MSG_DONTWAIT)
                except OSError:
                    self._forget(process)
                    return None
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await readable(ours.fileno())
            except TimeoutError:
                # The next to ask is to find another.
                self._forget(process)
                raise _unavailable(f"no answer within {ANSWER_SECONDS:g} s") from None
            listener = _answer(ours, port)
            if listener is None:
                self._forget(process)
            return listener

    async def close(self) -> None:
        """Ends the process. What it opened stays open."""
        self._forget(self._process)

    def _forget(self, process: subprocess.Popen[bytes] | None) -> None:
        """Unless another has taken its place already."""
        if process is None or process is not self._process:
            return
        assert self._control is not None
        self._control.close()
        process.kill()
        process.wait()
        self._process = self._control = None


def _namespace_of(pid: int) -> int:
    try:
        handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        raise _unavailable("its process is gone") from None
    except OSError as error:
        raise _unavailable(f"its network namespace cannot be opened: {error.strerror}") from None
    if os.path.samestat(os.fstat(handle), os.stat("/proc/self/ns/net")):
        os.close(handle)
        raise _unavailable("it has no network namespace of its own")
    return handle


def _answer(ours: socket.socket, port: int) -> socket.socket | None:
    answer, handles, *_ = socket.recv_fds(ours, 256, 1)
    if not answer:
        return None
    if not handles:
        raise _unavailable(f"127.0.0.1:{port} in it cannot be had: {answer.decode(errors='replace')}")
    listener = socket.socket(fileno=handles[0])
    listener.setblocking(False)
    return listener


async def readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(handle, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(handle)


def _unavailable(reason: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"The sandbox has no way to the network: {reason}.", remedy=_REMEDY)
