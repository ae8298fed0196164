"""Makes a guest's requests for it: adds what the guest may not know, and lets nothing of that come back.

Every request, those that redirects lead to included, is decided on anew: whether it may be made at all, over
which connection, and with which headers.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from time import perf_counter
from typing import TypeVar

from hutch._version import __version__
from hutch.egress import urls
from hutch.egress.addresses import read_host
from hutch.egress.connection import Connection
from hutch.egress.connections import Connections, Place
from hutch.egress.decoding import ACCEPTED
from hutch.egress.exchange import Exchange
from hutch.egress.fetch import FetchError, FetchLimits, Headers, Hop, Injector, Request
from hutch.egress.headers import Merged, for_elsewhere, merge, without_body
from hutch.egress.policy import Policy, fetch_policy
from hutch.egress.redaction import Redactor, redactor_of
from hutch.egress.reply import Reply
from hutch.egress.tunnel import Tunnel
from hutch.egress.urls import Url
from hutch.settings import Settings

MAX_PATH = 1024

_METHOD = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
# As the fetch standard has it: these are meant in any case, those are never sent.
_UPPERED = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"))
_REFUSED = frozenset(("CONNECT", "TRACE", "TRACK"))
# May be sent once more when a kept connection turns out to be dead (RFC 9110, section 9.2.2).
_IDEMPOTENT = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PUT"))
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_DEFAULTS = (("user-agent", f"Hutch/{__version__}"), ("accept", "*/*"))

Log = Callable[[str], None]
T = TypeVar("T")


class Broker:
    """One for the whole program: keeps the connections."""

    def __init__(self, settings: Settings, *, trust: ssl.SSLContext | None = None) -> None:
        """`trust` instead of the machine's certificates. Raises SettingError."""
        self._policy = fetch_policy(settings)
        self._limits = FetchLimits.of(settings)
        tunnel = Tunnel(settings.proxy_url, trust) if settings.proxy_url else None
        self.connections = Connections(tunnel, trust)

    def open(
        self,
        injector: Injector,
        secrets: Iterable[str],
        *,
        owner: str,
        policy: Policy | None = None,
        limits: FetchLimits | None = None,
        log: Log | None = None,
    ) -> Fetching:
        """What one run fetches with. `secrets` are never shown to it, `log` is told why a request failed."""
        return Fetching(
            self.connections,
            injector,
            redactor_of(tuple(secrets)),
            owner,
            policy or self._policy,
            limits or self._limits,
            log,
        )

    async def close(self) -> None:
        self.connections.close()


