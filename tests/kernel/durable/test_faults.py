"""Suspended runs on a full disk and after jumps of the clock, and random values in resumed runs."""

from __future__ import annotations

import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hutch

ASK = "const answer = await tools.ask({});"
DAY_SECONDS = 24 * 3600.0
MASTER_KEY = "A" * 43 + "="


def ask() -> str:
    raise hutch.Suspend("a person")


@pytest.fixture(scope="module", autouse=True)
def master_key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUTCH_MASTER_KEY", MASTER_KEY)
        yield


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
async def h(anyio_backend: object, home: Path) -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch(home=str(home), timeout_ms=30_000) as opened:
        yield opened


async def suspend(h: hutch.Hutch, code: str) -> tuple[str, str]:
    """Runs code until the run is suspended. Returns the ids of the run and of its pending call."""
    result = await h.run(code, tools=[ask])
    assert result.pending_calls, result
    return result.run_id, result.pending_calls[0].call_id


async def resume(h: hutch.Hutch, run_id: str | bytes, call_id: str) -> hutch.Result:
    return await (await h.resume(run_id, {call_id: "yes"}, tools=[ask])).result()


@contextmanager
def full_disk(home: Path) -> Iterator[None]:
    """Simulates a full disk: files of this process cannot become larger than the largest file of the store is
    now.
    """
    size = max(file.stat().st_size for file in home.iterdir() if file.is_file())
    _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_full_disk_fails_new_suspensions_and_loses_no_suspended_run(h: hutch.Hutch, home: Path) -> None:
    run_id, call_id = await suspend(h, f"{ASK} return answer")
    large = f"const data = Array.from({{length: 200_000}}, () => Math.random()); {ASK} return data.length"
    with full_disk(home):
        result = await h.run(large, tools=[ask])
        assert result.error is not None
        assert result.error.code == "internal_error"
        assert "The run could not be suspended: " in result.error.message
        assert not result.pending_calls
        # Runs that do not have to be stored still work.
        assert (await h.run("1 + 1")).result == 2
    assert (await resume(h, run_id, call_id)).result == "yes"
    assert (await resume(h, *await suspend(h, large))).result == 200_000


@pytest.mark.parametrize("days", [1, -1])
async def test_timers_of_the_guest_after_a_jump_of_the_clock(
    h: hutch.Hutch, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    hours = 23 if days > 0 else 0
    code = f"""
        const late = new Promise((resolve) => setTimeout(resolve, {hours * 3_600_000 + 50}, "late"));
        {ASK}
        return [answer, await late];"""
    run_id, call_id = await suspend(h, code)
    now = time.time
    monkeypatch.setattr("hutch.session.host.time", lambda: now() + days * DAY_SECONDS)
    result = await resume(h, run_id, call_id)
    assert result.result == ["yes", "late"], result


async def test_random_values_differ_after_each_continuation(h: hutch.Hutch, tmp_path: Path) -> None:
    random = "[Math.random(), crypto.randomUUID(), crypto.getRandomValues(new Uint8Array(8)).join()]"
    run = await h.start(f"const before = {random}; {ASK} return [before, {random}]", tools=[ask])
    (call,) = (await run.result()).pending_calls
    sealed = await run.checkpoint()
    async with hutch.Hutch(home=str(tmp_path)) as other:
        first, second = [(await resume(each, sealed, call.call_id)).result for each in (h, other)]
    assert first[0] == second[0]
    values = [*first[0], *first[1], *second[1]]
    assert len(set(map(str, values))) == 9
