"""Runs that are stored while their tools run (setting `checkpoint_after_ms`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch.app.app import App
from hutch.kernel.execution import Execution
from hutch.sandbox.runner.profile import profile_for
from hutch.session.limits import Limits
from hutch.session.run import RunHandle
from hutch.session.tools.provider import Provider
from hutch.settings import Settings
from hutch.store.backends.base import SqlStatement
from hutch.store.store import Store

PAST = "2000-01-01T00:00:00.000Z"


class Tools:
    """Tools that wait until they are released."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: set[str] = set()
        self.released: dict[str, asyncio.Event] = {}

    def release(self, name: str) -> asyncio.Event:
        return self.released.setdefault(name, asyncio.Event())

    @property
    def all(self) -> list[Any]:
        async def wait(name: str) -> str:
            self.calls.append(name)
            await self.release(name).wait()
            return name

        async def note(name: str) -> str:
            self.calls.append(name)
            return name

        async def read(name: str, context: hutch.ToolContext) -> str:
            self.keys.add(context.idempotency_key)
            return await wait(name)

        return [wait, note, hutch.tool(read, idempotent=True)]


@pytest.fixture(scope="module")
async def homes(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    home = str(tmp_path_factory.mktemp("home"))
    options: Any = {"home": home, "checkpoint_after_ms": 50, "timeout_ms": 60_000}
    async with hutch.Hutch(**options) as first, hutch.Hutch(**options) as second:
        yield first, second


@pytest.fixture
def first(homes: Any) -> hutch.Hutch:
    opened: hutch.Hutch = homes[0]
    return opened


@pytest.fixture
def second(homes: Any) -> hutch.Hutch:
    opened: hutch.Hutch = homes[1]
    return opened


@pytest.fixture
def tools() -> Tools:
    return Tools()


async def store_of(h: hutch.Hutch) -> Store:
    return await (await h._opened())._open_store()


async def stored(run: hutch.Run) -> list[str]:
    """Waits until the run is stored again. Returns the ids of its pending calls."""
    async for event in run:
        if isinstance(event, hutch.RunSuspended):
            return event.calls
    raise AssertionError(await run.result())


async def kill(h: hutch.Hutch, run_id: str | None) -> None:
    """Changes the store as if the process that holds the run were dead."""
    sql = "UPDATE checkpoints SET held_until = :past, holder = 'dead' WHERE run_id = :run_id"
    await (await store_of(h))._database.write(SqlStatement(sql, {"past": PAST, "run_id": run_id}))


async def test_run_is_stored_while_it_waits_and_continues_with_each_result(
    first: hutch.Hutch, tools: Tools
) -> None:
    code = """
        const [slow, quick] = await Promise.all([
            tools.wait({name: "slow"}),
            tools.wait({name: "quick"}).then((x) => tools.note({name: x + "er"})),
        ]);
        return [slow, quick, await tools.note({name: "last"})];"""
    run = await first.start(code, tools=tools.all)
    assert len(await stored(run)) == 2
    session = run._handle.session
    assert session is not None
    assert session.saved is not None
    assert session.saved.memory == []
    tools.release("quick").set()
    # Wait until the run is stored with only `slow` pending. On a busy machine, the run may also be stored
    # earlier, while it calls `note`.
    while len(await stored(run)) != 1:
        pass
    assert tools.calls == ["slow", "quick", "quicker"]
    tools.release("slow").set()
    result = await run.result()
    assert result.result == ["slow", "quicker", "last"], result
    assert tools.calls == ["slow", "quick", "quicker", "last"]
    row = await (await store_of(first)).checkpoints.get(result.run_id)
    assert row is not None
    assert row.state == "ended"


async def test_timer_of_the_guest_fires_while_a_tool_runs(first: hutch.Hutch, tools: Tools) -> None:
    code = """
        const timeout = new Promise((resolve) => setTimeout(() => resolve("too late"), 400));
        return await Promise.race([tools.wait({name: "slow"}), timeout]);"""
    result = await first.run(code, tools=tools.all)
    assert result.result == "too late", result


async def test_stored_run_whose_tool_says_later_can_be_resumed(first: hutch.Hutch, tools: Tools) -> None:
    async def ask() -> str:
        await tools.release("ask").wait()
        raise hutch.Suspend("a person")

    run = await first.start("const kept = [1]; return [kept, await tools.ask({})]", tools=[ask])
    await stored(run)
    tools.release("ask").set()
    (call,) = (await run.result()).pending_calls
    resumed = await first.resume(run.id or "", {call.call_id: "yes"}, tools=[ask])
    assert (await resumed.result()).result == [[1], "yes"]


async def test_stored_run_keeps_its_files(first: hutch.Hutch, tools: Tools) -> None:
    code = """
        await files.write("before.txt", "1");
        await tools.wait({name: "slow"});
        await files.write("after.txt", "2");
        return await files.text("input.txt");"""
    run = await first.start(code, tools=tools.all, files={"input.txt": b"hello"})
    await stored(run)
    tools.release("slow").set()
    result = await run.result()
    assert result.result == "hello", result
    assert {file.name: file.data for file in result.files} == {"before.txt": b"1", "after.txt": b"2"}


async def test_stored_run_can_be_cancelled(first: hutch.Hutch, tools: Tools) -> None:
    run = await first.start("return await tools.wait({name: 'slow'})", tools=tools.all)
    await stored(run)
    run.cancel()
    error = (await run.result()).error
    assert error is not None
    assert error.code == "timeout"
    with pytest.raises(hutch.ResumeError) as caught:
        await first.resume(run.id or "")
    assert caught.value.code == "checkpoint_ended"


async def test_after_a_kill_only_idempotent_calls_are_made_again(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools
) -> None:
    code = """
        const done = await tools.note({name: "before"});
        const caught = tools.wait({name: "once"}).catch((e) => `${e.code}: ${e.message}`);
        return [done, await tools.read({name: "again"}), await caught];"""
    run = await first.start(code, tools=tools.all)
    await stored(run)
    await kill(first, run.id)
    resumed = await second.resume(run.id or "", tools=tools.all)
    await stored(resumed)
    tools.release("again").set()
    result = await resumed.result()
    done, again, caught = result.result
    assert (done, again) == ("before", "again")
    assert caught.startswith("tool_error: The process died while it called tools.wait")
    assert tools.calls == ["before", "once", "again", "again"]
    assert len(tools.keys) == 1
    # The second process believes that the first process is dead. The first process does not continue the run.
    tools.release("once").set()
    error = (await run.result()).error
    assert error is not None
    assert "Another process continues the run" in error.message


async def test_result_that_was_stored_before_a_kill_is_delivered(
    first: hutch.Hutch, second: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = await first.start("return await tools.wait({name: 'once'})", tools=tools.all)
    await stored(run)
    journaled = asyncio.Event()
    runs = await first._opened()

    async def die(*args: Any) -> None:
        await runs.calls.journal(*args)
        await kill(first, run.id)
        journaled.set()

    session = run._handle.session
    assert session is not None
    replies = session.tool_calls._suspension
    monkeypatch.setattr(replies, "_journal", lambda call_id, answer: die(run.id, call_id, answer))
    tools.release("once").set()
    await journaled.wait()
    resumed = await second.resume(run.id or "", tools=tools.all)
    assert (await resumed.result()).result == "once"
    assert tools.calls == ["once"]
    assert not (await run.result()).ok


async def test_caller_that_gives_up_ends_the_stored_run(
    first: hutch.Hutch, tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await store_of(first)
    save, run_ids = store.checkpoints.save, []

    async def save_and_give_up(row: Any, *args: Any) -> bool:
        run_ids.append(row.run_id)
        waiting.cancel()
        await asyncio.sleep(0)
        return await save(row, *args)

    monkeypatch.setattr(store.checkpoints, "save", save_and_give_up)
    waiting = asyncio.ensure_future(first.run("return await tools.wait({name: 'slow'})", tools=tools.all))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    row = await store.checkpoints.get(run_ids[0])
    assert row is not None
    assert row.state == "ended"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("return await tools.read({name: 'again'})", "again"),
        ("try { await tools.wait({name: 'once'}) } catch (e) { return e.code }", "tool_error"),
        ("await new Promise((resolve) => setTimeout(resolve, 3_000)); return 'woke up'", "woke up"),
    ],
)
async def test_waiting_run_of_a_server_that_stops_continues_in_the_next_one(
    tmp_path: Path, tools: Tools, code: str, expected: str
) -> None:
    settings = Settings(home=str(tmp_path))
    app = await App.create(settings)
    waits, is_stored = asyncio.Event(), asyncio.Event()
    awaited: type = hutch.RunStarted if "setTimeout" in code else hutch.ToolCallStarted

    def listen(event: hutch.RunEvent) -> None:
        if isinstance(event, awaited):
            waits.set()
        elif isinstance(event, hutch.RunSuspended):
            is_stored.set()

    run = RunHandle(listeners=[listen])
    execution = Execution(
        code=code,
        profile=profile_for("quickjs"),
        limits=Limits(timeout_ms=60_000),
        providers=[Provider.of(*tools.all)],
        is_durable=True,
        protocol="execbox",
    )
    try:
        await app.storage.start()
        running = asyncio.ensure_future(app.kernel.run(execution, run))
        await waits.wait()
        await app.drain(0.1)
        await is_stored.wait()
        table = (await app.storage.store()).checkpoints
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        row = await table.get(run.id)
        assert row is not None
        assert row.state == "suspended"
    finally:
        await app.close()
    tools.release("again").set()
    async with hutch.Hutch(settings=settings) as h:
        row = await (await store_of(h)).runs.get(run.id)
        assert row is not None
        assert row.outcome == "suspended"
        runs = await h._opened()

        async def provide() -> list[Provider]:
            return [Provider.of(*tools.all)]

        runs.background.provide_tools = provide
        runs.background.continued_protocols = frozenset({"execbox"})
        await runs.background.start_answered_runs()
        result = await runs.ends.wait(run.id, "default", [], lambda: False)
        assert result is not None
        assert result.result == expected, result
