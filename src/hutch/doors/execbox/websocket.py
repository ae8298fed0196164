"""`/execbox`: a WebSocket on which the client is the host, with several executions at once."""

from __future__ import annotations

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from hutch.doors.execbox.serve import serve
from hutch.doors.gate import Gate
from hutch.kernel import Kernel
from hutch.session.websocket import WebSocketChannel


def routes(kernel: Kernel, gate: Gate) -> list[BaseRoute]:
    async def execbox(socket: WebSocket) -> None:
        refusal = gate.refuse(socket, origin=True)
        if refusal is not None:
            await socket.send_denial_response(refusal)
            return
        await socket.accept()
        channel = WebSocketChannel(socket.send_text, socket.close)
        serving = serve(channel, kernel, owner=gate.owner(socket), multiplexed=True)
        with gate.serving(serving):
            try:
                while True:
                    message = await socket.receive()
                    if message["type"] == "websocket.disconnect":
                        break
                    channel.feed(message.get("text") or message.get("bytes") or b"")
            except WebSocketDisconnect:
                pass
            channel.ended("the client closed the connection")
            await serving.stop()
            await channel.finished()

    return [WebSocketRoute("/execbox", execbox)]
