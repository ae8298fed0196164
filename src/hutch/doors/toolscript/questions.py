"""Calls that wait for an approval in a gateway elsewhere: time stops, and somebody here is asked."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from hutch.doors.toolscript.approvals import Answer, Approval, Ask
from hutch.doors.toolscript.client import Client
from hutch.egress.fetch import FetchError

logger = logging.getLogger("hutch.toolscript")

# How the gateway names the runs of others.
_REMOTE = "remote:"
# How soon we notice that a call waits; most calls are over by then.
LOOK_SECONDS = 0.5

Told = Callable[[str], None]


class _Waiting(msgspec.Struct, rename="camel"):
    """An entry of `GET /approvals`."""

    id: str
    server: str
    tool: str
    asked_at: str
    seconds: float
    run: str | None = None
    arguments: Any = None


class Questions:
    """Looks what waits, for as long as scripts of ours have calls open."""

    def __init__(self, client: Client, ask: Ask | None, hold: Told, go_on: Told) -> None:
        self._client = client
        self._ask = ask
        self._hold = hold
        self._go_on = go_on
        self._calls: Counter[str] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}

    @contextlib.contextmanager
    def during(self, run: str | None) -> Iterator[None]:
        """While a call of this run is open."""
        if run is None:
            yield
            return
        self._calls[run] += 1
        if self._looking is None or self._looking.done() or self._looking.cancelling():
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._calls -= Counter((run,))
            if not self._calls:
                self._looking.cancel()

    async def close(self) -> None:
        tasks = [*self._asked.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        held: set[str] = set()
        try:
            while True:
                await asyncio.sleep(LOOK_SECONDS)
                waiting = await self._waiting()
                now = {each.run for each in waiting if each.run is not None}
                for run in now - held:
                    self._hold(run)
                for run in held - now:
                    self._go_on(run)
                held = now
                self._question(waiting)
        except (FetchError, msgspec.DecodeError) as error:
            # A gateway that has no approvals, or is gone: then nothing waits there.
            logger.debug("approvals are not looked after: %s", error)
        finally:
            for run in held:
                self._go_on(run)
            self._question([])

    async def _waiting(self) -> list[_Waiting]:
        answer = await self._client.get("/approvals")
        if answer.status != 200:
            raise FetchError("protocol", f"/approvals answers {answer.status}")
        found = msgspec.json.decode(answer.body, type=list[_Waiting])
        return [
            msgspec.structs.replace(each, run=run)
            for each in found
            if each.run is not None and (run := each.run.removeprefix(_REMOTE)) in self._calls
        ]

    def _question(self, waiting: list[_Waiting]) -> None:
        """Asks about what is new, and stops asking about what is decided."""
        for id in self._asked.keys() - {each.id for each in waiting}:
            self._asked.pop(id).cancel()
        if self._ask is not None:
            for each in waiting:
                if each.id not in self._asked:
                    self._asked[each.id] = asyncio.create_task(self._settle(self._ask, each))

    async def _settle(self, ask: Ask, each: _Waiting) -> None:
        approval = Approval(
            id=each.id,
            server=each.server,
            tool=each.tool,
            arguments=each.arguments,
            run=each.run,
            asked_at=each.asked_at,
            seconds=each.seconds,
        )
        said = await ask(approval)
        answer = said if isinstance(said, Answer) else Answer(said)
        with contextlib.suppress(FetchError):
            await self._client.post(f"/approvals/{each.id}", answer)
