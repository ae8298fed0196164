"""Runs the package installer in its own jail, limits its memory and disk usage, and kills it reliably."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from hutch.npm import tree
from hutch.npm.registry import DOCUMENT_FILE
from hutch.sandbox.jail.jail import DEVICES, bubblewrap_path
from hutch.settings import MIB
from hutch.streams.lines import LineSplitter

logger = logging.getLogger("hutch.npm")

ExceededLimit = tree.TreeLimit | None

# Maximum size of the error output that is kept. It is limited, because it contains responses of the registry.
MAX_ERROR_BYTES = 4096
MAX_LINE_BYTES = 64 * 1024
MEMORY_INTERVAL_SECONDS = 0.02
DISK_INTERVAL_SECONDS = 0.25
JAIL_EXIT_SECONDS = 1.0
EXIT_SECONDS = 10.0
# The installer stores the registry's documents in the folders of the packages. Up to these limits, the
# documents do not count as files of the packages.
DOCUMENTS = tree.Allowance(DOCUMENT_FILE, max_bytes=64 * MIB, max_files=2_000)
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


class InstallLimits(msgspec.Struct, frozen=True):
    max_bytes: int
    max_files: int

    def value(self, limit: tree.TreeLimit) -> int:
        return self.max_bytes if limit == "size" else self.max_files

    @property
    def maxima(self) -> tuple[int, int]:
        return self.max_bytes, self.max_files

    @property
    def max_memory(self) -> int:
        # An archive is in memory twice, compressed and unpacked.
        return self.max_bytes + self.max_bytes // 2 + 256 * MIB


class InstallerExit(msgspec.Struct, frozen=True):
    """Result of the installer: exit code (negative for a signal), error output, and the limit that was
    exceeded.
    """

    code: int
    error_output: str
    exceeded: ExceededLimit = None


async def run_installer(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    pass_fds: Sequence[int],
    watched: Sequence[Path],
    limits: InstallLimits,
    on_line: Callable[[str], None],
) -> InstallerExit:
    """Runs the installer until it ends or exceeds a limit. If this call is cancelled, the installer is killed
    before the call returns.

    `watched` are the folders that the installer fills.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *argv,
            cwd=cwd,
            env=env,
            pass_fds=pass_fds,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        # Kill the installer here and wait for its end. asyncio would kill only the jail's process, and the
        # installer would then write into a folder that is being removed.
        with contextlib.suppress(OSError):
            async with _read_until_end(await starting, on_line):
                pass
        raise
    async with _read_until_end(process, on_line) as reading:
        watching = asyncio.ensure_future(_watch_limits(process, watched, limits))
        try:
            await process.wait()
            error_output = await reading
            exceeded = watching.result() if watching.done() else None
            return InstallerExit(process.returncode or 0, error_output, exceeded)
        finally:
            watching.cancel()


@contextlib.asynccontextmanager
async def _read_until_end(
    process: Process, on_line: Callable[[str], None]
) -> AsyncIterator[asyncio.Future[str]]:
    """Reads the output of the installer. At the end, kills the installer and waits until all its processes
    are gone.
    """
    reading = asyncio.ensure_future(_read_output(process, on_line))
    try:
        yield reading
    finally:
        exited = asyncio.ensure_future(process.wait())
        try:
            _kill_installer(process)
            await asyncio.wait([exited], timeout=JAIL_EXIT_SECONDS)
        finally:
            # Kill the rest of the group, because a leader that has ended may have left children behind.
            _signal(os.killpg, process.pid)
        # Reading ends when the last process of the group has ended, because this closes the pipe.
        await asyncio.wait([exited, reading], timeout=EXIT_SECONDS)
        reading.cancel()


def _kill_installer(process: Process) -> None:
    """Kills the installer inside the jail. The jail's own process then reaps it and ends."""
    if process.returncode is None:
        children = _children(process.pid)
        for pid in children:
            _signal(os.kill, pid)
        if not children:
            _signal(os.killpg, process.pid)


