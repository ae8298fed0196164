"""Child processes: pipes, exit codes and cleanup."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hutch.child_process.process import ChildProcess, find_program, read_available

# Program that ignores SIGTERM, starts a child in another session, prints the ids of both processes, and
# waits.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
time.sleep(100)
"""


@contextmanager
def started(*command: str, reaped: bool = True, cwd: Path | None = None) -> Iterator[ChildProcess]:
    process = ChildProcess(command, os.environ, reaped=reaped, cwd=cwd)
    try:
        yield process
    finally:
        process.abandon()


def read(pipe: int) -> bytes:
    parts = []
    while select.select([pipe], [], [], 10)[0] and (data := os.read(pipe, 65536)):
        parts.append(data)
    return b"".join(parts)


def has_exited(pidfd: int, seconds: float = 60) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])


def exit_code_of(process: ChildProcess) -> int | None:
    pidfd = os.pidfd_open(process.pid)
    assert has_exited(pidfd)
    os.close(pidfd)
    return process.exit_code()


def stubborn_pidfds(process: ChildProcess) -> list[int]:
    assert select.select([process.stdout.fileno()], [], [], 10)[0]
    return [os.pidfd_open(int(pid)) for pid in os.read(process.stdout.fileno(), 100).split()]


@pytest.mark.parametrize("reaped", [True, False])
def test_child_has_three_pipes_and_its_folder(reaped: bool, tmp_path: Path) -> None:
    with started("/bin/sh", "-c", "cat; pwd; echo bad >&2; exit 3", reaped=reaped, cwd=tmp_path) as process:
        os.write(process.stdin.fileno(), b"hello\n")
        process.stdin.close()
        assert read(process.stdout.fileno()) == f"hello\n{tmp_path}\n".encode()
        assert read(process.stderr.fileno()) == b"bad\n"
        assert exit_code_of(process) == 3


@pytest.mark.parametrize("reaped", [True, False])
def test_exit_code_of_a_killed_child_is_like_in_a_shell(reaped: bool) -> None:
    with started("/bin/sh", "-c", "kill -9 $$", reaped=reaped) as process:
        assert exit_code_of(process) == 128 + signal.SIGKILL


def test_available_output_is_read_without_blocking() -> None:
    with started("/bin/sh", "-c", "read line; echo out; read line") as process:
        assert list(read_available(process.stdout)) == []
        os.write(process.stdin.fileno(), b"\n")
        assert select.select([process.stdout.fileno()], [], [], 10)[0]
        assert list(read_available(process.stdout)) == [b"out\n"]
        process.stdin.close()
        assert select.select([process.stdout.fileno()], [], [], 10)[0]
        assert list(read_available(process.stdout)) == [b""]


def test_reading_stops_after_a_bounded_number_of_chunks() -> None:
    with Path("/dev/zero").open("rb", buffering=0) as endless:
        assert 0 < sum(map(len, read_available(endless))) <= 1024 * 1024


def test_running_child_has_no_exit_code() -> None:
    with started("/bin/cat") as process:
        assert process.exit_code() is None


@pytest.mark.parametrize("reaped", [True, False])
def test_child_is_in_its_own_session(reaped: bool) -> None:
    with started("/bin/cat", reaped=reaped) as process:
        assert os.getsid(process.pid) == process.pid


@pytest.mark.parametrize("at_once", [True, False])
def test_terminate_ends_stubborn_children_and_their_descendants(at_once: bool) -> None:
    with started(sys.executable, "-c", STUBBORN) as process:
        found = stubborn_pidfds(process)
        process.terminate(at_once=at_once)
        assert all(has_exited(pidfd) for pidfd in found)


def test_kill_ends_the_program_below_the_reaper() -> None:
    with started(sys.executable, "-c", STUBBORN) as process:
        program = stubborn_pidfds(process)[0]
        process.kill()
        assert has_exited(program)


def test_children_and_their_descendants_end_when_their_parent_is_killed() -> None:
    script = f"""
import os, sys, time
from hutch.child_process.process import ChildProcess
process = ChildProcess((sys.executable, "-c", {STUBBORN!r}), os.environ)
os.set_blocking(process.stdout.fileno(), True)
print(open(process.stdout.fileno(), closefd=False).readline(), flush=True)
time.sleep(100)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        found = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(found) == 2
        parent.kill()
    assert all(has_exited(pidfd) for pidfd in found)


def test_child_without_reaper_is_killed_only_at_once() -> None:
    with started("/bin/cat", reaped=False) as process:
        process.terminate(at_once=False)
        assert process.exit_code() is None
        process.terminate(at_once=True)
        assert exit_code_of(process) == 128 + signal.SIGKILL


def test_variables_of_the_child_do_not_affect_the_reaper(tmp_path: Path) -> None:
    (tmp_path / "ctypes.py").write_text("raise SystemExit('imported')")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "PYTHONINSPECT": "1"}
    process = ChildProcess(("/bin/sh", "-c", 'echo "$PYTHONPATH"'), env)
    assert read(process.stdout.fileno()) == f"{tmp_path}\n".encode()
    assert exit_code_of(process) == 0
    process.close()


@pytest.mark.parametrize("reaped", [True, False])
def test_failed_start_leaves_no_descriptors(reaped: bool, tmp_path: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    with pytest.raises(OSError, match="No such file"):
        ChildProcess(("/bin/cat",), os.environ, cwd=tmp_path / "missing", reaped=reaped)
    with pytest.raises(ValueError, match="null byte"):
        ChildProcess(("/bin/cat", "\0"), os.environ, reaped=reaped)
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_programs_are_found_in_the_path_of_their_environment(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\n")
    assert find_program("tool", {"PATH": str(tmp_path)}) is None
    program.chmod(0o755)
    assert find_program("tool", {"PATH": str(tmp_path)}) == str(program)
    assert find_program("tool", {"PATH": "/nowhere"}) is None
    assert find_program("./tool", {}, tmp_path) == f"{tmp_path}/tool"
    assert find_program(str(program), {}) == str(program)
    assert find_program("./missing", {}, tmp_path) is None
