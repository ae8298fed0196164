"""A run is not lost or executed twice if a process dies between any two steps of suspending and
resuming it.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

import hutch
from hutch.errors import StoreError
from hutch.store.backends.base import SqlStatement
from hutch.store.store import Store

CODE = "return [await tools.ask({}), await tools.count({})]"
PAST = "2000-01-01T00:00:00.000Z"


class DyingTable:
    """Table of checkpoints that simulates the death of its process, before or after one call of one method.
    Afterwards, the process changes nothing more in the store.
    """

    def __init__(self, table: Any, method: str, when: str, number: int = 1) -> None:
        """`number` is the number of the call at which the process dies. The first call of the method has
        number 1.
        """
        self._table, self._method, self._when = table, method, when
        self._calls_left = number
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            self._calls_left -= name == self._method
            is_last = name == self._method and self._calls_left == 0
            if is_last and self._when == "before":
                self.is_dead = True
            if self.is_dead:
                raise StoreError("the process is dead")
            result = await getattr(self._table, name)(*args, **options)
            if is_last:
                self.is_dead = True
                raise StoreError("the process is dead")
            return result

        return call


@pytest.fixture(scope="module")
async def homes(anyio_backend: object, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    home = str(tmp_path_factory.mktemp("home"))
    async with hutch.Hutch(home=home) as first, hutch.Hutch(home=home) as second:
        yield first, second


async def store_of(h: hutch.Hutch) -> Store:
    return await (await h._opened())._open_store()


CONTINUES, LOST, ENDED, INTERRUPTED = "continues", "lost", "ended", "interrupted"


@pytest.mark.parametrize(
    ("method", "when", "expected"),
    [
        ("save", "before", LOST),
        ("save", "after", CONTINUES),
        ("answer", "before", CONTINUES),
        ("answer", "after", CONTINUES),
        ("take", "before", CONTINUES),
        ("take", "after", CONTINUES),
        ("state", "before", CONTINUES),
        ("answers", "after", CONTINUES),
        ("mark_called", "before", CONTINUES),
        ("mark_called", "after", INTERRUPTED),
        ("end", "before", INTERRUPTED),
        ("end", "after", ENDED),
    ],
)
async def test_run_survives_or_says_that_it_did_not(
    homes: Any, monkeypatch: pytest.MonkeyPatch, method: str, when: str, expected: str
) -> None:
    first, second = homes
    calls: list[str] = []

    def ask() -> str:
        raise hutch.Suspend("a person")

    def count(context: hutch.ToolContext) -> int:
        calls.append(context.idempotency_key)
        return len(calls)

    tools = [ask, count]
    store = await store_of(first)
    table = store.checkpoints
    dying = DyingTable(table, method, when)
    monkeypatch.setattr(store, "checkpoints", dying)
    result = await first.run(CODE, tools=tools)
    if not dying.is_dead:
        (call,) = result.pending_calls
        with contextlib.suppress(StoreError):
            await (await first.resume(result.run_id, {call.call_id: "yes"}, tools=tools)).result()
    assert dying.is_dead
    sql = "UPDATE checkpoints SET held_until = :past WHERE run_id = :run_id AND holder IS NOT NULL"
    await store._database.write(SqlStatement(sql, {"past": PAST, "run_id": result.run_id}))

    waiting = [call for call in await table.calls(result.run_id) if not call.has_answer]
    answers = {call.call_id: "yes" for call in waiting}
    if expected == CONTINUES:
        continued = await (await second.resume(result.run_id, answers, tools=tools)).result()
        assert continued.result == ["yes", 1], continued
    else:
        with pytest.raises(hutch.ResumeError) as caught:
            await second.resume(result.run_id, answers, tools=tools)
        assert caught.value.code == ("checkpoint_not_found" if expected == LOST else "checkpoint_ended")
    if expected == ENDED:
        ended = await (await second._opened()).ends.result(result.run_id, "default")
        assert ended is not None
        assert ended.result == ["yes", 1]
    assert len(calls) <= 1
