"""`shell.run`: a program of this machine, in a jail that has `/usr` read-only, no network and no secrets.

Listed and run only where both the one who starts the runtime and the one who starts the run allow it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.doors.rep.kinds.registry import Call, Kind, StepFailed
from hutch.sandbox.jail import Launch, Mount
from hutch.sandbox.outlet import Outlet

if TYPE_CHECKING:
    from hutch.sandbox.cgroup import Group
    from hutch.sandbox.jail import Jail

MAX_OUTPUT_BYTES = 1024 * 1024
"""Of each stream; the rest is taken in and dropped."""
MEMORY_BYTES = 512 * 1024 * 1024
MAX_TASKS = 128
_MOST_TOLD = 8_000
_TREES = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ENV = (("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8"))


class Params(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program with arguments; without any, a line for the shell."""

    command: str
    args: list[str] | None = None


class _Kept:
    """The beginning of what a program prints."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.truncated = False

    def take(self, data: bytes) -> None:
        room = MAX_OUTPUT_BYTES - len(self._data)
        self._data += data[:room]
        self.truncated |= len(data) > room

    def last(self) -> str:
        """What there is to see of a failure."""
        return str(self)[-_MOST_TOLD:]

    def __str__(self) -> str:
        return self._data.decode(errors="replace")


async def _run(call: Call) -> Any:
    params: Params = call.params
    if not call.context.allow_shell:
        raise StepFailed("shell.run is not allowed in this run.", retriable=False)
    jail = (await call.context.app()).jail
    if jail.isolation != "container":
        raise StepFailed("shell.run needs containers; `hutch doctor` says how to get them.", retriable=False)
    argv = (params.command, *params.args) if params.args is not None else ("/bin/sh", "-c", params.command)
    # Not by the path of the one who starts it.
    if "/" not in argv[0]:
        argv = ("/usr/bin/env", *argv)
    launch = Launch(argv=argv, mounts=_mounts(), env=_ENV, cwd="/tmp", forks=True)
    group = jail.controller.create(MEMORY_BYTES, MAX_TASKS) if jail.controller else None
    try:
        code, out, err = await _ended(jail, launch, group)
        if code and group is not None and group.oom_kills():
            raise StepFailed(f"The program took more than {MEMORY_BYTES // 2**20} MiB.")
    finally:
        if group is not None:
            group.kill()
            group.remove()
    output = {"exit_code": code, "stdout": str(out), "stderr": str(err)}
    if out.truncated or err.truncated:
        output["truncated"] = True
        call.log("warning", f"of what the program printed, {MAX_OUTPUT_BYTES // 1024} KiB a stream are kept")
    if code:
        last = str(err).strip().rpartition("\n")[2]
        message = f"{params.command[:100]} ended with exit code {code}" + (f": {last}" if last else ".")
        raise StepFailed(message, details={"exit_code": code, "stdout": out.last(), "stderr": err.last()})
    return output


def _mounts() -> tuple[Mount, ...]:
    return tuple(Mount(tree, tree) for tree in _TREES if Path(tree).is_dir())


async def _ended(jail: Jail, launch: Launch, group: Group | None) -> tuple[int, _Kept, _Kept]:
    """Runs it to its end; cancelled, it ends it."""
    loop = asyncio.get_running_loop()
    out, err = _Kept(), _Kept()
    outlets = Outlet(out.take), Outlet(err.take)
    try:
        with jail.command(launch, group=group) as command:
            process = subprocess.Popen(  # noqa: ASYNC220 - it has to be this thread that it dies with
                command.argv,
                stdin=subprocess.DEVNULL,
                stdout=outlets[0].for_process,
                stderr=outlets[1].for_process,
                **command.options(),
            )
    except BaseException as error:
        for outlet in outlets:
            outlet.begin()
            outlet.close()
        if isinstance(error, OSError):
            raise StepFailed(f"The jail cannot be started: {error}") from None
        raise
    for outlet in outlets:
        outlet.begin()
    ended = asyncio.Event()
    pidfd = os.pidfd_open(process.pid)
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    except asyncio.CancelledError:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        raise
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
        code = process.wait()
        for outlet in outlets:
            outlet.drain()
            outlet.close()
    return code if code >= 0 else 128 - code, out, err


RUN = Kind("shell.run", _run, params=Params)
