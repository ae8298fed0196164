"""Starts `hutch` by forking a process that has already imported it, because imports take most of the time.

Each command still runs in its own process. So do the runtimes of flows that a forked command starts, unless
its environment has `REAL_RUNTIMES`. The tests' MCP servers are forked too: see
`tests/support/mcp_servers/fork_client.py`. `make bench` measures commands that start from scratch.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import secrets
import select
import selectors
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hutch.child_process import process as child_process

# Libraries of `hutch` that are slow to import.
LIBRARIES = (
    "asyncio",
    "click",
    "cryptography.hazmat.primitives.ciphers.aead",
    "cryptography.hazmat.primitives.kdf.hkdf",
    "httptools",
    "httpx2",
    "jsonschema_rs",
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
REAL_RUNTIMES = {"TESTS_REAL_RUNTIMES": "1"}
"""Environment for tests of the processes themselves: a forked runtime is not a descendant of its command."""
_RUNTIME_COMMAND = ("-P", "-m", "hutch", "runtime", "serve")
_LENGTH = struct.Struct("!I")
_NUMBER = struct.Struct("!i")


class ForkedProcess(subprocess.Popen[Any]):
    """Replaces `subprocess.Popen` for `python -m hutch`, without options that affect Python's start-up."""

    _status_pipe: int
    _pidfd: int

    def __init__(self, arguments: Sequence[str], **options: Any) -> None:
        assert not options.keys() & {"pass_fds", "preexec_fn"}, "not supported by ForkedProcess"
        self._in_new_session = bool(options.get("start_new_session"))
        super().__init__(("hutch", *arguments), **options)

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        cwd, env, pipes = others[4], others[5], others[9:15]
        request = {
            "arguments": args[1:],
            "env": dict(env or os.environ),
            "cwd": str(Path.cwd() / (cwd or "")),
            "new_session": self._in_new_session,
        }
        child_ends = (pipes[0], pipes[3], pipes[5])
        try:
            self._status_pipe = _fork_server().fork(
                request, [number if fd == -1 else fd for number, fd in enumerate(child_ends)]
            )
            self.pid = _read_number(self._status_pipe)
            try:
                self._pidfd = os.pidfd_open(self.pid)
            except ProcessLookupError:
                # The process has already ended. Like the pidfd of an ended process, this descriptor is always
                # readable.
                self._pidfd = os.open(os.devnull, os.O_RDONLY)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        # Check only whether the process has ended. Its exit status arrives in the pipe a moment later.
        if flags & os.WNOHANG and not select.select([self._pidfd], [], [], 0)[0]:
            return 0, 0
        status = _read_number(self._status_pipe)
        os.close(self._status_pipe)
        os.close(self._pidfd)
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        returncode: int | None = super()._internal_poll(  # type: ignore[misc]
            _deadstate, _waitpid=lambda _, flags: self._try_wait(flags)
        )
        return returncode


