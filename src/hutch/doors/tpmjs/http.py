"""The door's routes: how a request comes in, is run while its client is there, and is answered."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from hutch.doors.gate import Gate
from hutch.doors.paths import Lane
from hutch.doors.presence import while_there
from hutch.doors.refusals import Refusal
from hutch.doors.tpmjs import answers, openapi, requests, streaming
from hutch.doors.tpmjs.admission import Places, Rate, retry_after
from hutch.doors.tpmjs.answers import Answer, Failed
from hutch.doors.tpmjs.calls import Events, ToolCall, Tools
from hutch.doors.tpmjs.describing import Descriptions
from hutch.doors.tpmjs.info import info
from hutch.errors import Busy, InvalidPackage
from hutch.sandbox.verdict import Verdict
from hutch.settings import Settings

logger = logging.getLogger("hutch.tpmjs")

DOOR = "tpmjs"
# Of one batch; the others of it wait.
BATCH_AT_ONCE = 8
# Bodies that take long enough to parse for others to notice: one after the other, with a pause for these.
_LARGE_BODY = 256 * 1024


def routes(
    tools: Tools, gate: Gate, settings: Settings, verdict: Verdict, deno_version: str
) -> list[BaseRoute]:
    door = Door(tools, gate, settings)

    def public(body: dict[str, Any]) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            return gate.refuse(request, public=True) or JSONResponse(body)

        return show

    def post(path: str, work: Work) -> BaseRoute:
        return Lane(path, Errand(door, work), methods=["POST"])

    return [
        Lane("/info", public(info(settings, verdict, deno_version))),
        Lane("/openapi.json", public(openapi.document(settings))),
        post("/execute-tool", door.execute),
        post("/execute-batch", door.batch),
        post("/load-and-describe", door.describe),
        post("/validate-tool", door.describe),
    ]


class Visit:
    """A request on its way."""

    def __init__(self, request: Request, settings: Settings) -> None:
        self.request = request
        self.version = requests.version_of(request, strings=settings.tpmjs_string_errors)
        self.owner = ""
        """Known once it was let in."""
        self.began = asyncio.get_running_loop().time()
        self.deadline = self.began + settings.request_seconds

    @property
    def payer(self) -> str:
        """Whose calls are counted together: the key's, or those of an address."""
        address = self.request.client.host if self.request.client else ""
        return address if self.owner == "local" else self.owner

    def failed(self, failure: Failed) -> Answer:
        return answers.failed(failure, self.version, since(self.began))


def since(began: float) -> int:
    return int((asyncio.get_running_loop().time() - began) * 1000)


Work = Callable[[Visit, Any], Awaitable[ASGIApp]]


class Errand:
    """A route that runs something: an application of its own, to be there until its answer is sent."""

    def __init__(self, door: Door, work: Work) -> None:
        self._door = door
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._door
        visit = Visit(Request(scope, receive), door.settings)
        visitor = await door.gate.visitor(visit.request, DOOR, any_origin=True)
        if isinstance(visitor, Refusal):
            status, message, headers = visitor
            failure = Failed(answers.REFUSED[status], message, headers=headers)
            await answers.failed(failure, visit.version, None).response()(scope, receive, send)
            return
        visit.owner = visitor.owner
        try:
            with door.gate.visit():
                answer = await door.answer(visit, self._work)
                await answer(scope, receive, send)
        except Busy as busy:
            await visit.failed(as_failed(busy)).response()(scope, receive, send)


