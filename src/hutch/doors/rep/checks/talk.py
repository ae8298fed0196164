"""A conversation with a runtime under test: anything can be said to it, and what it says is read strictly."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hutch.doors.rep import answers
from hutch.doors.rep.answers import Mismatch
from hutch.doors.rep.checks.outcome import Failed
from hutch.doors.rep.codes import RpcError
from hutch.doors.rep.launch import Launched
from hutch.doors.rep.wire import Wire


class Talk:
    """One process, asked one thing after the other."""

    def __init__(self, launched: Launched, seconds: float) -> None:
        self.seconds = seconds
        """How long an answer may take."""
        self._heard: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._how = ""
        self._last_id = 0
        self._is_over = False
        self._wire = Wire(launched)
        self._wire.on_line = self._heard.put_nowait
        self._wire.on_end = self._ended

    @property
    def is_over(self) -> bool:
        return self._is_over

    def _ended(self, how: str) -> None:
        self._is_over = True
        self._how = how
        self._heard.put_nowait(None)

    def say(self, line: bytes) -> None:
        self._wire.send(line + b"\n")

    async def hear(self, what: str) -> bytes:
        """The next line. Raises Failed."""
        try:
            async with asyncio.timeout(self.seconds):
                line = await self._heard.get()
        except TimeoutError:
            raise Failed(f"{what}: no answer within {self.seconds:g} s") from None
        if line is None:
            self._heard.put_nowait(None)
            raise Failed(f"{what}: {self._how}")
        return line

    async def answer(self, what: str, id: object) -> answers.Answer:
        """The next line as the answer to a request. Raises Failed."""
        try:
            told = answers.read(await self.hear(what))
        except Mismatch as mismatch:
            raise Failed(f"{what}: {mismatch}") from None
        if told.id != id:
            raise Failed(f"{what}: expected id {json.dumps(id)}, got {json.dumps(told.id)}")
        return told

    async def call(self, method: str, *, id: int | None = None, **params: Any) -> Any:
        """The result. Raises RpcError, Failed."""
        self._last_id = self._last_id + 1 if id is None else id
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": f"Runtime.{method}", "params": params}
        self.say(json.dumps(request).encode())
        told = await self.answer(method, self._last_id)
        if told.error is not None:
            raise told.error
        return told.result

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        """The result, which is an object. Raises Failed."""
        try:
            result = await self.call(method, **params)
        except RpcError as error:
            raise Failed(f"{method}: error {error.code}: {error.message}") from None
        if not isinstance(result, dict):
            raise Failed(f"{method}: expected an object as result, got {json.dumps(result)[:80]}")
        return result

    async def refusal(self, method: str, **params: Any) -> RpcError:
        """The error that there should be. Raises Failed."""
        try:
            result = await self.call(method, **params)
        except RpcError as error:
            return error
        raise Failed(f"{method}: expected an error, got the result {json.dumps(result)[:80]}")

    async def still_answers(self) -> None:
        """Raises Failed."""
        await self.result("Capabilities")

    async def left(self, seconds: float) -> bool:
        """Closes its input; whether it has ended by itself within so many seconds."""
        self._wire.end_input()
        return await self._wire.exited(seconds)

    async def close(self) -> None:
        self._is_over = True
        await self._wire.close(at_once=True)
