"""uvicorn's WebSockets, where a refusal that was answered is no fault: it leaves nothing in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent


class RefusingWebSockets(WebSocketsSansIOProtocol):
    """Knows that an answer which was sent completely, in the place of an upgrade, ends the handshake too."""

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        # uvicorn forgets this, and then logs an error for every such answer.
        self.handshake_complete = self.handshake_complete or self.close_sent
