"""A queue with a handler that the test controls, on a real store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import ExecutionError
from hutch.kernel.execution import Execution
from hutch.queue.attempt import Attempt
from hutch.queue.models import Accepted, HandlerResult, QueueCaller, RunOptions, RunRequest
from hutch.queue.queue import RunQueue
from hutch.session.run import RunHandle
from hutch.settings import Settings
from hutch.store.store import Store
from hutch.store.tables.queue.queued_runs import QueuedRunRow

OK = HandlerResult(ok=True, outcome="ok", body=b'{"ok":true}')
FAILED = HandlerResult(ok=False, outcome="runtime_error", body=b'{"ok":false,"error":{"message":"no"}}')
LEASE_SECONDS = 1.0


class FakeHandler:
    """Handler of the kind `fake`. Records the attempts that it starts. `behaviour` decides how an attempt
    ends.
    """

    kind = "fake"
    protocol = "execbox"
    has_hidden_effects = False

    def __init__(self) -> None:
        self.started: list[Attempt] = []
        self.is_repeatable = False
        self.behaviour: Callable[[Attempt], Awaitable[HandlerResult]] = self.succeed

    async def succeed(self, attempt: Attempt) -> HandlerResult:
        return OK

    async def fail(self, attempt: Attempt) -> HandlerResult:
        return FAILED

    async def parse(self, body: dict[str, Any], caller: QueueCaller) -> RunRequest:
        return request(**body)

    async def run(self, attempt: Attempt) -> HandlerResult:
        self.started.append(attempt)
        await attempt.begin(RunHandle())
        return await self.behaviour(attempt)


class FakeKernel:
    """Fake kernel that records the error codes of runs that were never started."""

    def __init__(self) -> None:
        self.records: dict[str, str] = {}

    def record_unstarted(self, execution: Execution, run: RunHandle, error: ExecutionError) -> None:
        self.records[run.id] = error.code


class QueueHarness:
    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.handler = FakeHandler()
        self.kernel: Any = FakeKernel()
        options: dict[str, Any] = {"async_lease_seconds": LEASE_SECONDS, "max_async_runs": 4, **settings}
        self.queue = RunQueue(Settings(**options), self.kernel, self._store)
        self.queue.add_handler(self.handler)  # type: ignore[arg-type]

    async def _store(self) -> Store:
        return self.store

    async def __aenter__(self) -> QueueHarness:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.queue.close()

    async def add(self, owner: str = "local", body: Any = None, **options: Any) -> Accepted:
        return await self.queue.submit(request(body=body), QueueCaller(owner), RunOptions(**options))

    async def row(self, run_id: str) -> QueuedRunRow:
        row = await self.queue.find(run_id)
        assert row is not None
        return row

    async def until(self, run_id: str, *states: str) -> QueuedRunRow:
        """Waits until the run is in one of these states."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while (row := await self.row(run_id)).state not in states:  # noqa: ASYNC110 - in a database
                await asyncio.sleep(0.01)
        return row


def request(**body: Any) -> RunRequest:
    return RunRequest(kind="fake", protocol="execbox", label="a run", body=json.dumps(body).encode())
