"""Precompilation of guest code for single-use processes. The code is compiled either by a warm runner or by
the single-use process itself.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

import hutch
from hutch.errors import ExecutionError
from hutch.kernel.kernel import Kernel
from hutch.kernel.precompile import (
    MAX_CACHED_CHARS,
    MAX_CACHED_PROGRAMS,
    PRECOMPILE_PROFILE,
    START_AFTER_MISSES,
    Precompiler,
)
from hutch.sandbox.jail.memory_meter import process_tree
from hutch.sandbox.pool.lease import Lease
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.process import RunnerProcess
from hutch.sandbox.runner.profile import Profile
from hutch.session.host import Session
from hutch.session.messages import Done, RunnerMessage, Started
from hutch.session.run import Result

FORMS = [
    ("1 + 1", 2),
    ("const a: number = 4;\na * 2", 8),
    ("```ts\nasync () => ({ b: 5 as number })\n```", {"b": 5}),
    ("return '\ud800'.length", 1),
    ('import { join } from "node:path";\njoin("a", "b")', "a/b"),
    ("namespace N { export const a = 3 }\nreturn N.a", 3),
]
FAILURES = [
    ("let a = 1;\nlet b = ;", "SyntaxError", 2, 9),
    ("const a: number = 1;\nlet b: string = ;", "SyntaxError", 2, 17),
    ("const a: Array<number> = [1];  a.b.c", "TypeError", 1, 36),
    ("let a = 1;\n  a.b.c", "TypeError", 2, 7),
    ("namespace N { export const a = 1 }\n  N.a.b.c", "TypeError", 2, 9),
    ("namespace N { export const a = ; }", "SyntaxError", 1, 11),
]


@pytest.fixture(params=["warm runner", "own process"])
async def cached_count(
    sandbox: hutch.Hutch, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Makes executions compile their code in the process that the parameter names. Returns how many programs
    one execution adds to the cache.
    """
    kernel = kernel_of(sandbox)
    kernel.precompiler.cache.clear()
    await sandbox.run("1")
    if request.param == "warm runner":
        return 1
    monkeypatch.setattr(kernel.pool, "try_lease", lambda *_: None)
    monkeypatch.setattr(kernel.pool, "reserve_start", lambda *_: None)
    return 0


@pytest.fixture
async def own_sandbox() -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch() as h:
        yield h


def kernel_of(h: hutch.Hutch) -> Kernel:
    assert h._kernel is not None
    return h._kernel


@pytest.mark.parametrize(("code", "expected"), FORMS)
async def test_each_form_of_code_returns_its_value(
    cached_count: int, sandbox: hutch.Hutch, code: str, expected: object
) -> None:
    r = await sandbox.run(code, engine="deno")
    assert (r.error, r.result) == (None, expected)
    assert len(kernel_of(sandbox).precompiler.cache) == cached_count


@pytest.mark.parametrize(("code", "name", "line", "column"), FAILURES)
async def test_each_failure_has_its_line_and_column(
    cached_count: int, sandbox: hutch.Hutch, code: str, name: str, line: int, column: int
) -> None:
    r = await sandbox.run(code, engine="deno")
    assert r.error is not None
    assert (r.error.code, r.error.name) == ("runtime_error", name)
    assert (r.error.line, r.error.column) == (line, column)
    assert str(r.error).count(f"(line {line}, column {column})") == 1
    assert f"({line}:{column})" not in r.error.message


async def test_precompiling_runner_is_started_after_some_misses(own_sandbox: hutch.Hutch) -> None:
    pool = kernel_of(own_sandbox).pool
    for done in range(1, START_AFTER_MISSES + 1):
        assert (await own_sandbox.run(f"{done}", engine="deno")).result == done
        assert (pool.runners.starting[PRECOMPILE_PROFILE] > 0 or "quickjs" in pool.stats().processes) == (
            done == START_AFTER_MISSES
        )
    await pool.wait_warm(PRECOMPILE_PROFILE)
    assert (await own_sandbox.run("'prepared'", engine="deno")).result == "prepared"
    assert len(kernel_of(own_sandbox).precompiler.cache) == 1


