"""Guests that suspend very large or very many runs and sessions, and runners that stop at a bad moment."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.hostile.processes import exists, runners
from tests.support.stalls import LoopStalls, repeat_on_stall
from tests.support.waiting import eventually

import hutch
from hutch.kernel.state_memory import StateMemory

MIB = 1024 * 1024
RANDOM = """
    const bytes = [];
    for (let i = 0; i < SIZE; i++) {
        const part = new Uint8Array(1 << 20);
        for (let j = 0; j < part.length; j += 65536) crypto.getRandomValues(part.subarray(j, j + 65536));
        bytes.push(part);
    }
"""
"""Fills the memory with SIZE MiB that cannot be compressed."""


def later() -> object:
    raise hutch.Suspend("a person")


@pytest.fixture(scope="module")
async def h(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch(home=str(tmp_path_factory.mktemp("home"))) as h:
        yield h


async def suspended(h: hutch.Hutch, code: str, memory: int = 300 * MIB) -> hutch.Result:
    result = await h.run(code, tools=[later], memory_limit_bytes=memory, timeout_ms=60_000)
    assert result.error is not None
    assert result.error.code == "suspended", result.error
    return result


async def continued(h: hutch.Hutch, waiting: hutch.Result) -> hutch.Result:
    answers = {call.call_id: 1 for call in waiting.pending_calls}
    return await (await h.resume(waiting.run_id, answers, tools=[later])).result()


@repeat_on_stall
async def test_large_memory_is_stored_and_restored_without_a_stall(h: hutch.Hutch) -> None:
    """Encoding or decoding 60 MiB in one piece would block: encoding took 45 ms, decoding 74 ms."""
    code = RANDOM.replace("SIZE", "58") + "await tools.later(); return bytes.length"
    async with LoopStalls() as stalls:
        waiting = await suspended(h, code)
        stalls.assert_short("to suspend")
        result = await continued(h, waiting)
    assert result.result == 58, result
    stalls.assert_short("to continue")


LARGE_RESULTS = {
    "files": "for (let i = 0; i < 4; i++) await files.write(`f${i}`, new Uint8Array(8e6)); return 1",
    "quotes": "return '\"'.repeat(4194302)",
}


@pytest.mark.parametrize("end", LARGE_RESULTS.values(), ids=LARGE_RESULTS)
@repeat_on_stall
async def test_large_stored_result_is_written_and_read_without_a_stall(h: hutch.Hutch, end: str) -> None:
    """When results were stored as JSON text, writing or reading these results took 74 to 188 ms."""
    waiting = await suspended(h, f"await tools.later(); {end}")
    async with LoopStalls() as stalls:
        result = await continued(h, waiting)
        assert result.ok, result
        stalls.assert_short("to store the result")
        stored = await (await h._opened()).ends.result(waiting.run_id, "default")
    assert stored is not None
    assert (stored.result, [*stored.files]) == (result.result, [*result.files])
    stalls.assert_short("to read the result")


async def test_stopped_runner_does_not_hold_up_the_turn_whose_memory_it_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limit of a turn begins after the memory is sent, so it does not end this turn. Hutch must
    replace the runner because the runner is silent.
    """
    monkeypatch.setattr("hutch.sandbox.runner.process.MAX_SILENCE_SECONDS", 0.5)
    async with hutch.Hutch(home=str(tmp_path), quickjs_processes=1) as h, h.session("large") as session:
        code = RANDOM.replace("SIZE", "8").replace("const", "var", 1) + "bytes.length"
        assert (await session.run(code)).result == 8
        [guest] = runners(h)
        os.kill(guest, signal.SIGSTOP)
        began = time.monotonic()
        assert (await session.run("bytes.length", timeout_ms=1_000)).result == 8
        assert time.monotonic() - began < 20
        await eventually(lambda: not exists(guest))


async def test_states_in_memory_are_bounded_although_the_stored_ones_are_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a bound, 40 sessions of one owner made the host use 3 GB, although each session took only a few
    kilobytes in the store.
    """
    used: list[int] = []
    change = StateMemory.change

    def noting(memory: StateMemory, owner: str, size: int) -> None:
        change(memory, owner, size)
        used.append(memory.used_bytes)

    monkeypatch.setattr(StateMemory, "change", noting)
    fill = f"var bytes = new Uint8Array({6 * MIB}).fill(7); bytes.length"
    settings = {"home": str(tmp_path), "max_state_bytes": 40 * MIB, "max_checkpoint_bytes": 16 * MIB}
    async with hutch.Hutch(**settings) as h:  # type: ignore[arg-type]
        sessions = [h.session(f"s{n}") for n in range(6)]
        for session in sessions:
            assert (await session.run(fill)).result == 6 * MIB
            await session.store()
        # The old and the new states of all sessions would together take more than twice the memory that an
        # owner may use.
        turns = (session.run("bytes.fill(8); bytes.length") for session in sessions)
        results = await asyncio.gather(*turns, return_exceptions=True)
        for result in results:
            is_busy = isinstance(result, hutch.Busy)
            assert is_busy or result.error is None or result.error.code == "memory_limit"  # type: ignore[union-attr]
        assert 12 * MIB < max(used) <= 32 * MIB
        # The host has refused data that the runner was sending. The runner still works, and another owner can
        # use memory.
        assert (await h.run("return 1")).result == 1
        assert (await h.session("other", owner="other").run(fill)).result == 6 * MIB
    assert used[-1] == 0
