"""Helper process of `NetnsListener`. For each request, it forks a child that listens inside a network
namespace.

This is a separate script without imports from Hutch, for three reasons: only a single-threaded process may
change its user namespace, a process cannot return to its old user namespace, and a small process forks fast.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import struct

# The host imports this module for `REQUEST`. It does not need ctypes, which takes 1 ms to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import ctypes

REQUEST = struct.Struct("<H?")
DNS_PORT = 53
BACKLOG = 1024
_NS_GET_USERNS = 0xB701
_IP_FREEBIND = 15
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def main(control: socket.socket) -> None:
    """Serves requests. A request consists of a port, a flag that asks for a DNS socket, and two descriptors:
    the reply socket and the network namespace.
    """
    import ctypes

    # Let the kernel reap the children, because this process does not wait for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    while True:
        request, handles, *_ = socket.recv_fds(control, REQUEST.size, 2)
        if not request:
            return
        try:
            if os.fork() == 0:
                try:
                    serve(libc, *REQUEST.unpack(request), *handles)
                finally:
                    os._exit(0)
        except OSError:
            # The fork failed. The host notices this, because the reply socket is closed.
            pass
        finally:
            for handle in handles:
                os.close(handle)


def serve(libc: ctypes.CDLL, port: int, has_dns: bool, reply_fd: int, namespace: int) -> None:
    with socket.socket(fileno=reply_fd) as channel:
        try:
            enter(libc, namespace)
            listener = bind(socket.SOCK_STREAM, port)
            listener.listen(BACKLOG)
            sockets = [listener, bind(socket.SOCK_DGRAM, DNS_PORT)] if has_dns else [listener]
            socket.send_fds(channel, [b"+"], [each.fileno() for each in sockets])
        except OSError as error:
            channel.send(os.strerror(error.errno or 0).encode())


def bind(kind: socket.SocketKind, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, kind)
    # Allow binding to a missing address, because the jail may not have brought up its loopback interface yet.
    bound.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
    bound.bind(("127.0.0.1", port))
    return bound


def enter(libc: ctypes.CDLL, namespace: int) -> None:
    """Enters a network namespace. First enters the user namespace that owns it, because the creator of a user
    namespace has all capabilities there.
    """
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    # Skip the current user namespace, because a process cannot enter it again.
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
        setns(libc, owner, _CLONE_NEWUSER)
    setns(libc, namespace, _CLONE_NEWNET)


def setns(libc: ctypes.CDLL, namespace: int, kind: int) -> None:
    import ctypes

    if libc.setns(namespace, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(socket.socket(fileno=0))
