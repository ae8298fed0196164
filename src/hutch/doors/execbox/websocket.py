"""`/execbox`: a WebSocket on which the client is the host, with several executions at once."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from hutch.doors.execbox.serve import serve
from hutch.doors.gate import Gate, Visitor
from hutch.doors.marks import SHUTTING_DOWN
from hutch.doors.refusals import Refusal, refusal
from hutch.kernel import Kernel
from hutch.session.websocket import WebSocketChannel

DOOR = "execbox"
PATH = "/execbox"


def routes(kernel: Kernel, gate: Gate) -> list[BaseRoute]:
    async def execbox(socket: WebSocket) -> None:
        visitor = await gate.visitor(socket, DOOR)
        if isinstance(visitor, Visitor) and gate.draining:
            visitor = Refusal(503, SHUTTING_DOWN, {"Retry-After": "1"})
        if isinstance(visitor, Refusal):
            await socket.send_denial_response(refusal(*visitor))
            return
        await socket.accept()
        channel = _channel(socket)
        serving = serve(channel, kernel, owner=visitor.owner, multiplexed=True, admit=gate.admit)
        async with gate.inside(serving, channel):
            while (message := await socket.receive())["type"] != "websocket.disconnect":
                channel.feed(message.get("text") or message.get("bytes") or b"")
                # Who does not take in what we say is not heard either: nobody can make us hold ever more.
                await channel.writable()
            channel.ended("the client closed the connection")

    async def plain(request: Request) -> Response:
        refused = await gate.turned_away(request, DOOR)
        if refused is not None:
            return refused
        url = f"ws://{request.headers['host']}{PATH}"
        return refusal(426, f"This is a WebSocket; connect to {url}", {"Upgrade": "websocket"})

    return [WebSocketRoute(PATH, execbox), Route(PATH, plain)]


def _channel(socket: WebSocket) -> WebSocketChannel:
    async def send(text: str) -> None:
        try:
            await socket.send_text(text)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionError("the client closed the connection") from error

    async def close(reason: str) -> None:
        try:
            await socket.close(1001, reason)
        except (WebSocketDisconnect, RuntimeError) as error:
            raise ConnectionError("the client closed the connection") from error

    return WebSocketChannel(send, close)
