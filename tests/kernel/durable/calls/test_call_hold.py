"""Runs that are stored before each of their tool calls (`Execution.stores_calls`)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.kernel.durable.test_crash_points import DyingTable
from tests.support.waiting import eventually

from hutch.app.app import App
from hutch.errors import ResumeError, StoreError
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.limits import Limits
from hutch.session.run import Result, RunHandle
from hutch.session.tools.provider import Provider
from hutch.settings import Settings

CODE = """
    const first = await tools.note({name: "first"});
    const both = await Promise.all([tools.note({name: "left"}), tools.note({name: "right"})]);
    return [first, ...both, await tools.note({name: "last"})];
"""
ALL = ["first", "left", "right", "last"]


class Notes:
    """A tool that records its calls. `held` names a call that waits until the test releases it."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.held = ""
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    @property
    def provider(self) -> Provider:
        async def note(name: str) -> str:
            self.calls.append(name)
            if name == self.held:
                self.reached.set()
                await self.released.wait()
            return name

        return Provider.of(note)

    def execution(self, code: str = CODE) -> Execution:
        return Execution(
            code=code,
            profile=profile_for("quickjs"),
            limits=Limits(timeout_ms=60_000),
            providers=[self.provider],
            stores_calls=True,
        )


@pytest.fixture(scope="module")
async def apps(
    anyio_backend: object, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[App, App]]:
    settings = Settings(home=str(tmp_path_factory.mktemp("home")))
    first, second = await App.create(settings), await App.create(settings)
    yield first, second
    await first.close()
    await second.close()


async def resume(app: App, run_id: str, notes: Notes) -> Result:
    execution, run = await app.suspended_runs.resume(run_id, "default", [notes.provider], is_holder_dead=True)
    return await app.suspended_runs.run(execution, run)


async def test_run_whose_calls_are_stored_gives_the_same_result(apps: tuple[App, App]) -> None:
    app, notes, run = apps[0], Notes(), RunHandle()
    result = await app.kernel.run(notes.execution(), run)
    assert result.result == ALL, result
    assert notes.calls == ALL
    assert run.generation == 3
    row = await (await app.storage.store()).checkpoints.get(run.id)
    assert row is not None
    assert row.state == "ended"


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        ("first", ["lost", "left", "right", "last"]),
        ("right", ["first", "left", "lost", "last"]),
        ("last", ["first", "left", "right", "lost"]),
    ],
)
async def test_killed_run_continues_inside_and_repeats_no_call(
    apps: tuple[App, App], held: str, expected: list[str]
) -> None:
    first, second = apps
    notes, run = Notes(), RunHandle()
    notes.held = held
    code = (
        CODE.replace('"})', '"}).catch(lost)')
        + "function lost(e) { return e.code === 'tool_error' && 'lost' }"
    )
    running = asyncio.ensure_future(first.kernel.run(notes.execution(code), run))
    await notes.reached.wait()
    session = run.session
    assert session is not None
    # Wait until the result of the call "left" is stored, which happens before the guest gets it.
    await eventually(lambda: len(session.tool_calls.open_tools()) == 1)
    # From here on, the second process continues the run, as if the first process were dead. The first process
    # still waits in its tool call.
    other = Notes()
    result = await resume(second, run.id, other)
    assert result.result == expected, result
    assert [*notes.calls, *other.calls] == ALL
    notes.released.set()
    await running
    stored = await second.suspended_runs.ends.result(run.id, "default")
    assert stored is not None
    assert stored.result == expected
    # The first process has made no further call after its tool was released.
    assert [*notes.calls, *other.calls] == ALL


LOST, UNKNOWN, CONTINUES, ENDED = "checkpoint_not_found", "unknown", "continues", "checkpoint_ended"


