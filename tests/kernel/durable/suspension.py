"""Code, tools and assertions for suspended runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import hutch
from hutch.store.backends.base import SqlStatement
from hutch.store.store import Store
from hutch.text import format_rfc3339

ASK = "return await tools.ask({what: 'lunch'})"
PAST = format_rfc3339(datetime.now(UTC) - timedelta(days=1))


class Tools:
    """Tools that record their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.keys: list[str] = []
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()

    async def ask(self, what: str) -> Any:
        """Asks a person."""
        raise hutch.Suspend(f"approval of {what}")

    async def later(self, token: str) -> hutch.Deferred:
        return hutch.Deferred(token)

    async def count(self, n: int, context: hutch.ToolContext) -> int:
        self.calls.append(n)
        self.keys.append(context.idempotency_key)
        return n

    async def wait(self) -> None:
        self.waiting.set()
        await self.go_on.wait()

    @property
    def all(self) -> list[Any]:
        return [self.ask, self.later, self.count, self.wait]


async def store_of(h: hutch.Hutch) -> Store:
    return await (await h._opened())._open_store()


async def suspend(h: hutch.Hutch, tools: Tools, code: str = ASK, **options: Any) -> tuple[str, str]:
    """Runs code until it waits for one call. Returns the ids of the run and of the call."""
    result = await h.run(code, tools=tools.all, **options)
    assert result.error is not None, result
    assert result.error.code == "suspended", result
    (call,) = result.pending_calls
    return result.run_id, call.call_id


async def resumed(h: hutch.Hutch, tools: Tools, run_id: str, *args: Any, **options: Any) -> hutch.Result:
    return await (await h.resume(run_id, *args, tools=tools.all, **options)).result()


async def update(h: hutch.Hutch, sql: str, **values: Any) -> None:
    await (await store_of(h))._database.write(SqlStatement(sql, values))


@asynccontextmanager
async def refused(code: str) -> AsyncIterator[None]:
    with pytest.raises(hutch.ResumeError) as caught:
        yield
    assert caught.value.code == code, caught.value
