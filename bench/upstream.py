"""An API that answers every request with the same JSON after a delay: `python -m bench.upstream SECONDS`.
Prints its port, and ends when stdin ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

BODY = b'{"name":"Bo","followers_count":3,"posts":[1,2,3,4,5,6,7,8]}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
    len(BODY),
    BODY,
)


class Upstream(asyncio.Protocol):
    """Reads requests without a body."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast without a check at run time, because uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while b"\r\n\r\n" in self._read:
            _, _, self._read = self._read.partition(b"\r\n\r\n")
            asyncio.get_running_loop().call_later(self._seconds, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(ANSWER)


async def main(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Upstream(seconds), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main(float(sys.argv[1])))
