"""`run_sync`: threads, tools, forks and invalid settings."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest
from tests.api.programs import python
from tests.support.processes import TIMEOUT_SECONDS, temporary_files

import hutch
from hutch.errors import InvalidExecution


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def test_run_sync_works_in_any_thread_and_stays_warm() -> None:
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(hutch.run_sync("6 * 7", tools=[add]).result))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert results == [42] * 4
    assert hutch.run_sync("await tools.add({a: 1, b: 2})", tools=[add]).result == 3


def test_run_sync_reports_invalid_options() -> None:
    with pytest.raises(InvalidExecution, match="unknown engine 'v8'"):
        hutch.run_sync("1", engine="v8")
    with pytest.raises(TypeError, match="unknown_option"):
        hutch.run_sync("1", unknown_option=1)


def test_run_sync_in_an_async_tool_is_refused() -> None:
    async def again() -> Any:
        return hutch.run_sync("1").result

    r = hutch.run_sync("await tools.again()", tools=[again])
    assert r.error is not None
    assert "run_sync() would wait for itself" in r.error.message


def test_run_sync_in_a_sync_tool_works() -> None:
    def again() -> int:
        return int(hutch.run_sync("20 + 1").result)

    assert hutch.run_sync("2 * await tools.again()", tools=[again]).result == 42


def test_run_sync_leaves_nothing_behind_and_prints_nothing() -> None:
    done = python("import hutch, os; print(os.getpid(), hutch.run_sync('1 + 1').result)")
    assert (done.returncode, done.stderr) == (0, "")
    pid, result = done.stdout.split()
    assert result == "2"
    assert temporary_files(int(pid)) == []


def test_run_sync_works_after_a_fork() -> None:
    code = """
import hutch, os
assert hutch.run_sync("1").result == 1
child = os.fork()
if child == 0:
    ok = hutch.run_sync("2").result == 2
    raise SystemExit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
assert hutch.run_sync("3").result == 3
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_each_call_of_run_sync_reports_invalid_settings() -> None:
    code = """
import hutch, threading
for _ in range(2):
    try:
        hutch.run_sync("1")
    except hutch.HutchError as error:
        print(error)
print(threading.active_count())
"""
    done = python(code, HUTCH_PORT="x")
    assert done.stdout == "HUTCH_PORT: expected an integer from 0 to 65535, got 'x'.\n" * 2 + "1\n"
