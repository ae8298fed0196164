"""Test server with configurable responses that records its requests, and an HTTP client to reach it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from tests.egress.servers import run_server
from tests.support.network.certificates import certificates

from hutch.egress.addresses import Url
from hutch.egress.client.client import FetchClient, FetchSession
from hutch.egress.client.models import (
    FetchLimits,
    FetchRequest,
    Headers,
    InjectedField,
    InjectedHeader,
    Injection,
)
from hutch.egress.client.response import FetchResponse
from hutch.settings import Settings

CannedResponse = bytes | Callable[["RecordedRequest", asyncio.StreamWriter], Awaitable[None]]


class RecordedRequest:
    """A received request."""

    def __init__(self, head: bytes, body: bytes, connection: int) -> None:
        first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers: Headers = [
            (name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)
        ]
        self.body = body
        self.connection = connection
        """Number of the connection, counted from 1."""

    def all(self, name: str) -> list[str]:
        return [value for each, value in self.headers if each == name]


class RecordingServer:
    """Answers requests with the response that is set for their path. If no response is set for a path, echoes
    the request.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self.port = 0
        self.requests: list[RecordedRequest] = []
        self.responses: dict[str, CannedResponse] = {}
        self._connections = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{self.scheme}://{host}:{self.port}{path}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        number = self._connections
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            received = RecordedRequest(head, b"", number)
            if lengths := received.all("content-length"):
                received.body = await reader.readexactly(int(lengths[0]))
            self.requests.append(received)
            given = self.responses.get(received.target.partition("?")[0])
            if callable(given):
                await given(received, writer)
                return
            writer.write(given if given is not None else echo(received))
            await writer.drain()
            if given is not None and b"onnection: close" in given:
                return


def echo(requests: RecordedRequest) -> bytes:
    lines = [f"{name}: {value}" for name, value in requests.headers]
    return http_response(body="\n".join([requests.method, *lines, ""]).encode() + requests.body)


def http_response(status: str = "200 OK", *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status}", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def redirect(to: str, status: str = "302 Found") -> bytes:
    return http_response(status, f"Location: {to}")


def send_and_close(data: bytes) -> CannedResponse:
    """Sends the data and closes the connection."""

    async def handle(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return handle


def send_and_hang(data: bytes = b"") -> CannedResponse:
    """Returns a response that sends the data and then keeps the connection open without sending more."""

    async def handle(requests: RecordedRequest, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        await asyncio.get_running_loop().create_future()

    return handle


@contextlib.asynccontextmanager
async def run_recording_server(*, tls: bool = False) -> AsyncIterator[RecordingServer]:
    context = None
    if tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificates().server)
    made = RecordingServer("https" if tls else "http")
    async with run_server(made.serve, context) as port:
        made.port = port
        yield made


class Credentials:
    """Injects the credentials of the request's host, as abilities do: headers, and fields of the query and
    the body.
    """

    def __init__(self, **by_host: Sequence[InjectedHeader | InjectedField]) -> None:
        self.by_host = dict(by_host)
        self.seen: list[Url] = []

    def inject(self, url: Url) -> Injection:
        self.seen.append(url)
        chosen = [each for host, given in self.by_host.items() if url.is_under(host) for each in given]
        return Injection(
            [each for each in chosen if isinstance(each, InjectedHeader)],
            [each for each in chosen if isinstance(each, InjectedField)],
        )


@contextlib.asynccontextmanager
async def run_http_client(**settings: Any) -> AsyncIterator[FetchClient]:
    settings.setdefault("egress_allow", ("127.0.0.1", "localhost"))
    trust = ssl.create_default_context(cafile=certificates().authority)
    client = FetchClient(Settings(**settings), trust=trust)
    try:
        yield client
    finally:
        await client.close()


def open_session(
    client: FetchClient,
    credentials: Credentials | None = None,
    secrets: tuple[str, ...] = (),
    *,
    owner: str = "user",
    **limits: Any,
) -> FetchSession:
    given = FetchLimits(**limits) if limits else None
    return client.open_session(credentials or Credentials(), secrets, owner=owner, limits=given)


def make_request(url: str, *headers: tuple[str, str], **more: Any) -> FetchRequest:
    return FetchRequest(method=more.pop("method", "GET"), url=url, headers=list(headers), **more)


async def read_all(response: FetchResponse) -> bytes:
    parts = []
    while data := await response.read():
        parts.append(data)
    return b"".join(parts)
