"""When a host is killed, its guests end, and the next host removes what the killed host left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.processes import exists, groups, wait_for_exit
from tests.sandbox.jails import descendants

import hutch

HOST = """
import asyncio
import hutch

async def main():
    ready = asyncio.Barrier(5)

    async def there():
        await ready.wait()

    loop = "await tools.there();\\nfor (;;);"
    stubborn = "addEventListener('unload', () => { for (;;); });\\n" + loop
    async with hutch.Hutch() as sandbox:
        runs = [
            sandbox.run(loop, tools=[there], owner="a", timeout_ms=120_000),
            sandbox.run(loop, tools=[there], owner="b", timeout_ms=120_000),
            sandbox.run(loop, tools=[there], engine="deno", timeout_ms=120_000),
            sandbox.run(stubborn, tools=[there], engine="deno", timeout_ms=120_000),
        ]
        tasks = [asyncio.ensure_future(each) for each in runs]
        await ready.wait()
        print("ready", flush=True)
        await asyncio.gather(*tasks)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def own_runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A runtime folder for this test only, because hosts of other tests would also clean up after the killed
    host. The folder contains sockets, so its path must be short.
    """
    with tempfile.TemporaryDirectory(prefix="hd") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield


@pytest.fixture
def host() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def temp_dirs(pid: int) -> list[Path]:
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return [*Path(folder).glob(f"hutch-run-*-{pid}-*")]


async def test_no_guest_outlives_a_killed_host(host: subprocess.Popen[str]) -> None:
    pids = descendants(host.pid)[1:]
    assert len(pids) >= 8
    os.kill(host.pid, signal.SIGKILL)
    host.wait(30)
    for pid in pids:
        await wait_for_exit(pid)
    assert not any(map(exists, pids))


async def test_next_host_cleans_up(host: subprocess.Popen[str]) -> None:
    pids = descendants(host.pid)[1:]
    assert temp_dirs(host.pid)
    os.kill(host.pid, signal.SIGKILL)
    host.wait(30)
    for pid in pids:
        await wait_for_exit(pid)
    assert temp_dirs(host.pid)
    async with hutch.Hutch() as sandbox:
        assert (await sandbox.run("1")).ok
        assert temp_dirs(host.pid) == []
        # Run code until all groups are removed. The group of a process that is still ending is removed when
        # the host creates its next group.
        async with asyncio.timeout(30):
            while groups(host.pid):
                assert (await sandbox.run("1", engine="deno")).ok


async def test_host_that_closes_leaves_nothing_behind() -> None:
    before = {*temp_dirs(os.getpid())}, groups(os.getpid())
    async with hutch.Hutch() as sandbox:
        for engine in ("quickjs", "deno"):
            assert (await sandbox.run("1", engine=engine)).ok
        assert {*temp_dirs(os.getpid())} > before[0]
    assert ({*temp_dirs(os.getpid())}, groups(os.getpid()) - before[1]) == (before[0], set())


async def test_folder_of_a_running_host_is_kept(host: subprocess.Popen[str]) -> None:
    before = temp_dirs(host.pid)
    async with hutch.Hutch() as sandbox:
        assert (await sandbox.run("1")).ok
    assert temp_dirs(host.pid) == before != []
