"""External runners: each has one session at a time, is reused while it is healthy, and is ended together with
its children.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.support.processes import descendants
from tests.support.waiting import eventually

import hutch
from hutch.errors import InvalidExecution

RUNNER = """
import json, os, subprocess, sys, time

def send(**message):
    print(json.dumps(message), flush=True)

def tidy():
    pass

for line in sys.stdin:
    message = json.loads(line)
    if message["type"] != "execute":
        continue
    id, code = message["id"], message["code"]
    send(type="started", id=id)
    result = os.getpid()
    exec(code)
    send(type="done", id=id, ok=True, durationMs=1, logs=[], result=result)
tidy()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    script = tmp_path / "runner.py"
    script.write_text(textwrap.dedent(RUNNER))
    return [sys.executable, "-I", str(script)]


@pytest.fixture(autouse=True)
def short_exit_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.runner.external.EXIT_SECONDS", 0.3)


async def test_requested_engine_is_passed_to_the_runner() -> None:
    async with hutch.Hutch(runner=[sys.executable, "-m", "hutch", "runner"]) as h:
        assert (await h.run("typeof Deno")).result == "undefined"
        assert (await h.run("typeof Deno", engine="deno")).result == "object"
        with pytest.raises(InvalidExecution, match="unknown engine 'v9'; expected one of quickjs, deno"):
            await h.run("1", engine="v9")


async def test_runner_that_cannot_be_watched_is_killed_immediately(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []

    def no_more_descriptors(pid: int) -> int:
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    async with hutch.Hutch(runner=command) as sandbox:
        with monkeypatch.context() as patch:
            patch.setattr("os.pidfd_open", no_more_descriptors)
            with pytest.raises(hutch.SandboxUnavailable, match=r"cannot be watched: .*Too many open files"):
                await sandbox.run("")
        assert started
        assert not {*started} & {*descendants(os.getpid())}


async def test_consecutive_executions_share_a_process(command: list[str]) -> None:
    async with hutch.Hutch(runner=command) as sandbox:
        pids = {(await sandbox.run("pass")).result for _ in range(5)}
        assert len(pids) == 1
        assert pids <= {*descendants(os.getpid())}
    assert not pids & {*descendants(os.getpid())}


async def test_concurrent_executions_get_separate_processes_up_to_the_limit(command: list[str]) -> None:
    async with hutch.Hutch(runner=command, max_processes=3) as sandbox:
        results = await asyncio.gather(*(sandbox.run("time.sleep(0.1)") for _ in range(7)))
        pids = [each.result for each in results]
        assert len(pids) == 7
        assert 1 < len(set(pids)) <= 3


async def test_runner_gets_every_field_of_the_protocol(command: list[str]) -> None:
    async def lookup(city: str) -> str:
        """Where it is."""
        return city

    code = "result = [message['options'], message['providers']]"
    async with hutch.Hutch(runner=command) as sandbox:
        result = await sandbox.run(code, tools=[lookup], timeout_ms=1234, max_log_lines=5)
    options, [provider] = result.result
    assert (options["timeoutMs"], options["maxLogLines"]) == (1234, 5)
    assert provider["tools"]["lookup"] == {
        "safeName": "lookup",
        "originalName": "lookup",
        "description": "Where it is.",
    }
    assert "function lookup(input: {" in provider["types"]


@pytest.mark.parametrize(
    "code",
    [
        "time.sleep(60)",
        "sys.exit(3)",
        (
            "send(type='done', id=id, ok=False, durationMs=1, logs=[],"
            " error={'code': 'internal_error', 'message': 'x'}); time.sleep(60)"
        ),
    ],
    ids=["a timeout", "an exit", "an internal error"],
)
async def test_timeout_or_failure_starts_a_new_process(command: list[str], code: str) -> None:
    async with hutch.Hutch(runner=command) as sandbox:
        first = (await sandbox.run("pass")).result
        assert not (await sandbox.run(code, timeout_ms=200)).ok
        second = (await sandbox.run("pass")).result
        assert second not in (None, first)
        await eventually(lambda: first not in descendants(os.getpid()))


async def test_runner_may_clean_up_when_its_stdin_ends(command: list[str], tmp_path: Path) -> None:
    mark = tmp_path / "tidy"
    async with hutch.Hutch(runner=command) as sandbox:
        await sandbox.run(f"globals()['tidy'] = lambda: open({str(mark)!r}, 'w').close()")
    assert mark.exists()


async def test_runner_that_does_not_exit_is_killed_with_its_children(command: list[str]) -> None:
    stubborn = (
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " stdin=subprocess.DEVNULL)\n"
        "globals()['tidy'] = lambda: time.sleep(600)\nresult = [os.getpid(), child.pid]"
    )
    async with hutch.Hutch(runner=command) as sandbox:
        pids = (await sandbox.run(f"exec({stubborn!r}, globals()); result = globals()['result']")).result
        assert len(pids) == 2
        assert all(map(_runs, pids))
    await eventually(lambda: not any(_runs(pid) for pid in pids))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_stderr_is_not_parsed_as_messages(command: list[str]) -> None:
    async with hutch.Hutch(runner=command) as sandbox:
        result = await sandbox.run('sys.stderr.write(\'{"type":"done"}\\n\')')
        assert result.ok


async def test_command_that_cannot_run_is_named(tmp_path: Path) -> None:
    script = tmp_path / "not-executable"
    script.write_text("")
    for command in ([str(script)], [str(tmp_path / "missing")], [str(tmp_path)]):
        async with hutch.Hutch(runner=command) as sandbox:
            with pytest.raises(hutch.HutchError) as caught:
                await sandbox.run("1")
            assert command[0] in str(caught.value)


@pytest.mark.parametrize("runner", ["hutch runner", [], ""])
def test_command_must_be_a_list(runner: Any) -> None:
    with pytest.raises(hutch.HutchError, match="runner: expected a list"):
        hutch.Hutch(runner=runner)


async def test_hutch_runner_works_as_external_runner() -> None:
    async def double(n: int) -> int:
        return 2 * n

    async with hutch.Hutch(runner=[sys.executable, "-m", "hutch", "runner"]) as sandbox:
        result = await sandbox.run("await tools.double({ n: 21 })", tools=[double])
        assert (result.error, result.result) == (None, 42)
        failed = await sandbox.run("const a = 1;\nthrow new TypeError('no')")
        assert failed.error is not None
        assert (failed.error.code, failed.error.line) == ("runtime_error", 2)
