"""The HTTP client of the tests: every request on a connection of its own, every trouble in plain words."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self
from urllib.request import getproxies

import httpx2

from hutch.cli.compliance.answer import Answer
from hutch.cli.compliance.outcome import NoAnswer
from hutch.errors import HutchError, InvalidExecution

MAX_ANSWER_BYTES = 32 * 1024 * 1024
# Who is told to come back does, but not for ever.
COME_BACK_TIMES = 3
COME_BACK_SECONDS = 60.0


class Client:
    """Speaks with one executor."""

    def __init__(self, base: str, key: str | None, say: Callable[[str], None]) -> None:
        self.base = base
        self.key = key
        self._say = say
        try:
            url = httpx2.URL(base)
        except httpx2.InvalidURL as error:
            raise InvalidExecution("URL", str(error)) from None
        self.direct = _is_loopback(url.host) or not getproxies()
        """Whether no proxy stands between."""
        try:
            self._http = httpx2.AsyncClient(
                # Proxies and certificate authorities of the environment, except to this machine itself.
                trust_env=not _is_loopback(url.host),
                # Without TLS there is nothing to verify, and reading all authorities takes 50 ms.
                verify=url.scheme == "https",
                timeout=None,
                # A server may close an idle connection just when it is used again: that would be no finding.
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
        self, path: str, seconds: float, *, keyed: bool = False, headers: Mapping[str, str] | None = None
    ) -> Answer:
        return await self.ask("GET", path, seconds, headers=self.headers(headers, keyed=keyed))

    async def post(
        self,
        path: str,
        body: bytes,
        seconds: float,
        *,
        keyed: bool = True,
        patient: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """`patient`: who is told to come back later (429, 503) does so."""
        sent = {"Content-Type": "application/json", **self.headers(headers, keyed=keyed)}
        for _ in range(COME_BACK_TIMES):
            answer = await self.ask("POST", path, seconds, body=body, headers=sent)
            delay = _retry_after(answer)
            if delay is None or not patient:
                return answer
            self._say(f"{answer.request}: {answer.status}; coming back in {delay:g} s")
            await asyncio.sleep(delay)
        return await self.ask("POST", path, seconds, body=body, headers=sent)

    async def ask(
        self,
        method: str,
        path: str,
        seconds: float,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Raises NoAnswer when none came within so many seconds in all."""
        asked = f"{method} {path}"
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                return await self._exchange(asked, method, path, body, headers, began)
        except TimeoutError:
            raise NoAnswer(f"{asked}: no answer within {seconds:g} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise NoAnswer(f"{asked}: {_in_words(error)}") from None

    async def _exchange(
        self,
        asked: str,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        began: float,
    ) -> Answer:
        url = self.base + path
        async with self._http.stream(method, url, content=body, headers=headers) as response:
            got = bytearray()
            async for chunk in response.aiter_bytes():
                got += chunk
                if len(got) > MAX_ANSWER_BYTES:
                    raise NoAnswer(f"{asked}: the answer has more than {MAX_ANSWER_BYTES} bytes")
        return Answer(
            request=asked,
            status=response.status_code,
            headers={name.lower(): value for name, value in response.headers.items()},
            body=bytes(got),
            seconds=time.monotonic() - began,
        )

    def headers(self, headers: Mapping[str, str] | None = None, *, keyed: bool) -> dict[str, str]:
        """These, the version and the key."""
        key = {"Authorization": f"Bearer {self.key}"} if keyed and self.key is not None else {}
        return {"X-TPMJS-Protocol-Version": "1.0", **key, **(headers or {})}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _retry_after(answer: Answer) -> float | None:
    if answer.status not in (429, 503):
        return None
    given = answer.headers.get("retry-after", "")
    # The other form is a date, which no executor sends.
    delay = float(given) if given.isascii() and given.isdigit() else None
    return delay if delay is not None and delay <= COME_BACK_SECONDS else None


def _in_words(error: httpx2.HTTPError | httpx2.InvalidURL) -> str:
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
    """The system's own words, which are below the library's."""
    seen: BaseException | None = error
    found = str(error)
    while seen is not None:
        if isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
        if isinstance(seen, OSError) and seen.strerror:
            found = seen.strerror
        seen = seen.__cause__ or seen.__context__
    return found or type(error).__name__
