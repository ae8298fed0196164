"""A gateway elsewhere as what scripts can reach."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from hutch.doors.marks import RUN
from hutch.doors.presence import while_there
from hutch.doors.toolscript.approvals import Ask
from hutch.doors.toolscript.client import Answer, Client, parts
from hutch.doors.toolscript.questions import Questions, Told
from hutch.doors.toolscript.relay import Relay
from hutch.egress.exchange import Exchange
from hutch.egress.fetch import FetchError
from hutch.errors import HutchError
from hutch.session.host import Calls

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

logger = logging.getLogger("hutch.toolscript")

# What belongs to one connection, not to what is said over it.
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"})


class There:
    """A gateway that is reached by HTTP. Scripts are told of an address of their own for it."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ask: Ask | None = None,
        hold: Told = lambda _: None,
        go_on: Told = lambda _: None,
    ) -> None:
        """`ask` is asked about calls that wait for an approval; `hold` and `go_on` are told the run then.

        Raises InvalidExecution for what is no URL of a gateway.
        """
        self._url = url.rstrip("/")
        self._client = Client(url, [] if token is None else [(b"authorization", f"Bearer {token}".encode())])
        self._questions = Questions(self._client, ask, hold, go_on)
        self._session = str(time.time_ns() // 1_000_000)
        self.url = f"http://127.0.0.1:{self._client.port}"
        self.relay = Relay(self._answer, host=self._client.url.netloc, token=token)

    async def session(self) -> str:
        """To ask would take longer than to read the tools' module once more."""
        return self._session

    def calls_of(self, run_id: str) -> AbstractContextManager[Calls]:
        """None: they are that gateway's to know."""
        return nullcontext(Calls())

    async def declarations(self) -> str:
        answer = await self._get("/runtime/tools.d.ts")
        if answer.status == 404:
            answer = await self._get("/runtime/tools.ts")
        if answer.status != 200:
            raise HutchError(f"The gateway at {self._url} answers {answer.status} for its types.")
        return answer.text

    async def check(self) -> None:
        """Raises HutchError if there is none, or if it does not let us in."""
        await self._get("/status")

    async def close(self) -> None:
        await self._questions.close()
        await self._client.close()

    async def _get(self, path: str) -> Answer:
        try:
            answer = await self._client.get(path)
        except FetchError as error:
            raise HutchError(
                f"The gateway at {self._url} cannot be reached: {error.message.removesuffix('.')}.",
                remedy="Start it with `hutch gateway start`, or name another with --gateway-url.",
            ) from None
        if answer.status in (401, 403):
            raise HutchError(
                f"The gateway at {self._url} does not let us in ({answer.status}).",
                remedy="Set HUTCH_API_KEY to its token.",
            )
        return answer

    # --- what scripts ask ---

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _read(receive)
        if body is not None:
            await while_there(receive, self._ask(scope, body, send))

    async def _ask(self, scope: Scope, body: bytes, send: Send) -> None:
        path = scope["raw_path"].decode("ascii")
        query = scope["query_string"].decode("ascii")
        headers = [(name, value) for name, value in scope["headers"] if name.lower() not in _HOP_BY_HOP]
        answered = False
        try:
            with self._questions.during(scope[RUN] if path.startswith("/tools/") else None):
                target = f"{path}?{query}" if query else path
                async with self._client.ask(scope["method"], target, headers, body) as exchange:
                    answered = True
                    await _pass_on(exchange, send)
        except FetchError as error:
            if answered:
                # Without its end the answer cannot be taken for a whole one.
                logger.warning("the gateway at %s broke off its answer: %s", self._url, error)
            else:
                await _say(send, 502, f"The gateway at {self._url} cannot be reached: {error}")


async def _read(receive: Receive) -> bytes | None:
    """A request's body, which the relay bounds; None if nobody waits for an answer any more."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _pass_on(exchange: Exchange, send: Send) -> None:
    kept = [(name, value) for name, value in exchange.headers if name not in _HOP_BY_HOP]
    await send({"type": "http.response.start", "status": exchange.status, "headers": kept})
    async for part in parts(exchange):
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _say(send: Send, status: int, text: str) -> None:
    body = msgspec.json.encode({"error": {"message": text}})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
