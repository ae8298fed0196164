"""The process behind `Doorkeeper`: for every request a fork of it listens inside a network namespace.

A script of its own, without anything of Hutch's: only a process with one thread may change its user
namespace, it cannot come back from there, and a small one is quickly forked.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct

REQUEST = struct.Struct("<H")
BACKLOG = 1024
_NS_GET_USERNS = 0xB701
_IP_FREEBIND = 15
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def main(control: socket.socket) -> None:
    """Until the host's end closes. A request is a port; with it come where to answer, and the namespace."""
    # Nobody waits for the forks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    while True:
        request, handles, *_ = socket.recv_fds(control, REQUEST.size, 2)
        if not request:
            return
        try:
            if os.fork() == 0:
                try:
                    serve(libc, REQUEST.unpack(request)[0], *handles)
                finally:
                    os._exit(0)
        except OSError:
            # The host sees that nobody has its socket any more.
            pass
        finally:
            for handle in handles:
                os.close(handle)


def serve(libc: ctypes.CDLL, port: int, answer: int, namespace: int) -> None:
    """Answers with a listening socket, or with the reason why there is none."""
    with socket.socket(fileno=answer) as reply:
        try:
            enter(libc, namespace)
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
                # The jail may not have brought up its loopback yet.
                listener.setsockopt(socket.IPPROTO_IP, _IP_FREEBIND, 1)
                listener.bind(("127.0.0.1", port))
                listener.listen(BACKLOG)
                socket.send_fds(reply, [b"+"], [listener.fileno()])
        except OSError as error:
            reply.send(os.strerror(error.errno or 0).encode())


def enter(libc: ctypes.CDLL, namespace: int) -> None:
    """By way of the user namespace that owns it: there, whoever made it may do everything."""
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    # Our own, which we are in already, cannot be entered again.
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
        setns(libc, owner, _CLONE_NEWUSER)
    setns(libc, namespace, _CLONE_NEWNET)


def setns(libc: ctypes.CDLL, namespace: int, kind: int) -> None:
    if libc.setns(namespace, kind) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(socket.socket(fileno=0))
