"""Starts processes without blocking the event loop.

`subprocess` holds the GIL until the new process executes its program. The new process first has to wait for a
core, which takes 5 ms and more on a busy machine. Here, a thread calls the C function `posix_spawn` through
ctypes, which releases the GIL during the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache, partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

from hutch.sandbox.jail.memory_meter import process_tree

if TYPE_CHECKING:
    import ctypes

_FIRST_FREE_FD = 3
# Signals that Python ignores. A new process gets their default actions.
_RESTORED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)
# Constants of <spawn.h> on Linux.
_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
# More than the size of each C struct that is used here, on all architectures.
_STRUCT_BYTES = 1024
_starts = itertools.count()


class StartedProcess(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """Exit code, or the negative number of the signal that ended the process. None until `poll` or `wait`
        has noticed the end.
        """

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


class _SpawnedProcess:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        self._reap(os.WNOHANG)
        return self.returncode

    def wait(self) -> int:
        self._reap(0)
        assert self.returncode is not None
        return self.returncode

    def _reap(self, options: int) -> None:
        if self.returncode is not None:
            return
        try:
            pid, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            # The host ignores SIGCHLD, or other code has waited for all children. The exit code is lost, and
            # like `subprocess`, this class returns 0.
            self.returncode = 0
            return
        if pid:
            self.returncode = os.waitstatus_to_exitcode(status)


async def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    stdout: int,
    stderr: int,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> StartedProcess:
    """Starts a process as the leader of a new session. `argv[0]` is an absolute path. The process gets
    `pass_fds` under the same numbers, and no other descriptors. Raises OSError.

    The kernel sends a parent-death signal (PR_SET_PDEATHSIG) when the *thread* that started the process ends.
    The thread of this module ends when Python exits. The calling thread has to outlive its processes, too,
    because it starts the first process itself, and all of them if the C library is too old.
    """
    has_low_fd = any(0 <= fd < _FIRST_FREE_FD for fd in (stdin, stdout, stderr, *pass_fds))
    # The first process is started with `subprocess`: its start delays no other execution, and commands that
    # need one process end 7 ms earlier without ctypes and the thread.
    c = _c_library() if next(_starts) and not has_low_fd else None
    if c is None:
        return subprocess.Popen(  # noqa: ASYNC220
            argv,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    start = partial(c.spawn, argv, env, cwd, (stdin, stdout, stderr), pass_fds)
    starting = asyncio.wrap_future(_thread(os.getpid()).submit(start))
    try:
        return _SpawnedProcess(await asyncio.shield(starting))
    except asyncio.CancelledError:
        # Wait for the start even if the task is cancelled again, because the caller closes the descriptors.
        while not starting.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((starting,))
        if starting.exception() is None:
            kill_tree(_SpawnedProcess(starting.result()))
        raise


def kill_tree(process: StartedProcess) -> None:
    """Kills a process and its descendants, and waits for the end of the process."""
    # Stop the process first, so that it starts nothing while its descendants are listed.
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    for pid in process_tree(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


class _SpawnThread:
    """Thread that starts processes. Raises OSError if it cannot be started.

    An executor of `concurrent.futures` would not do: it keeps a call whose thread could not be started, and
    makes it later, when the descriptors of the call belong to other files. And it refuses calls as soon as
    the main thread has ended, while the event loop may still run in another thread.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], int], Future[int]]] = SimpleQueue()
        try:
            threading.Thread(target=self._run, name="hutch-spawn", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from None

    def submit(self, start: Callable[[], int]) -> Future[int]:
        pid = Future[int]()
        # From now on the future cannot be cancelled, so that the thread can always set its result.
        pid.set_running_or_notify_cancel()
        self._calls.put((start, pid))
        return pid

    def _run(self) -> None:
        while True:
            start, pid = self._calls.get()
            try:
                pid.set_result(start())
            except BaseException as error:
                pid.set_exception(error)
            del start, pid


@cache
def _thread(_pid: int) -> _SpawnThread:
    """Returns the thread that starts processes. A forked process has to create its own."""
    return _SpawnThread()


class _CLibrary:
    """The C functions for starting a process. Raises AttributeError if one of them is missing."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        c = ctypes.CDLL(None)
        self._posix_spawn = c.posix_spawn
        self._init_actions = c.posix_spawn_file_actions_init
        self._destroy_actions = c.posix_spawn_file_actions_destroy
        self._add_open = c.posix_spawn_file_actions_addopen
        self._add_close = c.posix_spawn_file_actions_addclose
        self._add_dup2 = c.posix_spawn_file_actions_adddup2
        self._add_chdir = c.posix_spawn_file_actions_addchdir_np
        # glibc has this function since version 2.34.
        self._add_closefrom = c.posix_spawn_file_actions_addclosefrom_np
        self._attributes = ctypes.create_string_buffer(_STRUCT_BYTES)
        no_signals, restored_signals = (ctypes.create_string_buffer(_STRUCT_BYTES) for _ in range(2))
        c.sigemptyset(no_signals)
        c.sigemptyset(restored_signals)
        for number in _RESTORED_SIGNALS:
            c.sigaddset(restored_signals, number)
        _check(c.posix_spawnattr_init(self._attributes))
        _check(c.posix_spawnattr_setsigmask(self._attributes, no_signals))
        _check(c.posix_spawnattr_setsigdefault(self._attributes, restored_signals))
        flags = ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID)
        _check(c.posix_spawnattr_setflags(self._attributes, flags))

    def spawn(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str,
        streams: tuple[int, int, int],
        pass_fds: Sequence[int],
    ) -> int:
        """Starts a process and returns its pid. Raises OSError, and ValueError for a NUL character."""
        ctypes = self._ctypes
        environment = [f"{name}={value}" for name, value in env.items()]
        pid = ctypes.c_int()
        actions = ctypes.create_string_buffer(_STRUCT_BYTES)
        _check(self._init_actions(actions))
        try:
            self._add_streams(actions, streams)
            self._add_passed(actions, sorted(pass_fds))
            _check(self._add_chdir(actions, _encode(cwd)))
            _check(
                self._posix_spawn(
                    ctypes.byref(pid),
                    _encode(argv[0]),
                    actions,
                    self._attributes,
                    self._strings(argv),
                    self._strings(environment),
                ),
                argv[0],
            )
        finally:
            self._destroy_actions(actions)
        return int(pid.value)

    def _add_streams(self, actions: ctypes.Array[ctypes.c_char], streams: tuple[int, int, int]) -> None:
        for target, source in enumerate(streams):
            if source == subprocess.DEVNULL:
                _check(self._add_open(actions, target, os.fsencode(os.devnull), os.O_RDWR, 0))
            else:
                _check(self._add_dup2(actions, source, target))

    def _add_passed(self, actions: ctypes.Array[ctypes.c_char], passed: Sequence[int]) -> None:
        """Adds the actions that close all descriptors except `passed`, which is sorted. The descriptors are
        copied to the lowest numbers, all others are closed, and the copies get the original numbers.
        """
        for copy, original in enumerate(passed, _FIRST_FREE_FD):
            _check(self._add_dup2(actions, original, copy))
        first_closed = _FIRST_FREE_FD + len(passed)
        _check(self._add_closefrom(actions, first_closed))
        # An original number is never lower than that of its copy. In descending order, no copy is overwritten
        # before it has been used.
        for copy, original in reversed([*enumerate(passed, _FIRST_FREE_FD)]):
            _check(self._add_dup2(actions, copy, original))
        for copy in {*range(_FIRST_FREE_FD, first_closed)}.difference(passed):
            _check(self._add_close(actions, copy))

    def _strings(self, texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
        """Returns a null-terminated array of C strings."""
        return (self._ctypes.c_char_p * (len(texts) + 1))(*map(_encode, texts))


@cache
def _c_library() -> _CLibrary | None:
    """Returns None if the C library cannot close all other descriptors of a new process."""
    try:
        return _CLibrary()
    except (ImportError, AttributeError):
        return None


def _encode(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("a NUL character in an argument of a program")
    return os.fsencode(text)


def _check(error: int, path: str | None = None) -> None:
    if error:
        raise OSError(error, os.strerror(error), path)