class Fetching:
    """The requests of one run."""

    def __init__(
        self,
        connections: Connections,
        injector: Injector,
        redactor: Redactor,
        owner: str,
        policy: Policy,
        limits: FetchLimits,
        log: Log | None = None,
    ) -> None:
        self.hops: list[Hop] = []
        """Every request that was made, in order."""
        self.redactor = redactor
        self._connections = connections
        self._injector = injector
        self._owner = owner
        self._policy = policy
        self._limits = limits
        self._log = log
        self._replies: set[Reply] = set()
        self._closed = False

    async def send(self, request: Request) -> Reply:
        """The answer's head; its body is to be read, or closed. Raises FetchError."""
        started = asyncio.get_running_loop().time()
        try:
            try:
                async with asyncio.timeout_at(started + self._limits.seconds):
                    return await self._follow(request, started)
            except TimeoutError:
                if self.hops and self.hops[-1].error == "closed":
                    self.hops[-1].error = "timeout"
                what = f"There was no answer within {self._limits.seconds:g} s (fetch_seconds)."
                raise FetchError("timeout", what) from None
        except FetchError as error:
            # A redirect may have led to a place with a secret in its name.
            message = self.redactor.text(error.message)
            if self._log is not None:
                self._log(message)
            raise FetchError(error.kind, message) from None

    async def close(self) -> None:
        """Cuts off whatever is not read yet."""
        self._closed = True
        for reply in list(self._replies):
            reply.close()

    async def _follow(self, request: Request, started: float) -> Reply:
        method, body, own = _method(request), request.body, request.headers
        self._check_body(method, body)
        url = _read(urls.parse, request.url)
        for count in range(self._limits.redirects + 1):
            hop, connection, exchange = await self._ask(method, url, own, body)
            location = _location(exchange)
            if location is None or request.redirect == "manual":
                return self._reply(hop, connection, exchange, url, count > 0, started)
            connection.abandon(exchange)
            if request.redirect == "error":
                raise FetchError("redirected", f"{url.host} answered with a redirect.")
            target = _read(partial(urls.follow, url), location)
            if target.origin != url.origin:
                own = for_elsewhere(own)
            if _becomes_get(exchange.status, method):
                method, body, own = "GET", None, without_body(own)
            url = target
        raise FetchError("too_many_redirects", f"There were more than {self._limits.redirects} redirects.")

    async def _ask(
        self, method: str, url: Url, own: Headers, body: bytes | None
    ) -> tuple[Hop, Connection, Exchange]:
        if self._closed:
            raise FetchError("closed", "The run is over.")
        if len(self.hops) >= self._limits.requests:
            what = f"A run can make {self._limits.requests} requests (fetch_requests)."
            raise FetchError("too_many_requests", what)
        # The loop's own clock counts in milliseconds.
        started = perf_counter()
        path = self.redactor.text(url.path)[:MAX_PATH]
        hop = Hop(method=method, host=self.redactor.text(url.authority), path=path)
        self.hops.append(hop)
        try:
            # Where nothing may be reached, that is what is told.
            plain = url.scheme == "http" and self._policy.mode != "none"
            if plain and not self._policy.permits_plain(read_host(url.host), url.port):
                raise FetchError("egress_refused", _not_plain(url))
            merged = merge(self._injector.headers(url).headers, own)
            data = _written(method, url, merged, body)
            place = Place(self._owner, self._policy, url.origin)
            connection, exchange = await self._exchange(place, url, method, data, hop, merged.credentials)
        except BaseException as error:
            hop.error = error.kind if isinstance(error, FetchError) else "closed"
            raise
        finally:
            hop.ms = round((perf_counter() - started) * 1000, 3)
        hop.status = exchange.status
        hop.received_bytes = exchange.received
        return hop, connection, exchange

    async def _exchange(
        self, place: Place, url: Url, method: str, data: bytes, hop: Hop, credentials: tuple[str, ...]
    ) -> tuple[Connection, Exchange]:
        """Over a kept connection or a new one; over a new one too if a kept one was dead already."""
        connection = self._connections.kept(place)
        while True:
            again = connection is not None and method in _IDEMPOTENT
            if connection is None:
                connection = await self._connections.connect(place, url)
            hop.credentials = credentials
            hop.sent_bytes = len(data)
            exchange = connection.ask(method, data)
            try:
                await exchange.answered()
            except FetchError:
                if not again or exchange.received:
                    raise
                connection = None
            except BaseException:
                connection.abandon(exchange)
                raise
            else:
                return connection, exchange

    def _reply(
        self, hop: Hop, connection: Connection, exchange: Exchange, url: Url, redirected: bool, started: float
    ) -> Reply:
        reply = Reply(
            exchange,
            connection,
            hop,
            url=url,
            redirected=redirected,
            redactor=self.redactor,
            limits=self._limits,
            started=started,
            on_end=self._replies.discard,
        )
        self._replies.add(reply)
        return reply

    def _check_body(self, method: str, body: bytes | None) -> None:
        if body is None:
            return
        if method in ("GET", "HEAD"):
            raise FetchError("bad_request", f"A {method} request has no body.")
        if len(body) > self._limits.body_bytes:
            what = f"The request's body is larger than {self._limits.body_bytes} bytes (fetch_body_bytes)."
            raise FetchError("too_large", what)


def _method(request: Request) -> str:
    upper = request.method.upper()
    if not _METHOD.fullmatch(request.method) or upper in _REFUSED:
        raise FetchError("bad_request", f"{request.method[:64]!r} is no method that can be fetched with.")
    return upper if upper in _UPPERED else request.method


def _read(read: Callable[[T], Url], given: T) -> Url:
    try:
        return read(given)
    except ValueError as error:
        raise FetchError("bad_url", f"The URL cannot be used: {error}.") from None


def _location(exchange: Exchange) -> bytes | None:
    if exchange.status not in _REDIRECTS:
        return None
    return next((value for name, value in exchange.headers if name == b"location"), None)


def _becomes_get(status: int, method: str) -> bool:
    return (status in (301, 302) and method == "POST") or (status == 303 and method not in ("GET", "HEAD"))


def _not_plain(url: Url) -> str:
    return (
        f"{url.authority} may be asked over https only; the operator can allow http there with "
        f"{url.host}:{url.port} in the setting egress_allow or egress_http_hosts."
    )


def _written(method: str, url: Url, merged: Merged, body: bytes | None) -> bytes:
    lines = [f"{method} {url.target} HTTP/1.1", f"Host: {url.authority}"]
    lines += [f"{name}: {value}" for name, value in merged.headers]
    names = {name.lower() for name, _ in merged.headers}
    lines += [f"{name}: {value}" for name, value in _DEFAULTS if name not in names]
    lines.append(f"accept-encoding: {ACCEPTED}")
    if body is not None or method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {len(body or b'')}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
