"""Only the called tool gets the secrets in a call's env. They appear nowhere else, neither during the call
nor later.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.harness import (
    SyncServer,
    ToolServer,
    eventually,
    runners,
    server_with_registry,
    tool,
)
from tests.support.processes import wait_until

from hutch.npm.package_spec import PackageSpec
from hutch.protocols.tpmjs.models import PackageToolCall
from hutch.sandbox.runner.profile import Profile

# The secret is written in two parts, so that a search for the secret does not find this file.
MARK = "hutch-secret-" + "mark"
ENV = {"SOME_API_KEY": MARK, "PLAIN": "x"}

SOURCES = {
    "succeeds": tool("return process.env.SOME_API_KEY.length"),
    "prints": tool("console.log(process.env.SOME_API_KEY); process.stderr.write(process.env.SOME_API_KEY)"),
    "throws": tool("throw new Error(process.env.SOME_API_KEY)"),
    "fails to import": tool("", "throw new Error(process.env.SOME_API_KEY);"),
    "is not a tool": "export const tool = { [process.env.SOME_API_KEY]: 1 }",
    "never ends": tool("console.log(process.env.SOME_API_KEY); for (;;);"),
    "ends its process": tool("console.log(process.env.SOME_API_KEY); Deno.kill(Deno.pid, 'SIGKILL')"),
    "takes all memory": tool("const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1))"),
    "sends it to the network": tool("await fetch(`http://${process.env.SOME_API_KEY}.invalid/`)"),
    "is refused by the network": tool("await fetch(`http://127.0.0.1:1/${process.env.SOME_API_KEY}`)"),
    "writes it to all descriptors": tool(
        "for (let fd = 1; fd < 9; fd++) try { fs.writeSync(fd, process.env.SOME_API_KEY) } catch {}",
        "import fs from 'node:fs';",
    ),
    "is a factory": "export const tool = ({ apiKey }) => apiKey && { execute: () => apiKey.length }",
}


@pytest.fixture(scope="module")
async def server(sync: SyncServer) -> AsyncIterator[ToolServer]:
    """A server that logs everything, keeps spares and has its own folders."""
    with tempfile.TemporaryDirectory(prefix="h-") as folder, tempfile.TemporaryDirectory() as home:
        settings = {"tool_timeout_ms": 1_500, "tool_memory_bytes": 128 * 2**20, "egress_allow": sync.address}
        variables = {"TMPDIR": folder, "XDG_RUNTIME_DIR": folder}
        log = {"log_level": "debug", "log_json": True}
        async with server_with_registry(Path(home), variables, **settings, **log) as running:
            running.folders = (Path(folder), Path(home))
            yield running


def on_disk(folders: tuple[Path, ...]) -> list[str]:
    """Returns the files in these folders whose content or name contains the secret."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if MARK in path.name or (path.is_file() and MARK.encode() in path.read_bytes()):
                found.append(str(path))
    return found


def in_processes() -> Iterator[str]:
    """Yields the files of processes in /proc that contain the secret."""
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ", "comm", "mountinfo", "cgroup", "stat", "wchan"):
            try:
                text = (process / name).read_bytes()
            except OSError:
                continue
            if MARK.encode() in text:
                yield f"{process / name}"


async def test_secret_is_in_no_log_record_or_file(server: ToolServer) -> None:
    # Call each tool twice, so that a spare may serve the second call.
    for _ in range(2):
        answers = await server.run_all(
            {name: {"source": source, "env": ENV} for name, source in SOURCES.items()}
        )
        assert len({answer["runId"] for answer in answers.values()}) == len(SOURCES)
    # Wait until the log has the records of all runs.
    await eventually(lambda: str(server.server.seen).count('"event": "run"') == 2 * len(SOURCES))
    assert [line for line in server.server.seen if MARK in line] == []
    assert on_disk(server.folders) == []
    assert MARK not in (await server.client.get("/metrics")).text
    assert MARK not in (await server.client.get("/info")).text


async def test_secret_is_in_no_process_list_while_the_tool_runs_or_waits(
    server: ToolServer, sync: SyncServer
) -> None:
    package = server.publish(
        tool(
            "await fetch(params.sync + '/ready/secret-runs'); await fetch(params.sync + '/wait/secret-seen')"
        )
    )
    calling = asyncio.create_task(server.execute(package, params={"sync": sync.url}, env=ENV))
    await sync.wait_ready("secret-runs")
    assert len(runners(server.pid)) > 0
    assert [*in_processes()] == []
    assert on_disk(server.folders) == []
    sync.release("secret-seen")
    assert (await calling)["success"] is True
    # Now there is a spare that has the secret in its env.
    await asyncio.to_thread(wait_until, lambda: runners(server.pid))
    assert [*in_processes()] == []


async def test_caller_gets_the_output_of_its_tool_unredacted(server: ToolServer) -> None:
    """The secret belongs to the caller, so the caller may see it."""
    answer = await server.run(SOURCES["throws"], env=ENV)
    assert answer["error"]["message"] == MARK
    answer = await server.run(SOURCES["prints"], env=ENV)
    assert answer["logs"] == [MARK, MARK]


async def test_error_of_a_rejected_request_does_not_contain_the_secret(server: ToolServer) -> None:
    request = {"packageName": "x", "name": "tool", "env": {"KEY": MARK, "OTHER": 7, "BAD": f"{MARK}\0"}}
    answer = await server.post("/execute-tool", request)
    assert answer.status_code == 400
    assert "env.OTHER: expected a string, got a number" in answer.text
    assert MARK not in answer.text
    answer = await server.client.post("/execute-tool", content=json.dumps(request)[:-3].encode())
    assert answer.status_code == 400
    assert MARK not in answer.text
    assert [line for line in server.server.seen if MARK in line] == []


async def test_server_keeps_no_file_open_that_contains_the_secret(server: ToolServer) -> None:
    """A runner gets its payload as stdin from an anonymous file, which the server closes after the start."""
    await server.run(SOURCES["succeeds"], env=ENV)
    # A spare may be starting. Until it has started, its file is open.
    await asyncio.to_thread(wait_until, lambda: open_secret_files(server.pid) == [])


def open_secret_files(pid: int) -> list[str]:
    """Returns open memfds of a process that contain the secret."""
    found = []
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            where = str(handle.readlink())
            if where.startswith("/memfd:") and MARK.encode() in handle.read_bytes():
                found.append(where)
    return found


def test_repr_does_not_contain_the_secret() -> None:
    call = PackageToolCall(spec=PackageSpec("x", "1.0.0"), name="tool", env=ENV, caller="key")
    assert "SOME_API_KEY" in repr(call)
    profile = Profile("npm", stdin_payload=json.dumps({"env": ENV}).encode(), env=(("A", MARK),), owner="key")
    for shown in (call, profile, [call], {"call": call}, (profile,)):
        assert MARK not in f"{shown!r} {shown}"
