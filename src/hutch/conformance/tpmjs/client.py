"""HTTP client of the suite, with one connection per request and readable error messages."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from types import TracebackType
from typing import Self
from urllib.request import getproxies

import httpx2

from hutch.conformance.outcome import CheckFailed
from hutch.conformance.tpmjs.response import ExecutorResponse
from hutch.errors import HutchError, InvalidExecution

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
MAX_RETRIES = 3
MAX_RETRY_AFTER_SECONDS = 60.0
UPLOAD_CHUNK_BYTES = 64 * 1024
MAX_UPLOAD_RESPONSE_BYTES = 1024 * 1024


class NoResponse(CheckFailed):
    """Raised if the executor sent no HTTP response, or a response that cannot be parsed."""


class ExecutorClient:
    def __init__(self, base_url: str, key: str | None, report: Callable[[str], None]) -> None:
        self.base_url = base_url
        self.key = key
        self._report = report
        try:
            url = httpx2.URL(base_url)
        except httpx2.InvalidURL as error:
            raise InvalidExecution("URL", str(error)) from None
        self.is_direct = _is_loopback(url.host) or not getproxies()
        """True if requests do not go through a proxy."""
        try:
            self._http = httpx2.AsyncClient(
                # Use the proxies and certificate authorities of the environment, except for loopback
                # addresses.
                trust_env=not _is_loopback(url.host),
                # Load the certificate authorities only for https, because that takes 50 ms.
                verify=url.scheme == "https",
                timeout=None,
                # Do not reuse connections: a server may close an idle connection at any time, and a check
                # must not fail because of that.
                limits=httpx2.Limits(max_keepalive_connections=0),
                headers={"Accept-Encoding": "identity", "User-Agent": "hutch-check"},
            )
        except (ImportError, ValueError, OSError, httpx2.InvalidURL) as error:
            raise HutchError(f"The environment's proxy or certificates cannot be used: {error}.") from None

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def get(
        self, path: str, seconds: float, *, with_key: bool = False, headers: Mapping[str, str] | None = None
    ) -> ExecutorResponse:
        return await self.request("GET", path, seconds, headers=self.headers(headers, with_key=with_key))

    async def post(
        self,
        path: str,
        body: bytes,
        seconds: float,
        *,
        with_key: bool = True,
        retry_later: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> ExecutorResponse:
        """Sends a POST request. With `retry_later`, waits and retries after 429 and 503 as Retry-After
        demands.
        """
        sent = {"Content-Type": "application/json", **self.headers(headers, with_key=with_key)}
        for _ in range(MAX_RETRIES):
            response = await self.request("POST", path, seconds, body=body, headers=sent)
            delay = _retry_after(response)
            if delay is None or not retry_later:
                return response
            self._report(f"{response.request}: {response.status}; retrying in {delay:g} s")
            await asyncio.sleep(delay)
        return await self.request("POST", path, seconds, body=body, headers=sent)

    async def request(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> ExecutorResponse:
        """Sends a request. Raises NoResponse, also if the whole exchange takes longer than `seconds`."""
        label = f"{method} {path}"
        started = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(label, method, path, body, headers, started)
        except TimeoutError:
            raise NoResponse(f"{label}: no answer within {seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NoResponse(f"{label}: {_describe_error(error)}") from None

    async def _exchange(
        self,
        label: str,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        started: float,
    ) -> ExecutorResponse:
        url = self.base_url + path
        async with self._http.stream(method, url, content=body, headers=headers) as response:
            received = bytearray()
            async for chunk in response.aiter_bytes():
                received += chunk
                if len(received) > MAX_RESPONSE_BYTES:
                    raise NoResponse(f"{label}: the answer has more than {MAX_RESPONSE_BYTES} bytes")
        return ExecutorResponse(
            request=label,
            status=response.status_code,
            headers={name.lower(): value for name, value in response.headers.items()},
            body=bytes(received),
            seconds=time.monotonic() - started,
        )

    def headers(self, headers: Mapping[str, str] | None = None, *, with_key: bool) -> dict[str, str]:
        """Returns the headers of a request, with the protocol version and the key."""
        key = {"Authorization": f"Bearer {self.key}"} if with_key and self.key is not None else {}
        return {"X-TPMJS-Protocol-Version": "1.0", **key, **(headers or {})}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _retry_after(response: ExecutorResponse) -> float | None:
    if response.status not in (429, 503):
        return None
    value = response.headers.get("retry-after", "")
    # Retry-After may also be a date, which is ignored here.
    delay = float(value) if value.isascii() and value.isdigit() else None
    return delay if delay is not None and delay <= MAX_RETRY_AFTER_SECONDS else None


def _describe_error(error: httpx2.HTTPError | httpx2.InvalidURL) -> str:
    cause = _cause(error)
    match error:
        case httpx2.ProxyError():
            return f"the proxy refused: {error}"
        case httpx2.ConnectError():
            return f"cannot connect: {cause}"
        case httpx2.RemoteProtocolError() if "disconnected" in str(error):
            return "the connection was closed before an HTTP answer"
        case httpx2.RemoteProtocolError():
            return f"the answer is not HTTP: {error}"
        case httpx2.ReadError() | httpx2.WriteError():
            return f"the connection broke before the answer was complete: {cause}"
        case httpx2.DecodingError():
            return f"the answer cannot be decoded: {error}"
        case _:
            return f"{type(error).__name__}: {error}"


def _cause(error: BaseException) -> str:
    """Returns the operating system's message for an error, because the library's message lacks it."""
    current: BaseException | None = error
    message = str(error)
    while current is not None:
        if isinstance(current, BaseExceptionGroup):
            current = current.exceptions[0]
        if isinstance(current, OSError) and current.strerror:
            message = current.strerror
        current = current.__cause__ or current.__context__
    return message or type(error).__name__


async def upload(
    client: ExecutorClient, path: str, body: bytes, seconds: float, *, chunked: bool
) -> ExecutorResponse:
    """Sends a body that the server may refuse before it is complete, and reads the response. Raises
    NoResponse.

    If a server refuses early and closes the connection, httpx2 is still writing. Then it gets an error and
    loses the response. This function reads the response even if sending has failed.
    """
    return await asyncio.to_thread(_upload, client, path, body, seconds, chunked)


def _upload(
    client: ExecutorClient, path: str, body: bytes, seconds: float, chunked: bool
) -> ExecutorResponse:
    url = httpx2.URL(client.base_url + path)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(body))}
    headers = {**client.headers(with_key=True), **length, "Content-Type": "application/json"}
    started = time.monotonic()
    try:
        with closing(kind(url.host, url.port, timeout=seconds)) as connection:
            connection.putrequest("POST", url.raw_path.decode())
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            with suppress(OSError):
                _send(connection, body, chunked)
            response = connection.getresponse()
            headers_received = {name.lower(): value for name, value in response.getheaders()}
            received = response.read(MAX_UPLOAD_RESPONSE_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise NoResponse(f"POST {path}: the connection broke while the body was sent: {error}") from None
    return ExecutorResponse(
        f"POST {path}", response.status, headers_received, received, time.monotonic() - started
    )


def _send(connection: http.client.HTTPConnection, body: bytes, chunked: bool) -> None:
    for start in range(0, len(body), UPLOAD_CHUNK_BYTES):
        piece = body[start : start + UPLOAD_CHUNK_BYTES]
        connection.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    if chunked:
        connection.send(b"0\r\n\r\n")
