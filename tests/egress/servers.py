"""Servers on loopback, and an egress proxy that may connect to them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from hutch.egress.policy import EgressPolicy
from hutch.egress.proxy.proxy import EgressProxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

LOCAL = EgressPolicy("public", ("127.0.0.1", "localhost"))
SECONDS = 10


@contextlib.asynccontextmanager
async def run_server(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Runs a server that passes every connection to `handler`. Yields the server's port."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


@contextlib.asynccontextmanager
async def run_proxy(
    policy: EgressPolicy = LOCAL, refusals: list[str] | None = None
) -> AsyncIterator[tuple[EgressProxy, int]]:
    """Runs an egress proxy on loopback. Yields the proxy and its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    proxy = await EgressProxy.start(listener, policy, None if refusals is None else refusals.append)
    try:
        yield proxy, port
    finally:
        await proxy.close()


async def echo_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echoes an HTTP request."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:"), 0
    )
    body = await reader.readexactly(length)
    if b" /redirect" in head.split(b"\r\n")[0]:
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\nContent-Length: 0\r\n\r\n")
    else:
        text = head.split(b" HTTP/1.1")[0] + b" " + body
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text)
        )
    await writer.drain()


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()


@contextlib.asynccontextmanager
async def open_connection(port: int) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with asyncio.timeout(SECONDS):
            yield reader, writer
    finally:
        writer.transport.abort()


@contextlib.asynccontextmanager
async def open_tunnel(proxy: int, target: str) -> AsyncIterator[Streams]:
    async with open_connection(proxy) as (reader, writer):
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
        yield reader, writer


async def exchange(port: int, data: str | bytes) -> bytes:
    """Sends data and returns the whole response."""
    async with open_connection(port) as (reader, writer):
        writer.write(data.encode() if isinstance(data, str) else data)
        return await reader.read()
