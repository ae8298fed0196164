"""Forwards the connections of an inherited listening socket to a port of loopback:
`forwarded_port.py DESCRIPTOR PORT`.
"""

import asyncio
import contextlib
import socket
import sys
from functools import partial


async def main(descriptor: int, port: int) -> None:
    listener = socket.socket(fileno=descriptor)
    server = await asyncio.start_server(partial(_forward, port), sock=listener)
    await server.serve_forever()


async def _forward(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forwards a connection until one end closes it."""
    with contextlib.closing(writer), contextlib.suppress(OSError):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        pumps = [
            asyncio.ensure_future(pump) for pump in (_pump(reader, far_writer), _pump(far_reader, writer))
        ]
        with contextlib.closing(far_writer):
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
