"""Code for a process that is used once: made into a program by one that did it before, or by itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

import hutch
from hutch.kernel import Kernel
from hutch.programs import MAX_KEPT_CHARS, MAX_PROGRAMS, PREPARER, UNPREPARED, Programs
from hutch.sandbox.meter import process_tree
from hutch.sandbox.process import RunnerProcess
from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import Runner
from hutch.session.host import Outcome, Session
from hutch.session.messages import Done, WireError

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


@pytest.fixture(params=["at hand", "by itself"])
async def kept(sandbox: hutch.Hutch, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many programs are kept of one that was prepared this way."""
    kernel = kernel_of(sandbox)
    kernel._programs.clear()
    await sandbox.run("1")
    if request.param == "at hand":
        return 1
    monkeypatch.setattr(kernel.pool, "at_hand", lambda *_: None)
    monkeypatch.setattr(kernel.pool, "claim", lambda *_: None)
    return 0


@pytest.fixture
async def alone() -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch() as h:
        yield h


def kernel_of(h: hutch.Hutch) -> Kernel:
    assert h._kernel is not None
    return h._kernel


@pytest.mark.parametrize(("code", "expected"), FORMS)
async def test_every_form_has_its_value_whoever_prepared_it(
    kept: int, sandbox: hutch.Hutch, code: str, expected: object
) -> None:
    r = await sandbox.run(code, engine="deno")
    assert (r.error, r.result) == (None, expected)
    assert len(kernel_of(sandbox)._programs) == kept


@pytest.mark.parametrize(("code", "name", "line", "column"), FAILURES)
async def test_every_failure_names_its_place_whoever_prepared_it(
    kept: int, sandbox: hutch.Hutch, code: str, name: str, line: int, column: int
) -> None:
    r = await sandbox.run(code, engine="deno")
    assert r.error is not None
    assert (r.error.code, r.error.name) == ("runtime_error", name)
    assert (r.error.line, r.error.column) == (line, column)
    assert r.error.message.count(f"({line}:{column})") == (name == "SyntaxError")


async def test_one_who_prepares_is_started_once_it_is_worth_it(alone: hutch.Hutch) -> None:
    pool = kernel_of(alone).pool
    for done in range(1, UNPREPARED + 1):
        assert (await alone.run(f"{done}", engine="deno")).result == done
        assert (pool._starting[PREPARER] > 0 or "quickjs" in pool.stats().processes) == (done == UNPREPARED)
    await pool.warmed(PREPARER)
    assert (await alone.run("'prepared'", engine="deno")).result == "prepared"
    assert len(kernel_of(alone)._programs) == 1


async def test_one_who_prepares_is_started_also_while_there_is_always_somebody_who_waits(
    alone: hutch.Hutch,
) -> None:
    numbers = iter(range(40))

    async def work() -> None:
        for number in numbers:
            assert (await alone.run(f"{number}", engine="deno")).result == number

    await asyncio.gather(*(work() for _ in range(8)))
    assert len(kernel_of(alone)._programs) > 0


