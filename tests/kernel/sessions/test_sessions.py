"""Stateful sessions that are used by two Hutches with the same store, as by two servers."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.support import databases

import hutch
from hutch.errors import InvalidExecution
from hutch.kernel.durable.packing import PART_BYTES
from hutch.kernel.sessions import sessions as sessions_module
from hutch.settings import Settings
from hutch.store.backends.base import SqlStatement
from hutch.store.models import now

MAX_HISTORY = 3
MAX_SESSIONS = 40


@pytest.fixture(params=["sqlite", "postgres"], scope="module")
def settings(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    home = str(tmp_path_factory.mktemp("home"))
    limits: dict[str, Any] = {
        "max_session_history": MAX_HISTORY,
        "max_sessions_per_owner": MAX_SESSIONS,
        "session_idle_ms": 200,
    }
    if request.param == "sqlite":
        return Settings(home=home, **limits)
    server: databases.PostgresServer = request.getfixturevalue("postgres")
    return Settings(home=home, database_url=server.new_database(), **limits)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a Hutch wait longer for a session that another Hutch holds, because the machine may be busy."""
    monkeypatch.setattr(sessions_module, "WAIT_SECONDS", 60.0)


async def value(session: hutch.Session, code: str, **options: Any) -> Any:
    return (await session.run(code, **options)).raise_for_error().result


async def change_store(h: hutch.Hutch, sql: str, **values: Any) -> None:
    store = await (await h._stateful_sessions())._open_store()
    await store._database.write(SqlStatement(sql, values))


async def stored_session(h: hutch.Hutch, session_id: str, code: str = "let x = 1") -> hutch.Session:
    async with h.session(session_id) as session:
        await value(session, code)
    return session


async def refusal(call: Any) -> str:
    with pytest.raises(hutch.SessionError) as caught:
        await call
    return caught.value.code


async def test_declarations_are_kept_for_later_turns_and_other_processes(
    first: hutch.Hutch, second: hutch.Hutch
) -> None:
    async with first.session("declarations") as session:
        await value(session, "let x: number = 1; const add = (y) => x + y; class A { n = 5 }")
        assert await value(session, "x = add(2); x") == 3
    assert await value(second.session("declarations"), "return [add(1), new A().n]") == [4, 5]


async def test_tools_inputs_and_limits_belong_to_a_turn(first: hutch.Hutch) -> None:
    def double(n: int) -> int:
        return 2 * n

    session = first.session()
    assert await value(session, "const y = await tools.double({n}); y", tools=[double], inputs={"n": 4}) == 8
    assert (await session.run("while (true);", timeout_ms=50)).error.code == "timeout"  # type: ignore[union-attr]
    lines: list[str] = []
    assert await value(session, "console.log(y); y", on_log=lines.append) == 8
    assert lines == ["8"]


async def test_failed_turn_changes_nothing(first: hutch.Hutch) -> None:
    session = first.session()
    await value(session, "let list = [1]")
    for code in ("list.push(2); throw new Error('no')", "list.push(2); list = new Map(); list", "let ="):
        assert not (await session.run(code)).ok
    assert await value(session, "list") == [1]
    assert (await session.info()).turn == 2


async def test_turns_of_a_session_run_one_after_the_other(first: hutch.Hutch) -> None:
    async def read(n: int) -> int:
        await asyncio.sleep(0)
        return n

    session = first.session()
    await value(session, "let n = 0")
    code = "n = await tools.read({n}) + 1"
    await asyncio.gather(*(value(session, code, tools=[read]) for _ in range(10)))
    assert await value(session, "n") == 10


async def test_fork_is_independent(first: hutch.Hutch, second: hutch.Hutch) -> None:
    session = first.session()
    await value(session, "let x = {n: 1}; let seed = Math.random()")
    copy = await session.fork("forked")
    code = "return [x.n, seed, Math.random(), crypto.randomUUID()]"
    await value(copy, "x.n = 2")
    (n, seed, *random), (copied_n, copied_seed, *copied_random) = [
        await value(each, code) for each in (session, copy)
    ]
    assert (n, copied_n) == (1, 2)
    assert seed == copied_seed
    assert not {*random} & {*copied_random}
    assert await refusal(session.fork("forked")) == "session_exists"
    assert await value(second.session("forked"), "x.n") == 2


