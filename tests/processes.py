"""Real `hutch` processes: started, spoken with, and looked after when they are gone."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.forked import Forked

HUTCH = (sys.executable, "-m", "hutch")
# What a slow machine may take for anything; what hangs fails, it does not sleep.
PATIENCE = 60.0
# Without processes that nobody may ask for.
COLD = {"HUTCH_QUICKJS_WARM": "0", "HUTCH_DENO_WARM": "0"}


def hutch(
    *arguments: str, input: str | bytes = b"", env: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    data = input.encode() if isinstance(input, str) else input
    with started(arguments, env=env, cwd=cwd) as process:
        try:
            out, err = process.communicate(data, PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


def started(
    arguments: Sequence[str], *, env: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """One command, spoken with through pipes unless `options` say otherwise, with `env` beside our own."""
    options = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE), **options}
    options["env"] = {**os.environ, **(env or {})}
    if _for_python(options["env"]) == _FOR_PYTHON:
        return Forked(arguments, **options)
    return subprocess.Popen([*HUTCH, *arguments], **options)


def _for_python(env: Mapping[str, str]) -> dict[str, str]:
    """What counts when Python starts, and for what is forked that was long ago."""
    return {name: value for name, value in env.items() if name.startswith("PYTHON")}


_FOR_PYTHON = _for_python(os.environ)


def until(condition: Callable[[], object]) -> None:
    """Waits for what no event tells of."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        select.select([], [], [], 0.005)


class Traces:
    """The processes below one, and its temporary files, to see that they go with it."""

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
        """What is still there after at most so many seconds."""
        left = [str(pid) for pid, fd in self._open.items() if not select.select([fd], [], [], seconds)[0]]
        return left + [str(path) for path in temporary_files(self._pid)]


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for child in children(pid):
        found += [child, *descendants(child)]
    return found


def children(pid: int) -> list[int]:
    """Of all its threads, which come and go while we look."""
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


def runs(pid: int, script: str) -> bool:
    """Whether it is of a runner with this script, in a container or without."""
    return any(each.endswith(f"/{script}") for each in arguments_of(pid))


def temporary_files(pid: int) -> list[Path]:
    folders = {tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()}
    return [path for folder in folders for path in Path(folder).glob(f"hutch-*-{pid}-*")]


class Server:
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
        """Waits for the next line of the log that has this part."""
        while part not in (line := self._lines.get(timeout=PATIENCE)):
            pass
        return line

    def wait(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code


@contextlib.contextmanager
def serving(*arguments: str, **env: str) -> Iterator[Server]:
    """A server on a free port, with nothing warm; ended at the end if the test did not do so."""
    env = {**COLD, **env}
    with started(["serve", "--port", "0", *arguments], env=env, text=True) as process:
        try:
            server = Server(process)
            yield server
        finally:
            end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """Ends a process so that it can tidy up, but for certain."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE)