class Door:
    """What the routes share."""

    def __init__(self, tools: Tools, gate: Gate, settings: Settings) -> None:
        self.gate = gate
        self.settings = settings
        self._tools = tools
        self._places = Places(settings.max_tools)
        self._rate = Rate(settings.rate_limit)
        self._descriptions = Descriptions(tools, settings.latest_seconds)
        self._large_body = asyncio.Lock()

    async def answer(self, visit: Visit, work: Work) -> ASGIApp:
        """Whatever comes of a request, as something that can be sent."""
        try:
            # Told before the body is read: it may be long.
            self._places.check()
            self._rate.check(visit.payer)
            requests.check_headers(visit.request, self.settings.max_body_bytes)
            return await work(visit, await self._body(visit))
        except ClientDisconnect:
            return Response()  # nobody hears it
        except Exception as error:
            return visit.failed(as_failed(error)).response()

    async def _body(self, visit: Visit) -> Any:
        try:
            async with asyncio.timeout_at(visit.deadline):
                body = await requests.read_body(visit.request, self.settings.max_body_bytes)
        except TimeoutError:
            message = f"body: did not come within {self.settings.request_seconds:g} s"
            raise Failed("invalid_request", message) from None
        if len(body) < _LARGE_BODY:
            return requests.parse_body(body)
        async with self._large_body:
            value = requests.parse_body(body)
            await asyncio.sleep(0)
        return value

    # --- the routes' work ---

    async def execute(self, visit: Visit, body: Any) -> ASGIApp:
        call = requests.parse_call(body, visit.owner)
        if requests.wants_stream(visit.request):
            return Stream(self, visit, call)
        answer = await while_there(visit.request.receive, self.run(visit, call), self.gate)
        return answer.response()

    async def batch(self, visit: Visit, body: Any) -> ASGIApp:
        calls = requests.parse_batch(body, visit.owner)
        self._rate.count(visit.payer, len(calls) - 1)
        turns = asyncio.Semaphore(BATCH_AT_ONCE)

        async def in_turn(call: ToolCall) -> Answer:
            async with turns:
                return await self.run(visit, call)

        async def all_of_them() -> list[Answer]:
            return await asyncio.gather(*map(in_turn, calls))

        results = await while_there(visit.request.receive, all_of_them(), self.gate)
        return answers.together(results, since(visit.began)).response()

    async def describe(self, visit: Visit, body: Any) -> ASGIApp:
        call = requests.parse_call(body, visit.owner)
        known = self._descriptions.known(call)
        if known is not None:
            return answers.described(*known).response()

        async def ask(began: float) -> Answer:
            tool, failure, version = await self._descriptions.ask(call)
            if tool is not None and failure is None:
                return answers.described(tool, version)
            if failure is None:
                raise Failed("internal", "The tool was not described")
            more = {} if version is None else {"resolvedVersion": version}
            return answers.failed(Failed.of(failure), visit.version, since(began), **more)

        answer = await while_there(visit.request.receive, self._attempt(visit, ask), self.gate)
        return answer.response()

    # --- what the work is made of ---

    async def run(self, visit: Visit, call: ToolCall, events: Events | None = None) -> Answer:
        """Executes one call, to an answer in any case."""

        async def execute(began: float) -> Answer:
            outcome = await self._tools.execute(call, events)
            return answers.executed(outcome, visit.version, since(began))

        return await self._attempt(visit, execute)

    async def _attempt(self, visit: Visit, action: Callable[[float], Awaitable[Answer]]) -> Answer:
        began = asyncio.get_running_loop().time()
        clock = asyncio.timeout_at(visit.deadline)
        try:
            with self._places.taken():
                async with clock:
                    return await action(began)
        except Exception as error:
            if isinstance(error, TimeoutError) and clock.expired():
                message = f"The request took longer than {self.settings.request_seconds:g} s"
                failure = Failed("timeout", message, retryable=True)
            else:
                failure = as_failed(error)
            return answers.failed(failure, visit.version, since(began))


class Stream:
    """An execution that is heard of while it goes on; its result is the last event."""

    def __init__(self, door: Door, visit: Visit, call: ToolCall) -> None:
        self._door = door
        self._visit = visit
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door, visit, feed = self._door, self._visit, streaming.Feed()
        running = asyncio.create_task(while_there(receive, door.run(visit, self._call, feed), door.gate))
        running.add_done_callback(lambda _: feed.end())
        try:
            raw = [(name.lower().encode(), value.encode()) for name, value in streaming.HEADERS.items()]
            await send({"type": "http.response.start", "status": 200, "headers": raw})
            while (chunk := await feed.next()) is not None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            result = streaming.event("result", (await self._answer(running)).body)
            await send({"type": "http.response.body", "body": result, "more_body": False})
        except ClientDisconnect:
            pass
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _answer(self, running: asyncio.Task[Answer]) -> Answer:
        try:
            return await running
        except Busy as busy:
            return self._visit.failed(as_failed(busy))


def as_failed(error: Exception) -> Failed:
    """What the caller is told of an exception; of those that nobody foresaw, only that there was one."""
    match error:
        case Failed():
            return error
        case Busy():
            return Failed("busy", str(error), headers=retry_after(error.retry_after))
        case InvalidPackage():
            return Failed("invalid_request", error.message)
    logger.error("a tool call failed", exc_info=error)
    return Failed("internal", "The server failed; its log says why")