async def test_precompiling_runner_is_started_even_if_executions_are_always_waiting(
    own_sandbox: hutch.Hutch,
) -> None:
    numbers = iter(range(40))

    async def work() -> None:
        for number in numbers:
            assert (await own_sandbox.run(f"{number}", engine="deno")).result == number

    await asyncio.gather(*(work() for _ in range(8)))
    assert len(kernel_of(own_sandbox).precompiler.cache) > 0


@pytest.mark.parametrize("code", ["let a = ;", "const a: = 1", "class A {}\nnew A() @ 1"])
async def test_code_with_a_syntax_error_uses_no_process(
    own_sandbox: hutch.Hutch, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    assert (await own_sandbox.run("1")).ok
    assert (await own_sandbox.run("1", engine="deno")).ok
    pool = kernel_of(own_sandbox).pool
    used: list[Runner] = []
    take = pool._take_single

    def recording_take(profile: Profile, owner: str) -> Runner | None:
        runner = take(profile, owner)
        used.extend([] if runner is None else [runner])
        return runner

    monkeypatch.setattr(pool, "_take_single", recording_take)
    r = await own_sandbox.run(code, engine="deno")
    assert r.error is not None
    assert r.error.name == "SyntaxError"
    assert not used
    assert (await own_sandbox.run("2", engine="deno")).ok
    assert len(used) == 1


async def test_process_compiles_its_code_itself_if_precompilation_failed(
    sandbox: hutch.Hutch, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_code, lost = Precompiler._compile, []
    await sandbox.run("1")

    async def failing(self: Precompiler, lease: Lease, owner: str, code: str, id: str) -> Result:
        await compile_code(self, lease, owner, code, id)
        lost.append(id)
        return Result(ok=False, error=ExecutionError("internal_error", "lost"))

    monkeypatch.setattr(Precompiler, "_compile", failing)
    r = await sandbox.run("const lost: number = 3; lost", engine="deno")
    assert (r.result, lost) == (3, [r.run_id])
    assert kernel_of(sandbox).pool.stats().in_flight.get("quickjs", 0) == 0


async def test_precompilation_is_logged_with_the_id_of_its_run(
    own_sandbox: hutch.Hutch, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await own_sandbox.run("1")).ok
    caplog.set_level("DEBUG", "hutch.runs")
    caplog.clear()
    r = await own_sandbox.run("const logged: number = 8; logged", engine="deno")
    await asyncio.sleep(0)
    # Ignore the record of the first run, which may be logged after `caplog.clear()`.
    records = [
        (record.levelname, record.__dict__["fields"])
        for record in caplog.records
        if r.run_id in record.message
    ]
    assert [
        (level, fields["protocol"], fields.get("label"), fields["engine"]) for level, fields in records
    ] == [
        ("DEBUG", "internal", "precompile", "quickjs"),
        ("INFO", "python", None, "deno"),
    ]
    assert [fields["run_id"] for _, fields in records] == [r.run_id] * 2


async def test_code_too_large_for_precompilation_does_not_affect_other_executions(
    own_sandbox: hutch.Hutch,
) -> None:
    called, answer = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        called.set()
        await answer.wait()
        return "answered"

    neighbour = asyncio.create_task(
        own_sandbox.run("return await tools.wait()", tools=[wait], timeout_ms=60_000)
    )
    await called.wait()
    # Use control characters, because each of them takes six bytes as JSON.
    text = "\x01" * 3_000_000
    r = await own_sandbox.run(f"const a: number = `{text}`.length; a", engine="deno", timeout_ms=30_000)
    assert (r.result, r.error) == (len(text), None)
    answer.set()
    assert (await neighbour).result == "answered"


async def test_runner_too_busy_to_precompile_is_skipped_and_not_ended(own_sandbox: hutch.Hutch) -> None:
    assert (await own_sandbox.run("1")).ok
    [runner] = kernel_of(own_sandbox).pool.runners.shared[PRECOMPILE_PROFILE, "default"]
    assert isinstance(runner, RunnerProcess)
    guest = process_tree(runner.pid)[-1]
    os.kill(guest, signal.SIGSTOP)
    try:
        async with asyncio.timeout(20):
            r = await own_sandbox.run("const busy: number = 6; busy", engine="deno")
    finally:
        os.kill(guest, signal.SIGCONT)
    assert (r.result, r.error) == (6, None)
    assert (await own_sandbox.run("7")).result == 7
    assert kernel_of(own_sandbox).pool.runners.shared[PRECOMPILE_PROFILE, "default"] == [runner]


async def test_runner_that_hangs_in_a_cancelled_precompilation_is_ended(own_sandbox: hutch.Hutch) -> None:
    assert (await own_sandbox.run("1")).ok
    [runner] = kernel_of(own_sandbox).pool.runners.shared[PRECOMPILE_PROFILE, "default"]
    assert isinstance(runner, RunnerProcess)
    guest = process_tree(runner.pid)[-1]
    began = asyncio.Event()
    add_session = runner.multiplexer.add

    def add_hanging(session: Session) -> None:
        add_session(session)
        receive = session.receive

        def receive_start(message: RunnerMessage) -> bool:
            if isinstance(message, Started):
                os.kill(guest, signal.SIGSTOP)
                began.set()
            # Ignore a result that the runner sent before it was stopped.
            return not isinstance(message, Done) and receive(message)

        session.receive = receive_start  # type: ignore[method-assign]

    runner.multiplexer.add = add_hanging  # type: ignore[method-assign]
    running = asyncio.create_task(own_sandbox.run("'cancelled'", engine="deno"))
    await began.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(20):
        assert (await own_sandbox.run("2")).result == 2
        await runner.wait()


async def test_replies_of_cancelled_precompilations_are_not_counted_as_dropped(
    own_sandbox: hutch.Hutch,
) -> None:
    assert (await own_sandbox.run("1")).ok
    for number in range(100):
        running = asyncio.create_task(own_sandbox.run(f"{number}", engine="deno"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (await own_sandbox.run("2")).result == 2
    # There may be two runners: if the first one answers slowly, the owner gets a second one.
    runners = kernel_of(own_sandbox).pool.runners.shared[PRECOMPILE_PROFILE, "default"]
    # Fewer programs than runs may be compiled, because a task may be cancelled before its precompilation
    # begins.
    assert sum(runner.executions for runner in runners) > 50
    assert sum(runner.multiplexer.dropped for runner in runners) == 0


async def test_program_cache_is_per_owner_and_bounded(sandbox: hutch.Hutch) -> None:
    precompiler = kernel_of(sandbox).precompiler
    precompiler.cache.clear()
    for owner in ("default", "other"):
        await sandbox.run("1", owner=owner)
        assert precompiler.cached(owner, "1 + 40") is None
        assert (await sandbox.run("1 + 40", engine="deno", owner=owner)).result == 41
    program = precompiler.cached("default", "1 + 40")
    assert program is not None
    precompiler.add_to_cache("default", "x" * MAX_CACHED_CHARS, program)
    for number in range(MAX_CACHED_PROGRAMS - 1):
        precompiler.add_to_cache("default", f"{number}", program)
    assert len(precompiler.cache) == MAX_CACHED_PROGRAMS
    assert precompiler.cached("default", "1 + 40") is not None
    assert precompiler.cached("other", "1 + 40") is None
    assert precompiler.cached("default", "x" * MAX_CACHED_CHARS) is None


async def test_shared_processes_do_not_precompile() -> None:
    async with hutch.Hutch(owners_share=True) as h:
        await h.run("1", owner="other")
        assert (await h.run("1 + 41", engine="deno")).result == 42
        assert len(kernel_of(h).precompiler.cache) == 0
