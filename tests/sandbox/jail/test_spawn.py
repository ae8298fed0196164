"""Starting processes: descriptors, session, signals, failures, cancellation."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.support.processes import children
from tests.support.waiting import eventually

from hutch.sandbox.jail import spawn as spawn_module
from hutch.sandbox.jail.jail import memory_file
from hutch.sandbox.jail.spawn import StartedProcess, kill_tree, spawn

SLEEP = ("/bin/sleep", "1000")


@pytest.fixture(autouse=True)
def skip_first_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first process of a program is started with `subprocess`."""
    monkeypatch.setattr(spawn_module, "_starts", itertools.count(1))


@pytest.fixture(params=["posix_spawn", "subprocess"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "subprocess":
        # An older C library has no function that closes all other descriptors.
        monkeypatch.setattr(spawn_module, "_c_library", lambda: None)


with_each_method = pytest.mark.usefixtures("method")


@pytest.fixture
def null() -> Iterator[int]:
    handle = os.open(os.devnull, os.O_RDWR)
    yield handle
    os.close(handle)


async def start(*argv: str, null: int, pass_fds: Sequence[int] = ()) -> StartedProcess:
    return await spawn(argv, env={}, cwd="/", stdout=null, stderr=null, pass_fds=pass_fds)


async def output_of(
    *argv: str,
    env: dict[str, str] | None = None,
    cwd: str = "/",
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> str:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as output:
        try:
            process = await spawn(
                argv, env=env or {}, cwd=cwd, stdin=stdin, stdout=writer, stderr=writer, pass_fds=pass_fds
            )
        finally:
            os.close(writer)
        text = await asyncio.to_thread(output.read)
    assert process.wait() == 0
    return text.decode()


def high_descriptor(content: str) -> int:
    """Opens a file with this content. Its number is higher than those of other descriptors."""
    handle = memory_file(content.encode())
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 500)
    finally:
        os.close(handle)


@with_each_method
@pytest.mark.parametrize("order", [(), (0,), (2, 0, 1), (1, 0, 3, 2)])
async def test_process_gets_only_the_passed_descriptors_under_their_numbers(order: tuple[int, ...]) -> None:
    handles = [high_descriptor(f"{index}\n") for index in range(len(order))]
    passed = [handles[index] for index in order]
    inheritable = high_descriptor("not passed")
    os.set_inheritable(inheritable, True)
    try:
        listing = await output_of("/bin/ls", "/proc/self/fd", pass_fds=passed)
        contents = await output_of(
            "/bin/cat", *(f"/proc/self/fd/{handle}" for handle in passed), pass_fds=passed
        )
    finally:
        for handle in (*handles, inheritable):
            os.close(handle)
    # `ls` opens the folder itself, with the lowest free number.
    assert {*map(int, listing.split())} == {0, 1, 2, 3, *passed}
    assert contents.split() == [str(index) for index in order]


@with_each_method
async def test_low_descriptors_are_passed_under_their_numbers() -> None:
    """The lowest numbers are needed for copies, so they must not be overwritten before they are used."""
    # So many that the numbers of the copies are also those of passed descriptors.
    handles = [memory_file(f"{index}\n".encode()) for index in range(120)]
    try:
        passed = handles[::-2]
        text = await output_of("/bin/cat", *(f"/proc/self/fd/{handle}" for handle in passed), pass_fds=passed)
    finally:
        for handle in handles:
            os.close(handle)
    assert text.split() == [str(index) for index in range(119, 0, -2)]


@with_each_method
async def test_streams_environment_and_folder_are_those_of_the_caller(tmp_path: Path) -> None:
    stdin = memory_file(b"input\n")
    try:
        script = 'cat; pwd; env | grep -v -e ^PWD= -e ^_= -e ^SHLVL= -e ^OLDPWD=; echo "$0"'
        text = await output_of(
            "/bin/sh", "-c", script, "naïve", env={"A": "ä = 1"}, cwd=str(tmp_path), stdin=stdin
        )
    finally:
        os.close(stdin)
    assert text.splitlines() == ["input", str(tmp_path), "A=ä = 1", "naïve"]


@with_each_method
async def test_process_leads_a_session_and_has_default_signals() -> None:
    stat, status = (await output_of("/bin/cat", "/proc/self/stat", "/proc/self/status")).split("\n", 1)
    pid, _, _, _, group, session = stat.split()[:6]
    assert pid == group == session
    fields = dict(line.split(":\t") for line in status.splitlines() if line.startswith("Sig"))
    assert int(fields["SigIgn"], 16) & 1 << signal.SIGPIPE - 1 == 0


async def test_blocked_signals_of_the_host_are_not_blocked_in_the_process() -> None:
    # A thread has the blocked signals of the thread that created it.
    spawn_module._thread.cache_clear()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    try:
        status = await output_of("/bin/cat", "/proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
    assert "SigBlk:\t0000000000000000\n" in status


@with_each_method
async def test_missing_program_is_an_error_that_names_it(null: int) -> None:
    with pytest.raises(FileNotFoundError, match="/bin/no-such-program") as caught:
        await start("/bin/no-such-program", null=null)
    assert caught.value.errno == errno.ENOENT


@with_each_method
@pytest.mark.parametrize("argv", [("/bin/echo", "a\0b"), ("/bin/e\0cho",)])
async def test_nul_character_in_an_argument_is_an_error(argv: tuple[str, ...], null: int) -> None:
    with pytest.raises(ValueError, match=r"NUL|null byte"):
        await start(*argv, null=null)


@with_each_method
async def test_exit_code_of_a_killed_process_is_the_negative_signal(null: int) -> None:
    process = await start(*SLEEP, null=null)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert process.returncode == process.poll() == -signal.SIGKILL


@with_each_method
async def test_process_with_a_parent_death_signal_stays_alive(null: int) -> None:
    """The kernel sends this signal when the thread that started the process ends."""
    process = await start("/usr/bin/setpriv", "--pdeathsig", "KILL", *SLEEP, null=null)
    try:
        await eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
        assert (await start("/bin/true", null=null)).wait() == 0
        assert process.poll() is None
    finally:
        kill_tree(process)


async def test_cancelled_start_leaves_no_process(null: int) -> None:
    before = {*children(os.getpid())}
    starting = asyncio.create_task(start(*SLEEP, null=null))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait((starting,))
    assert starting.cancelled()
    # Processes start one after the other, so the cancelled start has ended, too.
    assert (await start("/bin/true", null=null)).wait() == 0
    await eventually(lambda: {*children(os.getpid())} <= before)


async def test_start_that_is_cancelled_twice_leaves_no_process(null: int) -> None:
    before = {*children(os.getpid())}
    starting = asyncio.create_task(start(*SLEEP, null=null))
    for _ in range(2):
        await asyncio.sleep(0)
        starting.cancel()
    await asyncio.wait((starting,))
    assert starting.cancelled()
    # Processes start one after the other, so the cancelled start has ended, too.
    assert (await start("/bin/true", null=null)).wait() == 0
    await eventually(lambda: {*children(os.getpid())} <= before)


@with_each_method
async def test_killed_tree_has_no_survivors(null: int) -> None:
    process = await start("/bin/sh", "-c", "sleep 1000 & setsid sleep 1000 & wait", null=null)
    await eventually(lambda: len(children(process.pid)) == 2)
    below = children(process.pid)
    kill_tree(process)
    assert process.returncode == -signal.SIGKILL
    await eventually(lambda: not any(_runs(pid) for pid in below))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_process_that_was_reaped_elsewhere_has_ended(null: int) -> None:
    """The host may ignore SIGCHLD, or wait for all children, as programs with pid 1 do."""
    process = await start("/bin/true", null=null)
    os.waitpid(process.pid, 0)  # noqa: ASYNC222
    assert (process.poll(), process.wait()) == (0, 0)
    kill_tree(process)


async def test_start_without_a_thread_is_not_made_later(
    null: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn_module._thread.cache_clear()
    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with pytest.raises(OSError, match="can't start new thread"):
            await start("/bin/touch", str(tmp_path / "late"), null=null)
    assert (await start("/bin/true", null=null)).wait() == 0
    assert not (tmp_path / "late").exists()


def test_processes_start_after_the_main_thread_has_ended() -> None:
    program = """
import asyncio, os, threading
from hutch.sandbox.jail.spawn import spawn

async def start():
    threading.main_thread().join()
    null = os.open(os.devnull, os.O_RDWR)
    for _ in range(2):
        process = await spawn(("/bin/true",), env={}, cwd="/", stdout=null, stderr=null)
        print(process.wait())

threading.Thread(target=asyncio.run, args=(start(),)).start()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["0", "0"], "")


def test_streams_may_have_the_numbers_of_closed_streams() -> None:
    program = """
import asyncio, itertools, os, sys
from hutch.sandbox.jail import spawn as module
module._starts = itertools.count(1)

async def start():
    os.close(0)
    os.dup2(1, 0)
    os.close(1)
    process = await module.spawn(("/bin/echo", "output"), env={}, cwd="/", stdout=0, stderr=2)
    sys.exit(process.wait())

asyncio.run(start())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "output\n")


def test_first_process_needs_no_thread() -> None:
    """Other threads would delay the end of short commands such as `hutch eval`."""
    program = """
import asyncio, os, threading
from hutch.sandbox.jail.spawn import spawn

async def start():
    null = os.open(os.devnull, os.O_RDWR)
    process = await spawn(("/bin/true",), env={}, cwd="/", stdout=null, stderr=null)
    return process.wait(), threading.active_count()

print(*asyncio.run(start()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]
