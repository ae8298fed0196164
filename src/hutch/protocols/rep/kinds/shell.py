"""`shell.run`: runs a program in a jail with `/usr` read-only, no network and no secrets.

The kind is available only if the runtime's environment and the run's options both allow it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.protocols.rep.kinds.registry import Call, Kind, StepFailed
from hutch.sandbox.jail.jail import Launch, Mount
from hutch.sandbox.jail.spawn import kill_tree, spawn
from hutch.sandbox.runner.pipes import OutputPipe

if TYPE_CHECKING:
    from hutch.sandbox.jail.cgroup import Cgroup
    from hutch.sandbox.jail.jail import Jail

MAX_OUTPUT_BYTES = 1024 * 1024
"""Maximum output that is kept per stream. The rest is read and discarded."""
MEMORY_BYTES = 512 * 1024 * 1024
MAX_TASKS = 128
_MAX_DETAIL_CHARS = 8_000
_MOUNTED_FOLDERS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ENV = (("PATH", "/usr/local/bin:/usr/bin:/bin"), ("HOME", "/tmp"), ("TMPDIR", "/tmp"), ("LANG", "C.UTF-8"))


class ShellParams(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `shell.run`. Without `args`, `command` is a shell command line."""

    command: str
    args: list[str] | None = None


class _OutputHead:
    """The beginning of a program's output."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.truncated = False

    def add(self, data: bytes) -> None:
        space = MAX_OUTPUT_BYTES - len(self._data)
        self._data += data[:space]
        self.truncated |= len(data) > space

    def tail(self) -> str:
        """Returns the end of the kept output, for error details."""
        return str(self)[-_MAX_DETAIL_CHARS:]

    def __str__(self) -> str:
        return self._data.decode(errors="replace")


async def _run(call: Call) -> Any:
    params: ShellParams = call.params
    if not call.context.allow_shell:
        raise StepFailed("shell.run is not allowed in this run.", retriable=False)
    jail = (await call.context.step_services()).jail
    if jail.isolation != "container":
        raise StepFailed(
            "shell.run needs containers; `hutch doctor` explains how to get them.", retriable=False
        )
    argv = (params.command, *params.args) if params.args is not None else ("/bin/sh", "-c", params.command)
    # Use `env`, because it searches for the program in the jail's PATH instead of the runtime's PATH.
    if "/" not in argv[0]:
        argv = ("/usr/bin/env", *argv)
    launch = Launch(argv=argv, mounts=_mounts(), env=_ENV, cwd="/tmp", forks=True)
    group = jail.controller.create(MEMORY_BYTES, MAX_TASKS) if jail.controller else None
    try:
        code, stdout, stderr = await _run_program(jail, launch, group)
        if code and group is not None and group.oom_kills():
            raise StepFailed(f"The program took more than {MEMORY_BYTES // 2**20} MiB.")
    finally:
        if group is not None:
            group.kill()
            group.remove()
    output = {"exit_code": code, "stdout": str(stdout), "stderr": str(stderr)}
    if stdout.truncated or stderr.truncated:
        output["truncated"] = True
        call.log("warning", f"the output was truncated to {MAX_OUTPUT_BYTES // 1024} KiB per stream")
    if code:
        tail = str(stderr).strip().rpartition("\n")[2]
        message = f"{params.command[:100]} ended with exit code {code}" + (f": {tail}" if tail else ".")
        raise StepFailed(
            message, details={"exit_code": code, "stdout": stdout.tail(), "stderr": stderr.tail()}
        )
    return output


def _mounts() -> tuple[Mount, ...]:
    return tuple(Mount(folder, folder) for folder in _MOUNTED_FOLDERS if Path(folder).is_dir())


async def _run_program(
    jail: Jail, launch: Launch, group: Cgroup | None
) -> tuple[int, _OutputHead, _OutputHead]:
    """Runs the program to its end, or kills it if the step is cancelled."""
    loop = asyncio.get_running_loop()
    stdout, stderr = _OutputHead(), _OutputHead()
    pipes = OutputPipe(stdout.add), OutputPipe(stderr.add)
    try:
        with jail.command(launch, group=group) as command:
            process = await spawn(
                command.argv,
                stdout=pipes[0].child_fd,
                stderr=pipes[1].child_fd,
                env=command.env,
                cwd=command.cwd,
                pass_fds=command.pass_fds,
            )
    except BaseException as error:
        for pipe in pipes:
            pipe.close()
        if isinstance(error, OSError):
            raise StepFailed(f"The jail cannot be started: {error}") from None
        raise
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError as error:
        kill_tree(process)
        for pipe in pipes:
            pipe.close()
        raise StepFailed(f"The jail cannot be watched: {error}") from None
    for pipe in pipes:
        pipe.start_reading()
    ended = asyncio.Event()
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
        for pipe in pipes:
            pipe.drain()
            pipe.close()
    return code if code >= 0 else 128 - code, stdout, stderr


RUN = Kind("shell.run", _run, params=ShellParams)
