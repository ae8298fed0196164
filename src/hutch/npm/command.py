"""Runs one command of the installer to its end: bounded in memory and disk, and ended for certain."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from hutch.npm import tree
from hutch.settings import MIB

Exceeded = tree.Excess | None

# What the installer prints is bounded by nothing else: a registry's answers are in it.
SAID_BYTES = 4096
LINE_BYTES = 64 * 1024
MEMORY_SECONDS = 0.02
DISK_SECONDS = 0.25
FENCE_SECONDS = 1.0
END_SECONDS = 10.0
# The registry's documents are there too while it installs. What counts in the end is the tree.
DOCUMENT_BYTES = 64 * MIB
DOCUMENT_FILES = 2_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Bounds(msgspec.Struct, frozen=True):
    """What an installation may take. An archive is in memory as it came and as it is unpacked."""

    size: int
    files: int

    @property
    def memory(self) -> int:
        return self.size + self.size // 2 + 256 * MIB


class Ended(msgspec.Struct, frozen=True):
    """How a command ended: its code, negative for a signal, its complaint, and which bound it broke."""

    code: int
    said: str
    exceeded: Exceeded = None


async def run(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    pass_fds: Sequence[int],
    watched: Sequence[Path],
    bounds: Bounds,
    on_line: Callable[[str], None],
) -> Ended:
    """Runs it; `watched` are the folders that it fills. Cancelled, it is over before this returns."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=env,
        pass_fds=pass_fds,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    listening = asyncio.ensure_future(_listen(process, on_line))
    watching = asyncio.ensure_future(_watch(process, watched, bounds))
    try:
        await process.wait()
        said = await listening
        exceeded = watching.result() if watching.done() else None
        return Ended(process.returncode or 0, said, exceeded)
    finally:
        watching.cancel()
        gone = asyncio.ensure_future(process.wait())
        try:
            _stop(process)
            await asyncio.wait([gone], timeout=FENCE_SECONDS)
        finally:
            # All that is left of the group, also when it is over itself and has left somebody behind.
            _signal(os.killpg, process.pid)
        # Its output ends with the last of the group, and with that the pipe is closed.
        await asyncio.wait([gone, listening, watching], timeout=END_SECONDS)
        listening.cancel()


def _stop(process: Process) -> None:
    """Kills the installer. The fence then ends by itself; killed too, it would leave it unreaped."""
    if process.returncode is None:
        inside = _children(process.pid)
        for pid in inside:
            _signal(os.kill, pid)
        if not inside:
            _signal(os.killpg, process.pid)


def _signal(kill: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


async def _listen(process: Process, on_line: Callable[[str], None]) -> str:
    """Tells every line until it complains, and gives the complaint."""
    assert process.stdout is not None
    said = bytearray()
    rest = b""
    while chunk := await process.stdout.read(LINE_BYTES):
        if said:
            said += chunk[: SAID_BYTES - len(said)]
            continue
        *lines, rest = (rest + chunk)[-LINE_BYTES:].split(b"\n")
        for number, line in enumerate(lines):
            if line.startswith(b"error: "):
                said += b"\n".join([*lines[number:], rest])[:SAID_BYTES]
                break
            on_line(line.decode(errors="replace"))
    if not said and rest.startswith(b"error: "):
        said += rest[:SAID_BYTES]
    return said.decode(errors="replace")


async def _watch(process: Process, watched: Sequence[Path], bounds: Bounds) -> Exceeded:
    """Kills it once it takes too much, and says of what."""
    disk = asyncio.ensure_future(_watch_disk(watched, bounds))
    try:
        while not disk.done() and _memory(process.pid) <= bounds.memory:
            await asyncio.wait([disk], timeout=MEMORY_SECONDS)
        _stop(process)
        return disk.result() if disk.done() else "size"
    finally:
        disk.cancel()


async def _watch_disk(watched: Sequence[Path], bounds: Bounds) -> Exceeded:
    loop = asyncio.get_running_loop()
    pause = DISK_SECONDS
    while True:
        await asyncio.sleep(pause)
        began = loop.time()
        exceeded = await asyncio.to_thread(_too_much, watched, bounds)
        if exceeded is not None:
            return exceeded
        # Looking takes no more than a tenth of the time, however many files there are.
        pause = max(DISK_SECONDS, 9 * (loop.time() - began))


def _memory(pid: int) -> int:
    """Of a process and those that it started: the fence's own is around the installer's."""
    try:
        used = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0
    return used + sum(map(_memory, _children(pid)))


def _too_much(watched: Sequence[Path], bounds: Bounds) -> Exceeded:
    try:
        for folder in watched:
            tree.measure(folder, bounds.size + DOCUMENT_BYTES, bounds.files + DOCUMENT_FILES)
    except tree.TooMuch as error:
        return error.of
    return None