@pytest.mark.parametrize("code", ["let a = ;", "const a: = 1", "class A {}\nnew A() @ 1"])
async def test_code_that_is_no_program_uses_no_process_up(
    alone: hutch.Hutch, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    assert (await alone.run("1")).ok
    assert (await alone.run("1", engine="deno")).ok
    pool = kernel_of(alone).pool
    used: list[Runner] = []
    take = pool._take_single

    def taken(profile: Profile) -> Runner | None:
        runner = take(profile)
        used.extend([] if runner is None else [runner])
        return runner

    monkeypatch.setattr(pool, "_take_single", taken)
    r = await alone.run(code, engine="deno")
    assert r.error is not None
    assert r.error.name == "SyntaxError"
    assert not used
    assert (await alone.run("2", engine="deno")).ok
    assert len(used) == 1


async def test_process_of_its_own_prepares_what_another_could_not(
    sandbox: hutch.Hutch, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, lost = Programs._made, []
    await sandbox.run("1")

    async def failing(self: Programs, runner: Runner, code: str, id: str) -> Outcome:
        await made(self, runner, code, id)
        lost.append(id)
        return Outcome(ok=False, error=WireError(code="internal_error", message="lost"), lost=True)

    monkeypatch.setattr(Programs, "_made", failing)
    r = await sandbox.run("const lost: number = 3; lost", engine="deno")
    assert (r.result, lost) == (3, [r.run_id])
    assert kernel_of(sandbox).pool.stats().in_flight.get("quickjs", 0) == 0


async def test_code_that_is_too_large_to_be_prepared_elsewhere_harms_no_neighbour(alone: hutch.Hutch) -> None:
    called, answer = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        called.set()
        await answer.wait()
        return "answered"

    neighbour = asyncio.create_task(alone.run("return await tools.wait()", tools=[wait], timeout_ms=60_000))
    await called.wait()
    # Control characters take six times their length as JSON.
    text = "\x01" * 3_000_000
    r = await alone.run(f"const a: number = `{text}`.length; a", engine="deno", timeout_ms=30_000)
    assert (r.result, r.error) == (len(text), None)
    answer.set()
    assert (await neighbour).result == "answered"


async def test_one_who_is_too_busy_to_prepare_is_passed_over_and_not_ended_for_it(alone: hutch.Hutch) -> None:
    assert (await alone.run("1")).ok
    [runner] = kernel_of(alone).pool._shared[PREPARER, "default"]
    assert isinstance(runner, RunnerProcess)
    guest = process_tree(runner.pid)[-1]
    os.kill(guest, signal.SIGSTOP)
    try:
        async with asyncio.timeout(20):
            r = await alone.run("const busy: number = 6; busy", engine="deno")
    finally:
        os.kill(guest, signal.SIGCONT)
    assert (r.result, r.error) == (6, None)
    assert (await alone.run("7")).result == 7
    assert kernel_of(alone).pool._shared[PREPARER, "default"] == [runner]


async def test_one_who_hangs_in_a_preparation_that_nobody_waits_for_is_ended(alone: hutch.Hutch) -> None:
    assert (await alone.run("1")).ok
    [runner] = kernel_of(alone).pool._shared[PREPARER, "default"]
    assert isinstance(runner, RunnerProcess)
    guest = process_tree(runner.pid)[-1]
    began = asyncio.Event()
    open_session = runner.link.open

    def hang() -> None:
        os.kill(guest, signal.SIGSTOP)
        began.set()

    def opened(*arguments: Any) -> Session:
        session = open_session(*arguments[:4], hang, *arguments[5:])
        # What it may have said already.
        receive = session.receive
        session.receive = lambda said: None if isinstance(said, Done) else receive(said)  # type: ignore[method-assign]
        return session

    runner.link.open = opened  # type: ignore[method-assign]
    running = asyncio.create_task(alone.run("'nobody waits'", engine="deno"))
    await began.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(20):
        assert (await alone.run("2")).result == 2
        await runner.wait()


async def test_preparations_that_nobody_waited_for_are_no_nonsense(alone: hutch.Hutch) -> None:
    assert (await alone.run("1")).ok
    [runner] = kernel_of(alone).pool._shared[PREPARER, "default"]
    for number in range(100):
        running = asyncio.create_task(alone.run(f"{number}", engine="deno"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (await alone.run("2")).result == 2
    assert runner.executions > 100
    assert runner.link.dropped == 0


async def test_programs_are_kept_for_their_owner_alone_and_in_bounds(sandbox: hutch.Hutch) -> None:
    programs = kernel_of(sandbox)._programs
    programs.clear()
    for owner in ("default", "somebody"):
        await sandbox.run("1", owner=owner)
        assert programs.kept(owner, "1 + 40") is None
        assert (await sandbox.run("1 + 40", engine="deno", owner=owner)).result == 41
    program = programs.kept("default", "1 + 40")
    assert program is not None
    programs.keep("default", "x" * MAX_KEPT_CHARS, program)
    for number in range(MAX_PROGRAMS - 1):
        programs.keep("default", f"{number}", program)
    assert len(programs) == MAX_PROGRAMS
    assert programs.kept("default", "1 + 40") is not None
    assert programs.kept("somebody", "1 + 40") is None
    assert programs.kept("default", "x" * MAX_KEPT_CHARS) is None


async def test_where_owners_share_processes_none_prepares_for_another() -> None:
    async with hutch.Hutch(owners_share=True) as h:
        await h.run("1", owner="somebody")
        assert (await h.run("1 + 41", engine="deno")).result == 42
        assert len(kernel_of(h)._programs) == 0
