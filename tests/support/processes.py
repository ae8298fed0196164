"""Starts real `hutch` processes, and checks for leftovers."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.forked import ForkedProcess

from hutch.sandbox.selftest import selftest
from hutch.settings import Settings

HUTCH = (sys.executable, "-m", "hutch")
# A long timeout, because the machine may be slow. Only a test that hangs waits for the whole timeout.
TIMEOUT_SECONDS = 60.0
# Settings without warm processes.
NO_WARM_RUNNERS = {"HUTCH_QUICKJS_WARM": "0", "HUTCH_DENO_WARM": "0"}


def hutch(
    *arguments: str, input: str | bytes = b"", env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs one `hutch` command to its end."""
    data = input.encode() if isinstance(input, str) else input
    with start_hutch(arguments, env=env, cwd=cwd) as process:
        try:
            out, err = process.communicate(data, TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


def start_hutch(
    arguments: Sequence[str], *, env: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Starts one command with `env` added to the environment. The command has pipes unless `options` says
    otherwise.
    """
    options = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), **options}
    options["env"] = {**os.environ, **(env or {})}
    if _python_variables(options["env"]) == _PYTHON_VARIABLES:
        return ForkedProcess(arguments, **options)
    return subprocess.Popen([*HUTCH, *arguments], **options)


def _python_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns those variables that Python reads at its start. A forked process cannot change their effect."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


_PYTHON_VARIABLES = _python_variables(os.environ)


def wait_until(condition: Callable[[], object]) -> None:
    """Polls until the condition is true. For conditions that have no event."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        select.select([], [], [], 0.005)


class Traces:
    """Records the descendants and the temporary files of a process, to check that they are gone when the
    process has ended.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._open: dict[int, int] = {}
        for each in (pid, *descendants(pid)):
            with contextlib.suppress(ProcessLookupError):
                self._open[each] = os.pidfd_open(each)

    @property
    def processes(self) -> int:
        return len(self._open) - 1

    def __enter__(self) -> Traces:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in self._open.values():
            os.close(fd)

    def remaining(self, seconds: float = 10.0) -> list[str]:
        """Waits at most `seconds` until no recorded processes and files exist. Returns those that still
        exist.
        """
        left = [str(pid) for pid, fd in self._open.items() if not select.select([fd], [], [], seconds)[0]]
        return left + [str(path) for path in temporary_files(self._pid)]


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def children(pid: int) -> list[int]:
    """Returns the children of a process. The kernel lists children by thread. Threads and children may start
    and end meanwhile.
    """
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in list(Path(f"/proc/{pid}/task").iterdir()):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, (task / "children").read_text().split())
    return found


def arguments_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_runner(pid: int, script: str) -> bool:
    """Returns True if the process is a runner with this script, with or without a container."""
    return any(each.endswith(f"/{script}") for each in arguments_of(pid))


def temporary_files(pid: int) -> list[Path]:
    folders = {tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()}
    return [path for folder in folders for path in Path(folder).glob(f"hutch-*-{pid}-*")]


class ServeProcess:
    """A running `hutch serve`."""

    announcement = r"Hutch serves (http://\S+) "

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.announced = ""
        self.seen: list[str] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert process.stdout is not None
        while "Try:" not in self.announced:
            line = process.stdout.readline()
            assert line, f"the server ended: {self.seen}"
            self.announced += line
        found = re.match(self.announcement, self.announced)
        assert found is not None
        self.url = found[1]
        self.execbox = self.url.replace("http", "ws") + "/execbox"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.seen.append(line)
            self._lines.put(line)

    def logged(self, part: str) -> str:
        """Waits for the next line of the log that contains this text, and returns it."""
        while part not in (line := self._lines.get(timeout=TIMEOUT_SECONDS)):
            pass
        return line

    def wait(self) -> int:
        code = self.process.wait(TIMEOUT_SECONDS)
        self._reader.join(TIMEOUT_SECONDS)
        return code


@contextlib.contextmanager
def running_server(*arguments: str, **env: str) -> Iterator[ServeProcess]:
    """Starts a server on a free port without warm processes. At the end, stops the server if the test has not
    stopped it.
    """
    env = {**NO_WARM_RUNNERS, **env}
    if "HUTCH_HOME" in env:
        copy_selftest(Path(env["HUTCH_HOME"]))
    with start_hutch(["serve", "--port", "0", *arguments], env=env, text=True) as process:
        try:
            server = ServeProcess(process)
            yield server
        finally:
            stop_process(process)


def copy_selftest(home: Path) -> None:
    """Copies the result of the jail's self-test from the tests' home to a new home. Otherwise, the server
    would repeat the self-test, which takes 0.2 s of CPU time.
    """
    # Ignore errors, because some tests use homes that cannot be written to.
    with contextlib.suppress(OSError):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(_tested_cache(), home / "cache")


@functools.cache
def _tested_cache() -> Path:
    home = Path(tempfile.mkdtemp(prefix="hutch-tests-"))
    atexit.register(shutil.rmtree, home)
    selftest.choose_jail(Settings(home=str(home)))
    return home / "cache"


def stop_process(process: subprocess.Popen[Any]) -> None:
    """Ends a process gracefully, or kills it after a timeout."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(TIMEOUT_SECONDS)
