"""Parent process of one program. Ends with the host, and kills the program and all its descendants.

This is a standalone script without imports from Hutch: `reaper.py DESCRIPTOR COMMAND [ARGUMENT…]`. The
command inherits stdin, stdout, stderr and the environment. DESCRIPTOR is one end of a pipe or socket to the
host. When the host closes its end or is killed, the command gets a moment to exit. Then all descendants are
killed. If the host wrote `KILL_NOW`, they are killed immediately. As a subreaper, this process also inherits
orphans and processes in other sessions.
"""

# pathlib would slow down the start.
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
# Time that the command has to exit by itself after its stdin is closed. MCP servers and REP runtimes exit
# when their stdin is closed.
EXIT_SECONDS = 0.5
TERMINATE_SECONDS = 0.5
KILL_SECONDS = 2.0
KILL_NOW = b"!"


def main() -> int:
    control, command = int(sys.argv[1]), sys.argv[2:]
    os.set_inheritable(control, False)
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    own_pid = os.getpid()
    child = os.fork()
    if child == 0:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == own_pid:
            exec_command(command)
        os._exit(127)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # This process exits after the program, so these signals must not end it. Set handlers that do nothing
        # rather than ignoring the signals, because the program would inherit ignored signals.
        signal.signal(number, lambda *_: None)
    # Only the program may hold its pipes open, so this process closes its copies.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    child_fd = os.pidfd_open(child)
    select.select([child_fd, control], [], [])
    if not has_exited(child_fd, 0) and os.read(control, 1) != KILL_NOW:
        terminate(child, child_fd)
    status = kill_descendants(child)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def exec_command(command: list[str]) -> None:
    # Reset these signals, because Python ignores them and the command would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())


def terminate(child: int, child_fd: int) -> None:
    if not has_exited(child_fd, EXIT_SECONDS):
        os.killpg(child, signal.SIGTERM)
        has_exited(child_fd, TERMINATE_SECONDS)


def has_exited(child_fd: int, seconds: float) -> bool:
    return bool(select.select([child_fd], [], [], seconds)[0])


def kill_descendants(child: int) -> int:
    """Kills children until none is left, and returns the exit status of the program. Orphans of killed
    processes become children of this process.
    """
    exit_status = signal.SIGKILL.value
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
            exit_status = status
        elif pid == 0:
            time.sleep(0.005)
    return exit_status


def children() -> list[int]:
    own_pid = str(os.getpid())
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and parent(name) == own_pid]


def parent(name: str) -> str:
    try:
        with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[1]
    except (OSError, IndexError):
        return ""


if __name__ == "__main__":
    sys.exit(main())