class ForkServer:
    """Starts the process that forks, and sends requests to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.socket_name = f"hutch-tests-{os.getpid()}-{secrets.token_hex(8)}"
        """Name of the abstract socket for `fork_client.py`."""
        self._socket, their_end = socket.socketpair()
        with their_end, socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0" + self.socket_name)
            listener.listen()
            fds, null = (their_end.fileno(), listener.fileno()), subprocess.DEVNULL
            self._process = subprocess.Popen(
                [sys.executable, __file__, *map(str, fds)], pass_fds=fds, stdin=null, stdout=null
            )

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """Requests a new process. Returns a pipe from which the process's id and later its exit status can be
        read.
        """
        data = json.dumps(request).encode()
        status_pipe, their_end = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._socket, [_LENGTH.pack(len(data))], [*streams, their_end])
                self._socket.sendall(data)
        finally:
            os.close(their_end)
        return status_pipe

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


class ForkClient:
    """Sends requests from a forked process. When the requesting process ends, the processes that it has
    requested are killed.
    """

    def __init__(self, socket_name: str) -> None:
        self._name = socket_name

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """See `ForkServer.fork`."""
        data = json.dumps({**request, "safe_path": True}).encode()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect("\0" + self._name)
            socket.send_fds(client, [_LENGTH.pack(len(data))], streams)
            client.sendall(data)
            return client.detach()


@functools.cache
def _fork_server() -> ForkServer | ForkClient:
    forker = ForkServer()
    atexit.register(forker.close)
    return forker


def forked_script(script: Path) -> list[str]:
    """Returns arguments for Python that run a script by forking."""
    server = _fork_server()
    assert isinstance(server, ForkServer)
    return ["-I", "-S", str(script.parent / "fork_client.py"), server.socket_name, str(script)]


def forked_hutch(folder: Path) -> Path:
    """Creates a program `hutch` in the folder that behaves like the real one, but starts at once. Returns the
    folder.
    """
    *client, _ = forked_script(Path(__file__).parent / "mcp_servers" / "tracker.py")
    command = [sys.executable, *client, str(Path(sys.executable).with_name("hutch"))]
    program = folder / "hutch"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    return folder


def _read_number(status_pipe: int) -> int:
    data = os.read(status_pipe, _NUMBER.size)
    assert data, "the fork server has ended"
    number: int = _NUMBER.unpack(data)[0]
    return number


# --- in the process that forks ---


def _serve(requests: socket.socket, listener: socket.socket) -> dict[str, Any] | None:
    """Forks a process for each request. Returns the request in the forked process. Returns None in this
    process after the last request.
    """
    running: dict[int, tuple[int, int]] = {}
    clients: dict[int, int] = {}
    selector = selectors.DefaultSelector()
    selector.register(requests, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        # Handle one event at a time, because the handling of an event may make the next event invalid.
        key, _ = selector.select()[0]
        if key.fd in running:
            selector.unregister(key.fd)
            pid, status_pipe = running.pop(key.fd)
            if clients.pop(status_pipe, None):
                selector.unregister(status_pipe)
            _report_exit(key.fd, pid, status_pipe)
            continue
        if key.fd in clients:
            # A client sends only one request. So if the connection is readable, the client has ended, and the
            # process of the client is killed.
            selector.unregister(key.fd)
            os.kill(clients.pop(key.fd), signal.SIGKILL)
            continue
        client = listener.accept()[0] if key.fileobj is listener else None
        request, fds = _receive_request(client or requests)
        if request is None:
            if client is None:
                return None
            client.close()
            continue
        if client is not None:
            fds.append(client.detach())
        if (pid := os.fork()) == 0:
            _fork_runtimes(listener.getsockname()[1:].decode(), request["env"])
            selector.close()
            pipes = (pipe for _, pipe in running.values())
            for fd in (requests.detach(), listener.detach(), *running, *pipes):
                os.close(fd)
            _set_up_child(request, fds)
            return request
        *streams, status_pipe = fds
        for fd in streams:
            os.close(fd)
        if "script" not in request:
            _report_number(status_pipe, pid)
        if client is not None:
            clients[status_pipe] = pid
            selector.register(status_pipe, selectors.EVENT_READ)
        handle = os.pidfd_open(pid)
        running[handle] = pid, status_pipe
        selector.register(handle, selectors.EVENT_READ)


def _receive_request(client: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Returns a request and its file descriptors, or None if the client has exited."""
    head, fds, _, _ = socket.recv_fds(client, _LENGTH.size, 4)
    return (json.loads(_read_exactly(client, _LENGTH.unpack(head)[0])) if head else None), fds


def _report_exit(handle: int, pid: int, status_pipe: int) -> None:
    _report_number(status_pipe, os.waitpid(pid, 0)[1])
    os.close(status_pipe)
    os.close(handle)


def _report_number(status_pipe: int, number: int) -> None:
    # The client may have ended since it sent the request.
    with contextlib.suppress(BrokenPipeError):
        os.write(status_pipe, _NUMBER.pack(number))


def _read_exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = client.recv(size - len(data))
        assert part, "incomplete request"
        data += part
    return data


def _fork_runtimes(socket_name: str, env: dict[str, str]) -> None:
    """Makes this process fork the runtimes of flows, which it would otherwise start with a new Python."""
    if env.pop(*REAL_RUNTIMES, None):
        return

    def start(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        if tuple(command[1:6]) != _RUNTIME_COMMAND:
            return subprocess.Popen(command, **options)
        del options["pass_fds"]
        return ForkedProcess(command[4:], **options)

    global _fork_server
    _fork_server = functools.partial(ForkClient, socket_name)  # type: ignore[assignment]
    child_process.subprocess = SimpleNamespace(Popen=start, PIPE=subprocess.PIPE)  # type: ignore[assignment]


def _set_up_child(request: dict[str, Any], fds: list[int]) -> None:
    """Makes this process look like a Python process that was just started for the request."""
    for number, fd in enumerate(fds):
        if number < 3:
            os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    script = request.get("script")
    if request.get("new_session"):
        os.setsid()
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=sys.stdout.isatty())
    if "safe_path" in request:
        del sys.path[0]
    else:
        sys.path[0] = request["cwd"] if script is None else str(Path(script).parent)
    sys.argv = [script or "hutch", *request["arguments"]]


def modules_of(package: str) -> list[str]:
    """Returns all modules but `__main__`."""
    modules = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    return [module.name for module in modules if not module.name.endswith(".__main__")]


if __name__ == "__main__":
    gc.disable()
    for library in (*LIBRARIES, *modules_of("hutch")):
        importlib.import_module(library)
    gc.collect()
    gc.freeze()
    gc.enable()
    request = _serve(*(socket.socket(fileno=int(number)) for number in sys.argv[1:3]))
    if request is not None:
        try:
            if "script" in request:
                runpy.run_path(request["script"], run_name="__main__")
            else:
                runpy.run_module("hutch", run_name="__main__", alter_sys=True)
            exit_code = 0
        except SystemExit as error:
            exit_code = int(error.code or 0)
        # End as Python does, but do not finalize all imported modules. This takes as long as the rest of the
        # exit.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(exit_code)
