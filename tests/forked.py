"""`hutch` forked from a process that has it loaded, and its libraries, which is most of what a command takes.

Each is a process of its own all the same. MCP servers of the tests are forked from it too: see
`tests/mcp_servers/lent.py`. How long a command takes from nothing is for `make bench`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import secrets
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# What `hutch` needs of others, and is slow to load.
LIBRARIES = (
    "asyncio",
    "click",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.kdf.hkdf",
    "httptools",
    "httpx2",
    "jsonschema_rs",
    "limits",
    "mcp.server.lowlevel.server",
    "mcp.server.sse",
    "mcp.server.stdio",
    "msgspec.json",
    "prometheus_client",
    "psycopg",
    "sqlite3",
    "starlette.applications",
    "structlog",
    "uvicorn",
    "uvloop",
    "yaml",
)
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")


class Forked(subprocess.Popen[Any]):
    """What `subprocess.Popen` is to `python -m hutch`, but for options of how Python itself starts."""

    _news: int

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        assert not options.keys() & {"pass_fds", "preexec_fn", "start_new_session"}, "not for what is forked"
        super().__init__(("hutch", *arguments), **options)

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        cwd, env, pipes = given[4], given[5], given[9:15]
        order = {"arguments": args[1:], "env": dict(env or os.environ), "cwd": str(Path.cwd() / (cwd or ""))}
        theirs = (pipes[0], pipes[3], pipes[5])
        try:
            self._news = _forker().fork(
                order, [number if fd == -1 else fd for number, fd in enumerate(theirs)]
            )
            self.pid = _heard(self._news)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._news], [], [], 0)[0]:
            return 0, 0
        status = _heard(self._news)
        os.close(self._news)
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        ended: int | None = super()._internal_poll(  # type: ignore[misc]
            _deadstate, _waitpid=lambda _, flags: self._try_wait(flags)
        )
        return ended


class Forker:
    """The process that is forked, as who asks it to knows it."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self.lends_at = f"hutch-tests-{os.getpid()}-{secrets.token_hex(8)}"
        """The abstract socket where scripts can be had."""
        self._socket, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + self.lends_at)
            listener.listen()
            fds, null = (theirs.fileno(), listener.fileno()), subprocess.DEVNULL
            self._process = subprocess.Popen(
                [sys.executable, __file__, *map(str, fds)], pass_fds=fds, stdin=null, stdout=null
            )

    def fork(self, order: dict[str, Any], streams: list[int]) -> int:
        """Where the new process's id is told, and later how it ended. `streams` are its first three."""
        data = json.dumps(order).encode()
        news, theirs = os.pipe()
        try:
            with self._turn:
                socket.send_fds(self._socket, [_LENGTH.pack(len(data))], [*streams, theirs])
                self._socket.sendall(data)
        finally:
            os.close(theirs)
        return news

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _forker() -> Forker:
    forker = Forker()
    atexit.register(forker.close)
    return forker


def lent(script: Path) -> list[str]:
    """The arguments of Python for a script that is forked."""
    return ["-I", "-S", str(script.parent / "lent.py"), _forker().lends_at, str(script)]


def _heard(news: int) -> int:
    data = os.read(news, _NUMBER.size)
    assert data, "who forks has ended"
    number: int = _NUMBER.unpack(data)[0]
    return number


# --- in the process that is forked ---


def _serve(orders: socket.socket, lending: socket.socket) -> dict[str, Any] | None:
    """Forks when it is asked to. Returns the order in what was forked, None when all is over."""
    running: dict[int, tuple[int, int]] = {}
    borrowers: dict[int, int] = {}
    ready = selectors.DefaultSelector()
    ready.register(orders, selectors.EVENT_READ)
    ready.register(lending, selectors.EVENT_READ)
    while True:
        # One at a time: what the first brings about may be the end of the second.
        key, _ = ready.select()[0]
        if key.fd in running:
            ready.unregister(key.fd)
            pid, news = running.pop(key.fd)
            if borrowers.pop(news, None):
                ready.unregister(news)
            _tell_end(key.fd, pid, news)
            continue
        if key.fd in borrowers:
            # It says no more than that it has ended.
            ready.unregister(key.fd)
            os.kill(borrowers.pop(key.fd), signal.SIGKILL)
            continue
        borrower = lending.accept()[0] if key.fileobj is lending else None
        order, fds = _ordered(borrower or orders)
        if order is None:
            if borrower is None:
                return None
            borrower.close()
            continue
        if borrower is not None:
            fds.append(borrower.detach())
        if (pid := os.fork()) == 0:
            ready.close()
            for fd in (orders.detach(), lending.detach(), *running, *(news for _, news in running.values())):
                os.close(fd)
            return _become(order, fds)
        *streams, news = fds
        for fd in streams:
            os.close(fd)
        if borrower is None:
            _tell(news, pid)
        else:
            borrowers[news] = pid
            ready.register(news, selectors.EVENT_READ)
        handle = os.pidfd_open(pid)
        running[handle] = pid, news
        ready.register(handle, selectors.EVENT_READ)


def _ordered(asked: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """What somebody wants, and the streams for it; None if they are gone."""
    head, fds, _, _ = socket.recv_fds(asked, _LENGTH.size, 4)
    return (json.loads(_exactly(asked, _LENGTH.unpack(head)[0])) if head else None), fds


def _tell_end(handle: int, pid: int, news: int) -> None:
    _tell(news, os.waitpid(pid, 0)[1])
    os.close(news)
    os.close(handle)


def _tell(news: int, number: int) -> None:
    # Who asked may be gone.
    with contextlib.suppress(BrokenPipeError):
        os.write(news, _NUMBER.pack(number))


def _exactly(orders: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = orders.recv(size - len(data))
        assert part, "an order without an end"
        data += part
    return data


def _become(order: dict[str, Any], fds: list[int]) -> dict[str, Any]:
    """As Python is when it starts what is in the order."""
    for number, fd in enumerate(fds):
        if number < 3:
            os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    script = order.get("script")
    sys.path[0] = order["cwd"] if script is None else str(Path(script).parent)
    sys.argv = [script or "hutch", *order["arguments"]]
    return order


def modules_of(package: str) -> list[str]:
    """All of them but what is only run."""
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    return [each.name for each in found if not each.name.endswith(".__main__")]


if __name__ == "__main__":
    for library in (*LIBRARIES, *modules_of("hutch")):
        importlib.import_module(library)
    gc.collect()
    gc.freeze()
    forked = _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3]))
    if forked is not None:
        try:
            if "script" in forked:
                runpy.run_path(forked["script"], run_name="__main__")
            else:
                runpy.run_module("hutch", run_name="__main__", alter_sys=True)
            ended = 0
        except SystemExit as ending:
            ended = int(ending.code or 0)
        # As Python ends, but for taking apart all that was loaded here: that takes as long as the rest.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(ended)
