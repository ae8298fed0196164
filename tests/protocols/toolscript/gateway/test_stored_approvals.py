"""Approvals of suspended runs when servers die or share a store. Each server here is a `StoredApprovals`. Its
`close` writes nothing, so a test closes it to simulate a killed server.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch.protocols.toolscript.gateway.approvals import ApprovalAnswer, ApprovalPolicy, Approvals
from hutch.protocols.toolscript.gateway.stored_approvals import (
    INTERRUPTED,
    StoredApprovals,
    suspend_until_approved,
)
from hutch.store.backends.base import SqlStatement

CODE = "try { return await tools.pay({}) } catch (e) { return e.message }"


async def pay() -> None:
    raise suspend_until_approved("bank", "pay", {"amount": 1})


class Server:
    def __init__(self, h: hutch.Hutch) -> None:
        assert h._app is not None
        self.runs = h._app.suspended_runs
        self.approvals = Approvals(ApprovalPolicy({"*": "ask"}))
        self.calls, self.calling, self.go_on = 0, asyncio.Event(), asyncio.Event()
        self.stored = StoredApprovals(self.approvals, self.runs, self._call, lambda _: True)

    async def _call(self, *args: Any) -> str:
        self.calls += 1
        self.calling.set()
        await self.go_on.wait()
        return "paid"

    @property
    def questions(self) -> list[str]:
        return [approval.id for approval in self.approvals.pending()]

    async def asked(self) -> list[str]:
        """Synchronizes with the store, which may add or withdraw questions. Returns the questions that are
        open afterwards.
        """
        await self.stored.synchronize()
        await self.let_tasks_run()
        return self.questions

    async def let_tasks_run(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    def decide(self, id: str) -> None:
        assert self.approvals.decide(id, ApprovalAnswer("allow", decided_by="Bo"))


@pytest.fixture
async def h(tmp_path: Path) -> AsyncIterator[hutch.Hutch]:
    async with hutch.Hutch(home=str(tmp_path)) as opened:
        yield opened


@pytest.fixture
async def servers(h: hutch.Hutch) -> AsyncIterator[tuple[Server, Server]]:
    await h.open()
    pair = Server(h), Server(h)
    yield pair
    for server in pair:
        await server.stored.close()


async def end_hold(h: hutch.Hutch) -> None:
    store = await (await h._opened())._open_store()
    await store._database.write(SqlStatement("UPDATE pending_calls SET held_until = '2000'", {}))


async def result_of(h: hutch.Hutch, run_id: str) -> Any:
    return (await (await h.resume(run_id, tools=[pay])).result()).result


async def test_question_survives_the_death_of_its_server(
    h: hutch.Hutch, servers: tuple[Server, Server]
) -> None:
    first, second = servers
    run_id = (await h.run(CODE, tools=[pay])).run_id
    before = await first.asked()
    await first.stored.close()
    assert await second.asked() == before
    second.go_on.set()
    second.decide(before[0])
    await second.calling.wait()
    await second.stored.drain(10)
    assert await result_of(h, run_id) == "paid"
    assert (first.calls, second.calls) == (0, 1)


async def test_call_of_a_dead_server_is_not_made_again(
    h: hutch.Hutch, servers: tuple[Server, Server]
) -> None:
    first, second = servers
    run_id = (await h.run(CODE, tools=[pay])).run_id
    (question,) = await first.asked()
    first.decide(question)
    await first.calling.wait()
    await first.stored.close()
    sql = "SELECT decision, decided_by, decided_at, decided_digest FROM pending_calls WHERE run_id = :run_id"
    store = await (await h._opened())._open_store()
    ((decision, by, at, digest),) = await store._database.scan(sql, run_id=run_id)
    assert (decision, by) == ("allow", "Bo")
    assert abs(datetime.fromisoformat(at).timestamp() - time.time()) < 60
    assert digest == hashlib.sha256(b'{"amount":1}').hexdigest()
    # The second server does nothing while the first server may still be alive.
    assert await second.asked() == []
    assert await first.runs.ends.result(run_id, "default") is None
    await end_hold(h)
    assert await second.asked() == []
    assert await result_of(h, run_id) == INTERRUPTED
    assert (first.calls, second.calls) == (1, 0)


async def test_other_server_waits_while_an_approved_call_is_made(
    h: hutch.Hutch, servers: tuple[Server, Server]
) -> None:
    first, second = servers
    run_id = (await h.run(CODE, tools=[pay])).run_id
    (question,) = await first.asked()
    assert await second.asked() == [question]
    first.decide(question)
    await first.calling.wait()
    assert await second.asked() == []
    first.go_on.set()
    await first.stored.drain(10)
    assert await result_of(h, run_id) == "paid"
    assert (first.calls, second.calls) == (1, 0)


async def test_decisions_on_two_servers_make_one_call(h: hutch.Hutch, servers: tuple[Server, Server]) -> None:
    run_id = (await h.run(CODE, tools=[pay])).run_id
    for server in servers:
        (question,) = await server.asked()
        server.go_on.set()
    for server in servers:
        server.decide(question)
    await servers[0].let_tasks_run()
    await asyncio.gather(*(server.stored.drain(10) for server in servers))
    assert await result_of(h, run_id) == "paid"
    assert sum(server.calls for server in servers) == 1