@pytest.mark.parametrize(
    ("method", "when", "number", "expected"),
    [
        # The run was never stored, so it is lost. It has made no call.
        ("save", "before", 1, LOST),
        ("save", "after", 1, UNKNOWN),
        ("save", "before", 2, CONTINUES),
        ("save", "after", 2, UNKNOWN),
        ("answer", "before", 1, UNKNOWN),
        ("answer", "after", 1, CONTINUES),
        ("answer", "before", 3, UNKNOWN),
        ("answer", "after", 4, CONTINUES),
        ("end", "before", 1, CONTINUES),
        ("end", "after", 1, ENDED),
    ],
)
async def test_no_call_is_repeated_whenever_the_process_dies(
    apps: tuple[App, App],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    when: str,
    number: int,
    expected: str,
) -> None:
    first, second = apps
    notes, run = Notes(), RunHandle()
    store = await first.storage.store()
    table = DyingTable(store.checkpoints, method, when, number)
    monkeypatch.setattr(store, "checkpoints", table)
    with contextlib.suppress(StoreError):
        await first.kernel.run(notes.execution(), run)
    assert table.is_dead
    monkeypatch.undo()
    if expected in (LOST, ENDED):
        with pytest.raises(ResumeError) as caught:
            await resume(second, run.id, notes)
        assert caught.value.code == expected
        assert notes.calls == (ALL if expected == ENDED else [])
        return
    result = await resume(second, run.id, notes)
    if expected == UNKNOWN:
        assert "may have had an effect" in str(result.error)
        assert notes.calls == ALL[: len(notes.calls)]
    else:
        assert result.result == ALL, result
        assert notes.calls == ALL


async def test_call_is_not_made_if_the_run_cannot_be_stored(
    apps: tuple[App, App], monkeypatch: pytest.MonkeyPatch
) -> None:
    app, notes = apps[0], Notes()
    store = await app.storage.store()

    async def save(*_: Any) -> bool:
        raise StoreError("The disk is full.")

    monkeypatch.setattr(store.checkpoints, "save", save)
    code = "try { await tools.note({name: 'x'}) } catch (e) { return e.message }"
    result = await app.kernel.run(notes.execution(code))
    assert result.result == (
        "The call was not made, because the run could not be stored before: The disk is full."
    ), result
    assert notes.calls == []


async def test_call_is_not_made_if_the_memory_is_too_large(tmp_path: Path) -> None:
    notes = Notes()
    app = await App.create(Settings(home=str(tmp_path), max_checkpoint_bytes=100_000))
    try:
        code = """
            globalThis.data = Array.from({length: 50_000}, (_, i) => `${i}-${Math.random()}`);
            try { await tools.note({name: 'x'}) } catch (e) { return e.message }"""
        result = await app.kernel.run(notes.execution(code))
    finally:
        await app.close()
    assert "(setting max_checkpoint_bytes)" in str(result.result), result
    assert notes.calls == []


async def test_explicit_suspension_lets_waiting_calls_begin(apps: tuple[App, App]) -> None:
    app, notes, run = apps[0], Notes(), RunHandle()
    notes.held = "first"
    running = asyncio.ensure_future(app.kernel.run(notes.execution(), run))
    await notes.reached.wait()
    run.suspend()
    notes.released.set()
    error = (await running).error
    assert error is not None
    assert error.code == "suspended"
    assert (await resume(app, run.id, notes)).result == ALL
    assert notes.calls == ALL


async def test_large_state_is_not_kept_in_memory_while_a_call_is_made(apps: tuple[App, App]) -> None:
    app, notes, run = apps[0], Notes(), RunHandle()
    notes.held = "first"
    large = "const data = Array.from({length: 20_000}, () => Math.random());"
    running = asyncio.ensure_future(app.kernel.run(notes.execution(large + CODE), run))
    await notes.reached.wait()
    await eventually(lambda: run.session is not None and run.session.saved is not None)
    await eventually(lambda: run.session.saved.memory == [])  # type: ignore[union-attr]
    notes.released.set()
    assert (await running).result == ALL