@pytest.mark.parametrize("is_stored", [False, True])
async def test_rollback_goes_back_to_one_of_the_last_turns(first: hutch.Hutch, is_stored: bool) -> None:
    session = first.session()
    for n in range(1, 6):
        await value(session, f"var x = {n}")
    if is_stored:
        await session.store()
        assert await refusal(session.rollback(5 - MAX_HISTORY)) == "turn_not_found"
    await session.rollback(4)
    assert await value(session, "x") == 4
    await session.rollback(3)
    assert await value(session, "x += 10; x") == 13
    await session.store()
    assert await refusal(session.rollback(5)) == "turn_not_found"
    assert await value(session, "x") == 13
    await session.rollback(0)
    assert await value(session, "typeof x") == "undefined"


async def test_variables_have_names_types_and_sizes(first: hutch.Hutch) -> None:
    session = first.session()
    assert await refusal(session.variables()) == "session_not_found"
    await value(session, "let text = 'x'.repeat(1000), m = new Map(); function f() {}")
    found = {variable.name: (variable.type, variable.bytes) for variable in await session.variables()}
    assert {name: kind for name, (kind, _) in found.items()} == {
        "text": "string",
        "m": "Map",
        "f": "function",
    }
    assert 1000 <= found["text"][1] < 1100
    await value(session, "Array.prototype.toJSON = () => 'forged'; null")
    assert await refusal(session.variables()) == "session_invalid"


