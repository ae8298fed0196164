"""Stands over one MCP server: nothing that it starts outlives it, and it does not outlive us.

A program of its own, run without anything of Hutch: `warden.py DESCRIPTOR COMMAND [ARGUMENT…]`. The command
gets our stdin, stdout, stderr and environment. When the other end of the descriptor is closed, as it is when
the host is killed, the command is given a moment to end by itself, unless the host wrote that there is none,
and then everything below us is killed. As a subreaper we inherit whatever the command's children leave
behind, also what made itself a session.
"""

# Without pathlib it starts quicker.
# ruff: noqa: PTH123, PTH208

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Its stdin is closed: that is how an MCP server is told to go.
LEAVE_SECONDS = 0.5
TERMINATE_SECONDS = 0.5
KILL_SECONDS = 2.0
AT_ONCE = b"!"


def main() -> int:
    control, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(control, False)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    us = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == us:
            become(command)
        os._exit(127)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # We go when the server has gone. Unlike being ignored, a handler is not inherited.
        signal.signal(number, lambda *_: None)
    # The server's own ends, and nobody else's, decide when its pipes are over.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    ended = os.pidfd_open(child)
    select.select([ended, control], [], [])
    if not over(ended, 0) and os.read(control, 1) != AT_ONCE:
        leave(child, ended)
    status = sweep(child)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def become(command: list[str]) -> None:
    # Python ignores these; what it starts would too.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())


def leave(child: int, ended: int) -> None:
    if not over(ended, LEAVE_SECONDS):
        os.killpg(child, signal.SIGTERM)
        over(ended, TERMINATE_SECONDS)


def over(ended: int, seconds: float) -> bool:
    return bool(select.select([ended], [], [], seconds)[0])


def sweep(child: int) -> int:
    """Kills all that is below us until there is nothing; orphans become ours. Gives how the child ended."""
    ended_by = signal.SIGKILL.value
    deadline = time.monotonic() + KILL_SECONDS
    while time.monotonic() < deadline:
        for pid in children():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            break
        if pid == child:
            ended_by = status
        elif pid == 0:
            time.sleep(0.005)
    return ended_by


def children() -> list[int]:
    us = str(os.getpid())
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent(name) == us]


def parent(name: str) -> str:
    try:
        with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as opened:
            return opened.read().rpartition(")")[2].split()[1]
    except (OSError, IndexError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
