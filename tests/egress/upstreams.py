"""A server that answers as a test says and remembers what it was asked, and a broker to ask it through."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from tests.certificates import certificates
from tests.egress.servers import serving

from hutch.egress.broker import Broker, Fetching
from hutch.egress.fetch import FetchLimits, Headers, Injected, Injection, Request
from hutch.egress.reply import Reply
from hutch.egress.urls import Url
from hutch.settings import Settings

Answer = bytes | Callable[["Asked", asyncio.StreamWriter], Awaitable[None]]


class Asked:
    """One request as it came over the wire."""

    def __init__(self, head: bytes, body: bytes, connection: int) -> None:
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers: Headers = [
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        self.body = body
        self.connection = connection
        """Which one it came over, counted from 1."""

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each == name]


class Upstream:
    """Answers by path. What is not said is answered with the headers and the body that came."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.port = 0
        self.asked: list[Asked] = []
        self.answers: dict[str, Answer] = {}
        self._connections = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            asked = Asked(head, b"", number)
            if lengths := asked.all("content-length"):
                asked.body = await reader.readexactly(int(lengths[0]))
            self.asked.append(asked)
            given = self.answers.get(asked.target.partition("?")[0])
            if callable(given):
                await given(asked, writer)
                return
            writer.write(given if given is not None else echo(asked))
            await writer.drain()
            if given is not None and b"onnection: close" in given:
                return


def echo(asked: Asked) -> bytes:
    lines = [f"{name}: {value}" for name, value in asked.headers]
    return answer(body="\n".join([asked.method, *lines, ""]).encode() + asked.body)


def answer(status: str = "200 OK", *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return answer(status, f"Location: {to}")


def cut(data: bytes) -> Answer:
    """Says so much, and closes."""

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return handle


def silent(data: bytes = b"") -> Answer:
    """Says so much, and then nothing."""

    async def handle(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.get_running_loop().create_future()

    return handle


@contextlib.asynccontextmanager
async def upstream(*, tls: bool = False) -> AsyncIterator[Upstream]:
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates().server)
    made = Upstream("https" if tls else "http")
    async with serving(made.serve, context) as port:
        made.port = port
        yield made


class Credentials:
    """Injects by host, as abilities do."""

    def __init__(self, **by_host: list[Injected]) -> None:
        self.by_host = dict(by_host)
        self.seen: list[Url] = []

    def headers(self, url: Url) -> Injection:
        self.seen.append(url)
        return Injection(
            [each for host, given in self.by_host.items() if url.is_under(host) for each in given]
        )


@contextlib.asynccontextmanager
async def brokered(**settings: Any) -> AsyncIterator[Broker]:
    settings.setdefault("egress_allow", ("127.0.0.1", "localhost"))
    trust = ssl.create_default_context(cafile=certificates().authority)
    broker = Broker(Settings(**settings), trust=trust)
    try:
        yield broker
    finally:
        await broker.close()


def opened(
    broker: Broker,
    credentials: Credentials | None = None,
    secrets: tuple[str, ...] = (),
    *,
    owner: str = "user",
    **limits: Any,
) -> Fetching:
    given = FetchLimits(**limits) if limits else None
    return broker.open(credentials or Credentials(), secrets, owner=owner, limits=given)


def get(url: str, *headers: tuple[str, str], **more: Any) -> Request:
    return Request(method=more.pop("method", "GET"), url=url, headers=list(headers), **more)


async def whole(reply: Reply) -> bytes:
    parts = []
    while data := await reply.read():
        parts.append(data)
    return b"".join(parts)
