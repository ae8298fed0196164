"""Gateway of another process, which scripts reach over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from hutch.egress.client.http1 import HttpExchange
from hutch.egress.client.models import FetchError
from hutch.errors import HutchError
from hutch.http.requests import RUN_HEADER
from hutch.protocols.toolscript.gateway.approvals import Approval, ApprovalAnswer, AskUser
from hutch.protocols.toolscript.gateway.client import GatewayClient, GatewayResponse, RawHeaders, body_parts
from hutch.protocols.toolscript.jail_server.http1 import JailRequest, JailResponse
from hutch.session.run import CallLog
from hutch.telemetry.trace_context import TRACEPARENT, TRACESTATE

logger = logging.getLogger("hutch.toolscript")

# Prefix that the gateway adds to the run ids that its clients send.
_REMOTE_PREFIX = "remote:"
# Interval for polling the waiting approvals. Most calls finish before the first poll.
POLL_SECONDS = 0.5

# Headers that belong to a connection, not to the message.
_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"te", b"trailer"})
# Headers that a script may not set: the gateway's own headers and Origin.
_RESERVED = frozenset(
    {b"host", b"authorization", b"origin", RUN_HEADER.encode(), TRACEPARENT.encode(), TRACESTATE.encode()}
)

PauseTimeout = Callable[[str, str], None]
ResumeTimeout = Callable[[str], None]


class RemoteGateway:
    """A gateway that is reached over HTTP. Scripts use a loopback address inside the jail."""

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ask: AskUser | None = None,
        pause_timeout: PauseTimeout = lambda _run, _tool: None,
        resume_timeout: ResumeTimeout = lambda _: None,
    ) -> None:
        """`ask` asks a person about calls that wait for an approval.

        `pause_timeout` gets the id of a run and the name of the tool when a call of the run starts to wait
        for an approval. `resume_timeout` gets the id when no call of the run waits any more. Raises
        InvalidExecution if `url` is not valid.
        """
        self._url = url.rstrip("/")
        self._token = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        self._client = GatewayClient(url, self._token)
        self._approvals = RemoteApprovals(self._client, ask, pause_timeout, resume_timeout)
        self._call_logs: dict[str, CallLog] = {}
        self._revision = str(time.time_ns() // 1_000_000)
        self.url = f"http://127.0.0.1:{self._client.port}"

    async def revision(self) -> str:
        """Returns an id that is different for every instance.

        The id makes every instance load the module again. That is faster than asking the gateway for its
        revision.
        """
        return self._revision

    @contextlib.contextmanager
    def record_calls(self, run_id: str) -> Iterator[CallLog]:
        """Yields an empty log, because only the process of the gateway sees the calls."""
        calls = self._call_logs[run_id] = CallLog()
        try:
            yield calls
        finally:
            del self._call_logs[run_id]

    def open_calls(self, run_id: str) -> list[str]:
        """Returns an empty list, because only the process of the gateway sees the calls."""
        return []

    async def declarations(self) -> str:
        response = await self._get("/runtime/tools.d.ts")
        if response.status == 404:
            response = await self._get("/runtime/tools.ts")
        if response.status != 200:
            raise HutchError(
                f"The gateway at {self._url} answered the request for its types with {response.status}."
            )
        return response.text

    async def check(self) -> None:
        """Checks the connection. Raises HutchError if the gateway is not reachable or rejects the token."""
        await self._get("/status")

    async def close(self) -> None:
        await self._approvals.close()
        await self._client.close()

    async def _get(self, path: str) -> GatewayResponse:
        try:
            response = await self._client.get(path)
        except FetchError as error:
            raise HutchError(
                f"The gateway at {self._url} cannot be reached: {error.message.removesuffix('.')}.",
                remedy="Start it with `hutch gateway start`, or name another with --gateway-url.",
            ) from None
        if response.status in (401, 403):
            raise HutchError(
                f"The gateway at {self._url} rejects the API key ({response.status}).",
                remedy="Set HUTCH_API_KEY to the token of the gateway.",
            )
        return response

    # --- requests of scripts ---

    async def handle(self, run_id: str | None, request: JailRequest, response: JailResponse) -> None:
        """Forwards a request of a script with the token and the run id."""
        path, query = request.raw_path.decode("ascii"), request.query.decode("ascii")
        headers = [*self._headers(run_id, request.headers)]
        started = False
        try:
            with self._approvals.open_call(run_id if path.startswith("/tools/") else None):
                target = f"{path}?{query}" if query else path
                body = request.take_body()
                async with self._client.request(request.method, target, headers, body) as exchange:
                    started = True
                    await _forward_response(exchange, response)
        except FetchError as error:
            if started:
                # The terminating chunk is not sent, so that the client notices the incomplete response.
                logger.warning("the gateway at %s ended its response early: %s", self._url, error)
            else:
                await _send_error(response, 502, f"The gateway at {self._url} cannot be reached: {error}")

    def _headers(self, run_id: str | None, headers: RawHeaders) -> RawHeaders:
        yield b"host", self._client.url.netloc.encode()
        yield from self._token
        if run_id is not None:
            yield RUN_HEADER.encode(), run_id.encode()
            calls = self._call_logs.get(run_id)
            trace = None if calls is None or calls.run is None else calls.run.trace
            for name, value in () if trace is None else trace.headers.items():
                yield name.encode(), value.encode()
        for field, content in headers:
            if field not in _RESERVED and field not in _HOP_BY_HOP:
                yield field, content


async def _forward_response(exchange: HttpExchange, response: JailResponse) -> None:
    headers = [(name, value) for name, value in exchange.headers if name not in _HOP_BY_HOP]
    await response.start(exchange.status, headers)
    async for part in body_parts(exchange):
        await response.write(part)
    await response.end()


async def _send_error(response: JailResponse, status: int, text: str) -> None:
    body = msgspec.json.encode({"error": {"message": text}})
    await response.send(status, [(b"content-type", b"application/json")], body)


# --- approvals ---


class _WaitingCall(msgspec.Struct, rename="camel"):
    """An entry of `GET /approvals`."""

    id: str
    server: str
    tool: str
    asked_at: str
    seconds: float
    run: str | None = None
    arguments: Any = None


class RemoteApprovals:
    """Polls the waiting approvals of the gateway while local scripts have open calls."""

    def __init__(
        self,
        client: GatewayClient,
        ask: AskUser | None,
        pause_timeout: PauseTimeout,
        resume_timeout: ResumeTimeout,
    ) -> None:
        self._client = client
        self._ask = ask
        self._pause_timeout = pause_timeout
        self._resume_timeout = resume_timeout
        self._calls: Counter[str] = Counter()
        self._poller: asyncio.Task[None] | None = None
        self._questions: dict[str, asyncio.Task[None]] = {}

    @contextlib.contextmanager
    def open_call(self, run: str | None) -> Iterator[None]:
        """Context manager for an open call. Polling starts with the first open call."""
        if run is None:
            yield
            return
        self._calls[run] += 1
        if self._poller is None or self._poller.done() or self._poller.cancelling():
            self._poller = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._calls -= Counter((run,))
            if not self._calls:
                self._poller.cancel()

    async def close(self) -> None:
        tasks = [*self._questions.values(), *([self._poller] if self._poller else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll(self) -> None:
        paused: set[str] = set()
        try:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                waiting = await self._waiting()
                tools = {call.run: f"{call.server}__{call.tool}" for call in reversed(waiting) if call.run}
                now = tools.keys()
                for run in now - paused:
                    self._pause_timeout(run, tools[run])
                for run in paused - now:
                    self._resume_timeout(run)
                paused = set(now)
                self._update_questions(waiting)
        except (FetchError, msgspec.DecodeError) as error:
            # Stop polling. If the gateway has no approvals or is unreachable, no call is waiting there.
            logger.debug("approvals of the gateway are not polled: %s", error)
        finally:
            for run in paused:
                self._resume_timeout(run)
            self._update_questions([])

    async def _waiting(self) -> list[_WaitingCall]:
        response = await self._client.get("/approvals")
        if response.status != 200:
            raise FetchError("protocol", f"/approvals answers {response.status}")
        calls = msgspec.json.decode(response.body, type=list[_WaitingCall])
        return [
            msgspec.structs.replace(call, run=run)
            for call in calls
            if call.run is not None and (run := call.run.removeprefix(_REMOTE_PREFIX)) in self._calls
        ]

    def _update_questions(self, waiting: list[_WaitingCall]) -> None:
        """Asks about new waiting calls, and stops asking about calls that are no longer waiting."""
        for id in self._questions.keys() - {call.id for call in waiting}:
            self._questions.pop(id).cancel()
        if self._ask is not None:
            for call in waiting:
                if call.id not in self._questions:
                    self._questions[call.id] = asyncio.create_task(self._ask_and_decide(self._ask, call))

    async def _ask_and_decide(self, ask: AskUser, call: _WaitingCall) -> None:
        approval = Approval(
            id=call.id,
            server=call.server,
            tool=call.tool,
            arguments=call.arguments,
            run=call.run,
            asked_at=call.asked_at,
            seconds=call.seconds,
        )
        answer = await ask(approval)
        if not isinstance(answer, ApprovalAnswer):
            answer = ApprovalAnswer(answer)
        with contextlib.suppress(FetchError):
            await self._client.post(f"/approvals/{call.id}", answer)
