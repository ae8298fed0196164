"""Opens listening sockets inside the network namespaces of jails, with or without privileges."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

from hutch.errors import SandboxUnavailable
from hutch.sandbox.jail import netns_helper

REPLY_SECONDS = 5.0
_REMEDY = "Run `hutch doctor`."


class NetnsListener:
    """Client of the netns helper process, which runs from the first request until close()."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def listen(self, child_pid: int, port: int) -> socket.socket:
        """Returns a socket that listens on 127.0.0.1:`port` inside the jail. The caller closes the socket.

        `child_pid` is the pid from the jail's `--info-fd`. The caller must check afterwards that the jail
        still runs, because the pid may have been reused. Raises SandboxUnavailable.
        """
        [listener] = await self._open(child_pid, port, has_dns=False)
        return listener

    async def listen_with_dns(self, child_pid: int, port: int) -> tuple[socket.socket, socket.socket]:
        """Like `listen`, but also returns a datagram socket for the DNS queries of the jail.

        This socket is bound to 127.0.0.1:53, where the C library sends its queries if there is no
        /etc/resolv.conf.
        """
        listener, dns = await self._open(child_pid, port, has_dns=True)
        return listener, dns

    async def _open(self, child_pid: int, port: int, *, has_dns: bool) -> list[socket.socket]:
        request = netns_helper.REQUEST.pack(port, has_dns)
        namespace = _namespace_of(child_pid)
        try:
            # The helper may have been killed since the last request, so try once more.
            sockets = await self._request(request, namespace) or await self._request(request, namespace)
        finally:
            os.close(namespace)
        if not sockets:
            raise _unavailable("the helper process exited")
        return sockets

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end_helper(self._process)
        if not sys.executable:
            raise _unavailable("sys.executable is not set")
        own_end, helper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Run Python in isolated mode, so that neither the environment nor installed packages affect the
        # helper.
        command = [sys.executable, "-I", "-S", netns_helper.__file__]
        null = subprocess.DEVNULL
        with helper_end:
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=helper_end.fileno(),
                    stdout=null,
                    stderr=null,
                    env={},
                    cwd="/",
                    start_new_session=True,
                )
            except OSError as error:
                own_end.close()
                raise _unavailable(f"the helper process cannot be started: {error}") from None
        self._control = own_end

    async def _request(self, request: bytes, namespace: int) -> list[socket.socket]:
        """Requests sockets from the helper. Returns an empty list if the helper has exited."""
        self.start()
        process, control = self._process, self._control
        assert process is not None
        assert control is not None
        own_end, helper_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with own_end:
            with helper_end:
                try:
                    handles = [helper_end.fileno(), namespace]
                    socket.send_fds(control, [request], handles, socket.MSG_DONTWAIT)
                except OSError:
                    self._end_helper(process)
                    return []
            try:
                async with asyncio.timeout(REPLY_SECONDS):
                    await wait_readable(own_end.fileno())
            except TimeoutError:
                # End the helper. The next request starts a new one.
                self._end_helper(process)
                raise _unavailable(f"no reply within {REPLY_SECONDS:g} s") from None
            sockets = _receive_sockets(own_end, request)
            if not sockets:
                self._end_helper(process)
            return sockets

    async def close(self) -> None:
        """Ends the helper. Listeners that it opened stay open."""
        self._end_helper(self._process)

    def _end_helper(self, process: subprocess.Popen[bytes] | None) -> None:
        """Ends the helper, unless another one has already replaced it."""
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
        raise _unavailable("the jail has exited") from None
    except OSError as error:
        raise _unavailable(f"the jail's network namespace cannot be opened: {error.strerror}") from None
    if os.path.samestat(os.fstat(handle), os.stat("/proc/self/ns/net")):
        os.close(handle)
        raise _unavailable("the jail has no network namespace of its own")
    return handle


def _receive_sockets(connection: socket.socket, request: bytes) -> list[socket.socket]:
    reply, handles, *_ = socket.recv_fds(connection, 256, 2)
    if not reply:
        return []
    if not handles:
        port, _has_dns = netns_helper.REQUEST.unpack(request)
        raise _unavailable(f"cannot listen on 127.0.0.1:{port} in the jail: {reply.decode(errors='replace')}")
    sockets = [socket.socket(fileno=handle) for handle in handles]
    for each in sockets:
        each.setblocking(False)
    return sockets


async def wait_readable(handle: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(handle, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(handle)


def _unavailable(reason: str) -> SandboxUnavailable:
    return SandboxUnavailable(f"The sandbox's network cannot be set up: {reason}.", remedy=_REMEDY)