async def test_session_that_another_process_uses_is_refused_until_it_is_idle(
    first: hutch.Hutch, second: hutch.Hutch, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_waiting, go_on = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        is_waiting.set()
        await go_on.wait()

    code = "var n = 1; await tools.wait()"
    turn = asyncio.create_task(first.session("busy").run(code, tools=[wait], timeout_ms=60_000))
    await is_waiting.wait()
    with monkeypatch.context() as context:
        context.setattr(sessions_module, "WAIT_SECONDS", 0.1)
        assert await refusal(second.session("busy").run("n")) == "session_in_use"
        assert await refusal(second.session("busy").delete()) == "session_in_use"
    go_on.set()
    assert (await turn).ok
    # This turn waits until the first Hutch has stored and released the session.
    assert await value(second.session("busy"), "n") == 1


async def test_stale_process_cannot_overwrite_a_newer_state(first: hutch.Hutch, second: hutch.Hutch) -> None:
    stale = await stored_session(first, "stale")
    await value(stale, "x = 2")
    # Simulate that the first process was paused until its hold on the session expired.
    await change_store(first, "UPDATE sessions SET holder = NULL, held_until = NULL WHERE name = 'stale'")
    async with second.session("stale") as newer:
        await value(newer, "x = 3")
    # The first process has lost the session. If it has not noticed the loss in the background, `store`
    # raises.
    with contextlib.suppress(hutch.SessionError):
        await stale.store()
    assert await value(stale, "x") == 3


async def test_turn_fails_if_another_process_has_used_the_session_meanwhile(first: hutch.Hutch) -> None:
    session = await stored_session(first, "taken")

    async def take() -> None:
        await change_store(
            first, "UPDATE sessions SET holder = 'other', version = 'newer' WHERE name = 'taken'"
        )
        await session_is_dropped(first, "taken")

    assert await refusal(session.run("await tools.take(); x = 2", tools=[take])) == "session_in_use"


async def session_is_dropped(h: hutch.Hutch, session_id: str) -> None:
    slot = (await h._stateful_sessions())._slots["default", session_id]
    assert slot.live is not None
    slot.live.is_changed = True
    assert slot.saving_task is not None
    await slot.saving_task


async def test_altered_states_are_refused(first: hutch.Hutch) -> None:
    altered = {
        "truncated": "UPDATE session_parts SET data = substr(data, 1, length(data) - 8)",
        "swapped": "UPDATE session_parts SET data = (SELECT p.data FROM session_parts p JOIN sessions s"
        " ON s.session_key = p.session_key WHERE s.name = 'source')",
        "relabeled": "UPDATE session_parts SET turn = turn + 1",
    }
    await stored_session(first, "source")
    for name, sql in altered.items():
        session = await stored_session(first, name)
        if name == "relabeled":
            await change_store(first, "UPDATE sessions SET turn = 2 WHERE name = :name", name=name)
        where = " WHERE session_key = (SELECT session_key FROM sessions WHERE name = :name)"
        await change_store(first, sql + where, name=name)
        assert await refusal(session.run("x")) == "session_invalid"
    session = await stored_session(first, "emptied")
    await change_store(
        first,
        "DELETE FROM session_parts WHERE session_key = (SELECT session_key FROM sessions WHERE name = :name)",
        name="emptied",
    )
    assert await refusal(session.run("x")) == "session_invalid"


async def test_sessions_of_other_owners_bundles_and_times_are_refused(first: hutch.Hutch) -> None:
    session = await stored_session(first, "mine")
    assert await refusal(first.session("mine", owner="b").variables()) == "session_not_found"
    assert await first.sessions(owner="b") == []
    await change_store(first, "UPDATE sessions SET owner = 'b' WHERE name = 'mine'")
    assert await refusal(first.session("mine", owner="b").run("x")) == "session_invalid"
    assert await refusal(session.variables()) == "session_not_found"

    session = await stored_session(first, "old-bundle")
    await change_store(first, "UPDATE sessions SET bundle = 'other' WHERE name = 'old-bundle'")
    assert await refusal(session.run("x")) == "session_incompatible"
    await session.delete()

    session = await stored_session(first, "expired")
    await change_store(first, "UPDATE sessions SET expires_at = '2020' WHERE name = 'expired'")
    assert await refusal(session.run("x")) == "session_expired"
    assert "expired" not in [info.id for info in await first.sessions()]
    store = await (await first._stateful_sessions())._open_store()
    assert await store.sessions.delete_expired(now()) == 1
    assert await value(session, "typeof x") == "undefined"


async def test_limits_of_an_owner(first: hutch.Hutch) -> None:
    sessions = await first._stateful_sessions()
    for n in range(MAX_SESSIONS):
        await sessions.create(f"s{n}", "many")
    assert await refusal(first.session("one-more", owner="many").run("1")) == "session_limit"
    await change_store(first, "UPDATE sessions SET bytes = 1073741824 WHERE owner = 'many' AND name = 's0'")
    await first.session("s1", owner="many").delete()
    assert await refusal(first.session("one-more", owner="many").run("1")) == "session_limit"


async def test_sessions_of_an_owner_share_a_limit_of_bytes(tmp_path: Path) -> None:
    async with hutch.Hutch(home=str(tmp_path), max_session_bytes_per_owner=280_000) as h:
        code = "const bytes = crypto.getRandomValues(new Uint8Array(65_536)); bytes.length"
        session = await stored_session(h, "first", code)
        copy = await session.fork("copy")
        # Another copy exceeds the limit, because the uncompressed size of the first copy counts until the
        # first copy is stored.
        assert await refusal(session.fork("another-copy")) == "session_limit"
        await copy.store()
        await change_store(h, "UPDATE sessions SET bytes = 280000 WHERE name = 'first'")
        assert await value(copy, "bytes.length") == 65_536
        await copy.store()
        assert await refusal(copy.run("1")) == "session_limit"
        await session.delete()
        assert await value(copy, "1 + 1") == 2


async def test_calls_of_a_turn_have_their_lines(first: hutch.Hutch) -> None:
    code = "let x = 1;\nawait tools.ask()"
    result = await first.session("lines").run(code, tools=[ask], on_log=lambda line: None)
    assert [call.line for call in result.calls] == [2]


async def ask() -> int:
    return 1


async def test_large_session_is_stored_in_parts_and_one_that_is_too_large_fails_its_turn(
    tmp_path: Path,
) -> None:
    fill = "Array.from({length: 20}, () => crypto.getRandomValues(new Uint8Array(60_000)))"
    async with hutch.Hutch(home=str(tmp_path), max_checkpoint_bytes=2_000_000) as h:
        session = await stored_session(h, "large", f"let chunks = {fill}; let last = chunks[19][59_999]")
        assert (await session.info()).bytes > 2 * PART_BYTES
        assert await value(session, "chunks[19][59_999] === last")
        result = await session.run(f"let more = {fill}")
        assert result.error is not None
        assert result.error.code == "memory_limit"
        assert "setting max_checkpoint_bytes" in result.error.message
        assert await value(session, "typeof more") == "undefined"


async def test_closing_stores_all_sessions_and_runs_are_recorded(settings: Settings) -> None:
    async with hutch.Hutch(settings=settings) as h:
        result = (await h.session("closing").run("let kept = 1")).raise_for_error()
    async with hutch.Hutch(settings=settings) as h:
        assert await value(h.session("closing"), "kept") == 1
        store = await (await h._stateful_sessions())._open_store()
        record = await store.runs.get(result.run_id)
        assert record is not None
        assert record.label == "closing"


@pytest.mark.parametrize("session_id", ["", "a b", "../x", "x" * 129, "é", 5])
def test_invalid_ids_are_refused(session_id: Any) -> None:
    with pytest.raises(InvalidExecution, match="session: expected 1 to 128 letters"):
        hutch.Hutch().session(session_id)
