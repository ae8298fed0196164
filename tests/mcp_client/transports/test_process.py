"""Processes of stdio servers: their environment and their cleanup."""

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
from tests.mcp_client.conftest import StartServers, stdio_server
from tests.support.processes import descendants, wait_until
from tests.support.waiting import eventually as settled

from hutch.mcp_client.config import ServerConfig, StdioConfig
from hutch.mcp_client.transports.process import server_environment


def handles(pids: list[int]) -> dict[int, int]:
    return {pid: os.pidfd_open(pid) for pid in pids}


def remaining(found: dict[int, int], seconds: float = 10.0) -> list[int]:
    left = [pid for pid, fd in found.items() if not select.select([fd], [], [], seconds)[0]]
    for fd in found.values():
        os.close(fd)
    return left


async def test_server_gets_a_minimal_environment_and_its_own_variables(
    start: StartServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HUTCH_MASTER_KEY", "HUTCH_API_KEY", "GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "PYTHONPATH"):
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("LC_TIME", "C")
    servers = await start(stdio_server("ReportsProcess", env={"OWN": "value", "PATH": os.environ["PATH"]}))
    found = (await servers.call("ReportsProcess", "act", {}))["env"]
    assert "s3cret" not in str(found)
    assert found["OWN"] == "value"
    assert found["LC_TIME"] == "C"
    assert found["LANG"]
    assert not [name for name in found if name.startswith("HUTCH_")]


def test_shell_functions_are_not_inherited() -> None:
    assert server_environment({"LC_X": "() { :; }", "HOME": "/h"}, {}) == {
        "LANG": "C.UTF-8",
        "HOME": "/h",
        "INSIDE_HUTCH": "1",
    }


async def test_deno_of_hutch_is_used_if_there_is_none_on_the_path(start: StartServers) -> None:
    code = "console.error('this is Deno ' + Deno.version.deno); Deno.exit(3)"
    program = StdioConfig(command="deno", args=("eval", code), env={"PATH": "/nowhere"})
    servers = await start(ServerConfig(name="own", transport=program))
    assert "this is Deno" in (servers.servers()[0].error or "")


async def test_server_runs_in_its_configured_directory(start: StartServers, tmp_path: Path) -> None:
    servers = await start(stdio_server("ReportsProcess", cwd=str(tmp_path)))
    assert (await servers.call("ReportsProcess", "act", {}))["cwd"] == str(tmp_path)


async def test_server_that_cannot_be_watched_is_killed(
    start: StartServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def no_more_descriptors(pid: int) -> int:
        wait_until(lambda: descendants(pid))
        started.extend([pid, *descendants(pid)])
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("os.pidfd_open", no_more_descriptors)
        servers = await start(stdio_server("ReportsProcess"))
        [server] = servers.servers()
    assert server.state == "failed"
    assert "it cannot be watched: [Errno 24] Too many open files" in str(server.error)
    assert started[0] not in descendants(os.getpid())
    await asyncio.to_thread(wait_until, lambda: not [pid for pid in started if Path(f"/proc/{pid}").exists()])


async def all_processes(servers: Any) -> list[int]:
    """Returns the ids of the server, its reaper and its descendants. Some of the descendants have their own
    process group and session.
    """
    server = (await servers.call("everything", "process", {}))["pid"]
    await servers.call("everything", "spawn", {})
    found: list[int] = []

    def all_there() -> bool:
        found[:] = descendants(server)
        return len(found) == 3

    await asyncio.to_thread(wait_until, all_there)
    return [parent(server), server, *found]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_close_ends_the_server_and_its_descendants(start: StartServers) -> None:
    servers = await start(stdio_server("everything", forked=False))
    found = handles(await all_processes(servers))
    await servers.close()
    assert remaining(found, 0) == []


async def test_crash_ends_the_descendants(start: StartServers) -> None:
    servers = await start(stdio_server("Stubborn"))
    server, child = await servers.call("Stubborn", "act", {})
    found = handles([server, child])
    os.kill(server, signal.SIGKILL)
    assert await asyncio.to_thread(remaining, found) == []


async def test_server_that_ignores_sigterm_is_killed_with_its_children(start: StartServers) -> None:
    servers = await start(stdio_server("Stubborn"))
    pids = await servers.call("Stubborn", "act", {})
    found = handles(pids)
    async with asyncio.timeout(10):
        await servers.close()
    assert remaining(found, 0) == []


async def test_close_waits_for_a_server_that_was_disconnected_before(start: StartServers) -> None:
    servers = await start(stdio_server("ClosesOutput"))
    first = await servers.call("ClosesOutput", "act", {})
    found = handles(first)
    await settled(lambda: servers.servers()[0].state == "failed")
    second = await servers.call("ClosesOutput", "act", {})
    assert second != first
    await servers.close()
    assert remaining({**found, **handles_of_living(second)}, 0) == []


def handles_of_living(pids: list[int]) -> dict[int, int]:
    return handles([pid for pid in pids if Path(f"/proc/{pid}").exists()])


async def test_close_while_connecting_leaves_no_process(start: StartServers) -> None:
    servers = await start(stdio_server("NeverResponds"), eager=False)
    before = set(descendants(os.getpid()))
    connecting = asyncio.ensure_future(servers.start())
    found: set[int] = set()

    def started() -> bool:
        found.update(set(descendants(os.getpid())) - before)
        return len(found) >= 2

    await asyncio.to_thread(wait_until, started)
    started_pids = handles([pid for pid in found if pid in descendants(os.getpid())])
    await servers.close()
    connecting.cancel()
    await asyncio.gather(connecting, return_exceptions=True)
    assert remaining(started_pids, 0) == []


HOST = """
import asyncio, sys
from tests.mcp_client.conftest import config, stdio_server
from tests.mcp_client.transports.test_process import all_processes
from hutch.settings import Settings
from hutch.mcp_client.servers import McpServers

async def main():
    configuration = config(stdio_server("everything", forked=False), stdio_server("Stubborn"))
    servers = McpServers(configuration, Settings())
    await servers.start()
    pids = await all_processes(servers) + await servers.call("Stubborn", "act", {})
    print(*pids, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_no_process_survives_a_killed_host() -> None:
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
