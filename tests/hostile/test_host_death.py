"""A host that is killed takes its guests with it, and the next one sweeps up what it left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.hostile.processes import exists, gone, groups
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
def apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where no host of another test sweeps. Short: there are sockets in it."""
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


def left_folders(pid: int) -> list[Path]:
    folder = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return [*Path(folder).glob(f"hutch-run-*-{pid}-*")]


async def test_no_guest_outlives_a_host_that_was_killed(host: subprocess.Popen[str]) -> None:
    below = descendants(host.pid)[1:]
    assert len(below) >= 8
    os.kill(host.pid, signal.SIGKILL)
    host.wait(30)
    for pid in below:
        await gone(pid)
    assert not any(map(exists, below))


async def test_the_next_host_sweeps_up(host: subprocess.Popen[str]) -> None:
    below = descendants(host.pid)[1:]
    assert left_folders(host.pid)
    os.kill(host.pid, signal.SIGKILL)
    host.wait(30)
    for pid in below:
        await gone(pid)
    assert left_folders(host.pid)
    async with hutch.Hutch() as sandbox:
        assert (await sandbox.run("1")).ok
        assert left_folders(host.pid) == []
        assert groups(host.pid) == set()


async def test_a_host_that_ends_by_itself_leaves_nothing() -> None:
    before = {*left_folders(os.getpid())}, groups(os.getpid())
    async with hutch.Hutch() as sandbox:
        for engine in ("quickjs", "deno"):
            assert (await sandbox.run("1", engine=engine)).ok
        assert {*left_folders(os.getpid())} > before[0]
    assert ({*left_folders(os.getpid())}, groups(os.getpid()) - before[1]) == (before[0], set())


async def test_a_folder_of_a_host_that_lives_is_not_swept(host: subprocess.Popen[str]) -> None:
    mine = left_folders(host.pid)
    async with hutch.Hutch() as sandbox:
        assert (await sandbox.run("1")).ok
    assert left_folders(host.pid) == mine != []
