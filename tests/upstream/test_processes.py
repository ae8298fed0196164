"""The programs that servers are: what they get of us, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.processes import descendants, until
from tests.upstream.conftest import Started, program
from tests.waiting import eventually as settled

from hutch.upstream.process import minimal


def handles(pids: list[int]) -> dict[int, int]:
    return {pid: os.pidfd_open(pid) for pid in pids}


def remaining(found: dict[int, int], seconds: float = 10.0) -> list[int]:
    left = [pid for pid, fd in found.items() if not select.select([fd], [], [], seconds)[0]]
    for fd in found.values():
        os.close(fd)
    return left


async def test_server_gets_little_of_our_environment_and_all_of_its_own(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HUTCH_MASTER_KEY", "HUTCH_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("LC_TIME", "C")
    upstreams = await start(program("Tells", env={"OWN": "value", "PATH": os.environ["PATH"]}))
    found = (await upstreams.call("Tells", "act", {}))["env"]
    assert "s3cret" not in str(found)
    assert found["OWN"] == "value"
    assert found["LC_TIME"] == "C"
    assert found["LANG"]
    assert not [name for name in found if name.startswith("HUTCH_")]


def test_functions_of_a_shell_are_no_part_of_the_environment() -> None:
    assert minimal({"LC_X": "() { :; }", "HOME": "/h"}, {}) == {"LANG": "C.UTF-8", "HOME": "/h"}


async def test_server_runs_where_its_configuration_says(start: Started, tmp_path: Path) -> None:
    upstreams = await start(program("Tells", cwd=str(tmp_path)))
    assert (await upstreams.call("Tells", "act", {}))["cwd"] == str(tmp_path)


async def test_server_that_cannot_be_watched_is_ended_at_once(
    start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def no_more_descriptors(pid: int) -> int:
        until(lambda: descendants(pid))
        started.extend([pid, *descendants(pid)])
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("os.pidfd_open", no_more_descriptors)
        upstreams = await start(program("Tells"))
        [server] = upstreams.servers()
    assert server.state == "failed"
    assert "it cannot be watched: [Errno 24] Too many open files" in str(server.error)
    assert started[0] not in descendants(os.getpid())
    await asyncio.to_thread(until, lambda: not [pid for pid in started if Path(f"/proc/{pid}").exists()])


async def spawned(upstreams: Any) -> list[int]:
    """The server, its warden, and all that it started, of which some have left its group and session."""
    server = (await upstreams.call("everything", "process", {}))["pid"]
    await upstreams.call("everything", "spawn", {})
    found: list[int] = []

    def all_there() -> bool:
        found[:] = descendants(server)
        return len(found) == 3

    await asyncio.to_thread(until, all_there)
    return [parent(server), server, *found]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_closing_ends_the_server_and_all_that_it_started(start: Started) -> None:
    upstreams = await start(program("everything", lent=False))
    found = handles(await spawned(upstreams))
    await upstreams.close()
    assert remaining(found, 0) == []


async def test_crash_ends_all_that_the_server_started(start: Started) -> None:
    upstreams = await start(program("Stubborn"))
    server, child = await upstreams.call("Stubborn", "act", {})
    found = handles([server, child])
    os.kill(server, signal.SIGKILL)
    assert await asyncio.to_thread(remaining, found) == []


async def test_server_that_does_not_want_to_go_is_ended_with_its_children(start: Started) -> None:
    upstreams = await start(program("Stubborn"))
    pids = await upstreams.call("Stubborn", "act", {})
    found = handles(pids)
    async with asyncio.timeout(10):
        await upstreams.close()
    assert remaining(found, 0) == []


async def test_closing_waits_for_a_server_that_was_left_before(start: Started) -> None:
    upstreams = await start(program("Leaves"))
    first = await upstreams.call("Leaves", "act", {})
    found = handles(first)
    await settled(lambda: upstreams.servers()[0].state == "failed")
    second = await upstreams.call("Leaves", "act", {})
    assert second != first
    await upstreams.close()
    assert remaining({**found, **handles_of_living(second)}, 0) == []


def handles_of_living(pids: list[int]) -> dict[int, int]:
    return handles([pid for pid in pids if Path(f"/proc/{pid}").exists()])


async def test_closing_while_servers_connect_leaves_none(start: Started) -> None:
    upstreams = await start(program("Mute"), eager=False)
    before = set(descendants(os.getpid()))
    connecting = asyncio.ensure_future(upstreams.start())
    found: set[int] = set()

    def started() -> bool:
        found.update(set(descendants(os.getpid())) - before)
        return len(found) >= 2

    await asyncio.to_thread(until, started)
    kept = handles([pid for pid in found if pid in descendants(os.getpid())])
    await upstreams.close()
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    assert remaining(kept, 0) == []


HOST = """
import asyncio, sys
from tests.upstream.conftest import config, program
from tests.upstream.test_processes import spawned
from hutch.settings import Settings
from hutch.upstream.servers import Upstreams

async def main():
    upstreams = Upstreams(config(program("everything", lent=False), program("Stubborn")), Settings())
    await upstreams.start()
    pids = await spawned(upstreams) + await upstreams.call("Stubborn", "act", {})
    print(*pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_nothing_of_a_server_outlives_a_host_that_was_killed() -> None:
    host = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True)
    try:
        assert host.stdout is not None
        found = handles([int(pid) for pid in host.stdout.readline().split()])
        assert len(found) == 7
    finally:
        host.send_signal(signal.SIGKILL)
        host.wait()
        host.stdout.close()
    assert remaining(found) == []