def _signal(kill: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def _read_output(process: Process, on_line: Callable[[str], None]) -> str:
    """Calls `on_line` with every line before the first error. Returns the text of the error."""
    assert process.stdout is not None
    error_output = bytearray()
    splitter = LineSplitter(MAX_LINE_BYTES, truncate=True)
    is_open = True
    while is_open:
        chunk = await process.stdout.read(MAX_LINE_BYTES)
        is_open = bool(chunk)
        for line in splitter.feed(chunk or b"\n"):
            if error_output or line.startswith(b"error: "):
                error_output += (line + b"\n")[: MAX_ERROR_BYTES - len(error_output)]
            elif is_open:
                on_line(line.decode(errors="replace"))
    return error_output.rstrip(b"\n").decode(errors="replace")


async def _watch_limits(process: Process, watched: Sequence[Path], limits: InstallLimits) -> ExceededLimit:
    disk = asyncio.ensure_future(_watch_disk(watched, limits))
    try:
        while not disk.done() and _memory_of(process.pid) <= limits.max_memory:
            await asyncio.wait([disk], timeout=MEMORY_INTERVAL_SECONDS)
        _kill_installer(process)
        return disk.result() if disk.done() else "size"
    finally:
        disk.cancel()


async def _watch_disk(watched: Sequence[Path], limits: InstallLimits) -> ExceededLimit:
    loop = asyncio.get_running_loop()
    pause = DISK_INTERVAL_SECONDS
    while True:
        await asyncio.sleep(pause)
        began = loop.time()
        exceeded = await asyncio.to_thread(_exceeded_disk_limit, watched, limits)
        if exceeded is not None:
            return exceeded
        # Pause at least twice as long as the measurement took, so that measuring uses at most a third of the
        # time.
        pause = max(DISK_INTERVAL_SECONDS, 2 * (loop.time() - began))


def _memory_of(pid: int) -> int:
    """Returns the memory of a process and its descendants. The installer is a child process of bubblewrap."""
    try:
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_SIZE
    except (OSError, IndexError):
        return 0
    return used + sum(map(_memory_of, _children(pid)))


def _exceeded_disk_limit(watched: Sequence[Path], limits: InstallLimits) -> ExceededLimit:
    try:
        for folder in watched:
            tree.measure(folder, limits.max_bytes, limits.max_files, DOCUMENTS)
    except tree.TreeTooLarge as error:
        return error.limit
    return None


# --- jail ---


def installer_jail_prefix(folder: Path) -> list[str]:
    """Returns a command prefix that makes everything except the folder read-only and kills the command when
    this process ends. Without bubblewrap nothing is read-only (see `is_installer_jail_available`).
    """
    if is_installer_jail_available():
        return _bwrap_prefix(folder)
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--no-new-privs", "--"] if setpriv else []


def is_installer_jail_available() -> bool:
    """Returns True if bubblewrap works on this machine. The first call takes some milliseconds."""
    return _bwrap_works(bubblewrap_path())


def _bwrap_prefix(folder: Path) -> list[str]:
    bwrap = bubblewrap_path() or "bwrap"
    mounts = ["--ro-bind", "/", "/", "--bind", str(folder), str(folder)]
    for device in DEVICES:
        mounts += ["--dev-bind", device, device]
    return [bwrap, "--die-with-parent", "--cap-drop", "ALL", *mounts, "--"]


@lru_cache
def _bwrap_works(bwrap: str | None) -> bool:
    if bwrap is None:
        return False
    try:
        completed = subprocess.run(
            [*_bwrap_prefix(Path("/tmp")), "/bin/true"], env={}, capture_output=True, timeout=10
        )
        works = completed.returncode == 0
    except (OSError, subprocess.SubprocessError):
        works = False
    if not works:
        logger.info("bubblewrap does not work here: the package installer runs without a jail")
    return works
