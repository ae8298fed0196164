"""A gateway elsewhere as what scripts can reach."""

from __future__ import annotations

import logging
import ssl
import time

import httpx2
import msgspec
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from hutch.doors.gate import RUN
from hutch.doors.presence import while_there
from hutch.doors.toolscript.approvals import Ask
from hutch.doors.toolscript.questions import Questions, Told
from hutch.doors.toolscript.relay import Relay
from hutch.errors import HutchError, InvalidExecution

logger = logging.getLogger("hutch.toolscript")

_ANSWER_SECONDS = 30.0
# What belongs to one connection, not to what is said over it.
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"})
# The client has undone any encoding.
_OF_THE_BODY = frozenset({b"content-length", b"content-encoding"})


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
        """`ask` is asked about calls that wait for an approval; `hold` and `go_on` are told the run then."""
        parsed = checked_url(url)
        port = parsed.port or (443 if parsed.scheme == "https" else 80)
        self.url = f"http://127.0.0.1:{port}"
        self._url = url.rstrip("/")
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # Whom to trust takes 50 ms to read, which is for nothing where nobody is asked for a certificate.
        trusted = httpx2.create_ssl_context(trust_env=False) if parsed.scheme == "https" else False
        self._client = httpx2.AsyncClient(
            base_url=self._url, headers=headers, timeout=_ANSWER_SECONDS, trust_env=False, verify=trusted
        )
        self._questions = Questions(self._client, ask, hold, go_on)
        self._application = _Application(self._url, self._questions, trusted)
        self.relay = Relay(self._application, host=parsed.netloc.decode(), token=token)

    async def session(self) -> str:
        """One that cannot say when its tools change is taken to change all the time."""
        answer = await self._get("/status")
        try:
            return str(answer.json()["revision"])
        except (ValueError, TypeError, KeyError):
            return str(time.time_ns() // 1_000_000)

    async def declarations(self) -> str:
        answer = await self._get("/runtime/tools.d.ts")
        if answer.status_code == 404:
            answer = await self._get("/runtime/tools.ts")
        if answer.status_code != 200:
            raise HutchError(f"The gateway at {self._url} answers {answer.status_code} for its types.")
        return answer.text

    async def close(self) -> None:
        await self._questions.close()
        await self._client.aclose()
        await self._application.close()

    async def _get(self, path: str) -> httpx2.Response:
        try:
            answer = await self._client.get(path)
        except httpx2.HTTPError as error:
            raise HutchError(
                f"The gateway at {self._url} cannot be reached: {error}.",
                remedy="Start it with `hutch gateway start`, or name another with --gateway-url.",
            ) from None
        if answer.status_code in (401, 403):
            raise HutchError(
                f"The gateway at {self._url} does not let us in ({answer.status_code}).",
                remedy="Set HUTCH_API_KEY to its token.",
            )
        return answer


def checked_url(url: str) -> httpx2.URL:
    """Raises InvalidExecution."""
    why = "one looks like http://localhost:4111"
    try:
        parsed = httpx2.URL(url)
        if parsed.scheme in ("http", "https") and parsed.host:
            return parsed
    except httpx2.InvalidURL as error:
        why = str(error)
    raise InvalidExecution("--gateway-url", f"{url!r} is no URL of a gateway: {why}")


class _Application:
    """An application that asks another server."""

    def __init__(self, url: str, questions: Questions, trusted: ssl.SSLContext | bool) -> None:
        self._client = httpx2.AsyncClient(base_url=url, timeout=None, trust_env=False, verify=trusted)
        self._questions = questions
        self._url = url

    async def close(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await _read(receive)
            await while_there(receive, self._ask(scope, body, send))
        except ClientDisconnect:
            pass  # nobody hears it

    async def _ask(self, scope: Scope, body: bytes, send: Send) -> None:
        path = scope["raw_path"].decode("ascii")
        query = scope["query_string"].decode("ascii")
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP_BY_HOP]
        request = self._client.build_request(
            scope["method"], f"{path}?{query}" if query else path, headers=headers, content=body
        )
        try:
            with self._questions.during(scope[RUN] if path.startswith("/tools/") else None):
                answer = await self._client.send(request, stream=True)
        except (httpx2.HTTPError, RuntimeError) as error:
            # The latter when we are being closed.
            await _say(send, 502, f"The gateway at {self._url} cannot be reached: {error}")
            return
        try:
            await _pass_on(answer, send)
        except httpx2.HTTPError as error:
            # Without its end the answer cannot be taken for a whole one.
            logger.warning("the gateway at %s broke off its answer: %s", self._url, error)
        finally:
            await answer.aclose()


async def _read(receive: Receive) -> bytes:
    """A request's body, which the relay bounds. Raises ClientDisconnect."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


async def _pass_on(answer: httpx2.Response, send: Send) -> None:
    dropped = _HOP_BY_HOP | _OF_THE_BODY
    kept = [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in dropped]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
    async for chunk in answer.aiter_bytes():
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _say(send: Send, status: int, text: str) -> None:
    body = msgspec.json.encode({"error": {"message": text}})
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
