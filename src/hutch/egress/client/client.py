"""HTTP client that makes requests for guests, adds credentials and redacts them from responses.

A redirect is handled like a new request: the policy is checked, a connection is chosen and headers are merged
again.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import TypeVar

from hutch._version import __version__
from hutch.egress import addresses
from hutch.egress.addresses import Url, parse_host
from hutch.egress.client.connection import ClientConnection
from hutch.egress.client.fields import merge_fields, without_fields
from hutch.egress.client.headers import (
    merge_headers,
    without_body_headers,
    without_origin_headers,
)
from hutch.egress.client.http1 import HttpExchange
from hutch.egress.client.models import (
    FetchError,
    FetchLimits,
    FetchRequest,
    Headers,
    Injection,
    Injector,
    RequestLogEntry,
)
from hutch.egress.client.operator_proxy import OperatorProxy
from hutch.egress.client.pool import ConnectionPool, PoolKey
from hutch.egress.client.response import ACCEPTED_ENCODINGS, FetchResponse, redact_head
from hutch.egress.policy import EgressPolicy, fetch_policy
from hutch.egress.redaction import Redactor, cached_redactor
from hutch.settings import Settings
from hutch.telemetry.counters import EgressCounters
from hutch.telemetry.trace_context import current

MAX_LOGGED_PATH = 1024
COUNTED_AS = "fetch"
"""Name of this client in metrics."""

_METHOD = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,64}")
# From the fetch standard: methods that are converted to upper case, and methods that are never sent.
_NORMALIZED_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "POST", "PUT"))
_FORBIDDEN_METHODS = frozenset(("CONNECT", "TRACE", "TRACK"))
# Requests with these methods may be repeated if a reused connection was already closed (RFC 9110, section
# 9.2.2).
_IDEMPOTENT_METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PUT"))
_REDIRECT_STATUSES = frozenset((301, 302, 303, 307, 308))
_DEFAULT_HEADERS = (("user-agent", f"Hutch/{__version__}"), ("accept", "*/*"))

LogFailure = Callable[[str], None]
T = TypeVar("T")


class FetchClient:
    """HTTP client with a connection pool. A process has one client."""

    def __init__(
        self,
        settings: Settings,
        *,
        trust: ssl.SSLContext | None = None,
        counters: EgressCounters | None = None,
    ) -> None:
        """Creates a client. `trust` replaces the system's certificates. Raises SettingError."""
        self._counters = counters or EgressCounters()
        self._policy = fetch_policy(settings)
        self._limits = FetchLimits.of(settings)
        operator_proxy = OperatorProxy(settings.proxy_url, trust) if settings.proxy_url else None
        self.pool = ConnectionPool(operator_proxy, trust)

    def open_session(
        self,
        injector: Injector,
        secrets: Iterable[str],
        *,
        owner: str,
        policy: EgressPolicy | None = None,
        limits: FetchLimits | None = None,
        log: LogFailure | None = None,
    ) -> FetchSession:
        """Starts the session of one run. The values in `secrets` are redacted from responses. `log` is called
        with every error message.
        """
        return FetchSession(
            self.pool,
            injector,
            cached_redactor(tuple(secrets)),
            owner,
            policy or self._policy,
            limits or self._limits,
            log,
            self._counters,
        )

    async def close(self) -> None:
        self.pool.close()


class FetchSession:
    def __init__(
        self,
        pool: ConnectionPool,
        injector: Injector,
        redactor: Redactor,
        owner: str,
        policy: EgressPolicy,
        limits: FetchLimits,
        log: LogFailure | None = None,
        counters: EgressCounters | None = None,
    ) -> None:
        self._counters = counters or EgressCounters()
        self.request_log: list[RequestLogEntry] = []
        self.redactor = redactor
        self._pool = pool
        self._injector = injector
        self._owner = owner
        self._policy = policy
        self._limits = limits
        self._log = log
        self._responses: set[FetchResponse] = set()
        self._closed = False

    async def send(self, request: FetchRequest) -> FetchResponse:
        """Sends a request and returns as soon as the head of the response is received. The caller must read
        or close the body. Raises FetchError.
        """
        started = asyncio.get_running_loop().time()
        try:
            try:
                async with asyncio.timeout_at(started + self._limits.max_seconds):
                    return await self._send_and_redirect(request, started)
            except TimeoutError:
                if self.request_log and self.request_log[-1].error == "closed":
                    self.request_log[-1].error = "timeout"
                message = f"There was no answer within {self._limits.max_seconds:g} s (fetch_seconds)."
                raise FetchError("timeout", message) from None
        except FetchError as error:
            # Redact the message, because the URL of a redirect may contain a secret.
            message = self.redactor.text(error.message)
            if self._log is not None:
                self._log(message)
            raise FetchError(error.kind, message) from None

    async def close(self) -> None:
        self._closed = True
        for response in list(self._responses):
            response.close()
        for entry in self.request_log:
            self._counters.add_bytes(COUNTED_AS, entry.sent_bytes, entry.received_bytes)

    async def _send_and_redirect(self, request: FetchRequest, started: float) -> FetchResponse:
        method, body, guest_headers = _normalize_method(request), request.body, request.headers
        self._check_body(method, body)
        url = _parse(addresses.parse_url, request.url)
        for count in range(self._limits.max_redirects + 1):
            injection = self._injector.inject(url)
            entry, connection, exchange = await self._send_once(method, url, guest_headers, body, injection)
            location = _location(exchange)
            if location is None or request.redirect == "manual":
                return await self._response(entry, connection, exchange, url, count > 0, started)
            connection.abandon(exchange)
            if request.redirect == "error":
                raise FetchError("redirected", f"{url.host} answered with a redirect.")
            target = _parse(partial(addresses.resolve_redirect, url), location)
            if injection.fields:
                target = without_fields(target, injection.fields)
            if target.origin != url.origin:
                guest_headers = without_origin_headers(guest_headers)
            if _becomes_get(exchange.status, method):
                method, body, guest_headers = "GET", None, without_body_headers(guest_headers)
            url = target
        raise FetchError(
            "too_many_redirects", f"There were more than {self._limits.max_redirects} redirects."
        )

    async def _send_once(
        self, method: str, url: Url, guest_headers: Headers, body: bytes | None, injection: Injection
    ) -> tuple[RequestLogEntry, ClientConnection, HttpExchange]:
        if self._closed:
            raise FetchError("closed", "The run is over.")
        if len(self.request_log) >= self._limits.max_requests:
            message = f"A run can make {self._limits.max_requests} requests (max_fetch_requests)."
            raise FetchError("too_many_requests", message)
        path = self.redactor.text(url.path)[:MAX_LOGGED_PATH]
        entry = RequestLogEntry(method=method, host=self.redactor.text(url.authority), path=path)
        trace = current.get()
        if trace is not None:
            trace = trace.child()
            entry.span_id = trace.span_id
        self.request_log.append(entry)
        try:
            # With mode "none", skip this check: the policy refuses the request later, with a clearer error.
            is_http = url.scheme == "http" and self._policy.mode != "none"
            if is_http and not self._policy.permits_http(parse_host(url.host), url.port):
                raise FetchError("egress_refused", _http_refused(url))
            merged = merge_headers(injection.headers, guest_headers)
            target, credentials = url.target, merged.credentials
            if injection.fields:
                fields = merge_fields(injection.fields, url, merged.headers, body)
                target, body = fields.target, fields.body
                credentials = tuple(dict.fromkeys((*credentials, *fields.credentials)))
            headers = merged.headers
            if trace is not None and self._policy.permits_trace(parse_host(url.host), url.port):
                added = trace.headers
                headers = [pair for pair in headers if pair[0].lower() not in added] + [*added.items()]
            data = _serialize(method, url, target, headers, body)
            key = PoolKey(self._owner, self._policy, url.origin)
            connection, exchange = await self._send_on_connection(key, url, method, data, entry, credentials)
        except BaseException as error:
            entry.error = error.kind if isinstance(error, FetchError) else "closed"
            self._counters.add(COUNTED_AS, entry.error)
            raise
        finally:
            # Use time.monotonic, because the event loop's clock only has a resolution of milliseconds.
            entry.ms = round((monotonic() - entry.started) * 1000, 3)
        entry.status = exchange.status
        entry.received_bytes = exchange.received
        self._counters.add(COUNTED_AS, "ok" if exchange.status < 400 else "http_error")
        return entry, connection, exchange

    async def _send_on_connection(
        self,
        key: PoolKey,
        url: Url,
        method: str,
        data: bytes,
        entry: RequestLogEntry,
        credentials: tuple[str, ...],
    ) -> tuple[ClientConnection, HttpExchange]:
        """Sends a request on an idle connection or a new one. If the idle connection turns out to be closed,
        idempotent requests are sent again on a new connection.
        """
        connection = self._pool.take_idle(key)
        while True:
            can_retry = connection is not None and method in _IDEMPOTENT_METHODS
            if connection is None:
                connection = await self._pool.connect(key, url)
            entry.credentials = credentials
            entry.sent_bytes = len(data)
            exchange = connection.send(method, data)
            try:
                await exchange.wait_for_head()
            except FetchError:
                if not can_retry or exchange.received:
                    raise
                connection = None
            except BaseException:
                connection.abandon(exchange)
                raise
            else:
                return connection, exchange

    async def _response(
        self,
        entry: RequestLogEntry,
        connection: ClientConnection,
        exchange: HttpExchange,
        url: Url,
        redirected: bool,
        started: float,
    ) -> FetchResponse:
        try:
            head = await redact_head(exchange, url, self.redactor)
        except BaseException:
            connection.abandon(exchange)
            raise
        response = FetchResponse(
            exchange,
            connection,
            entry,
            url=url,
            redirected=redirected,
            head=head,
            redactor=self.redactor,
            limits=self._limits,
            started=started,
            on_end=self._responses.discard,
        )
        self._responses.add(response)
        return response

    def _check_body(self, method: str, body: bytes | None) -> None:
        if body is None:
            return
        if method in ("GET", "HEAD"):
            raise FetchError("bad_request", f"A {method} request has no body.")
        if len(body) > self._limits.max_body_bytes:
            limit = self._limits.max_body_bytes
            message = f"The request's body is larger than {limit} bytes (max_fetch_body_bytes)."
            raise FetchError("too_large", message)


def _normalize_method(request: FetchRequest) -> str:
    upper = request.method.upper()
    if not _METHOD.fullmatch(request.method) or upper in _FORBIDDEN_METHODS:
        raise FetchError("bad_request", f"{request.method[:64]!r} is not a method that can be used.")
    return upper if upper in _NORMALIZED_METHODS else request.method


def _parse(parser: Callable[[T], Url], text: T) -> Url:
    try:
        return parser(text)
    except ValueError as error:
        raise FetchError("bad_url", f"The URL cannot be used: {error}.") from None


def _location(exchange: HttpExchange) -> bytes | None:
    if exchange.status not in _REDIRECT_STATUSES:
        return None
    return next((value for name, value in exchange.headers if name == b"location"), None)


def _becomes_get(status: int, method: str) -> bool:
    return (status in (301, 302) and method == "POST") or (status == 303 and method not in ("GET", "HEAD"))


def _http_refused(url: Url) -> str:
    return (
        f"{url.authority} may be asked over https only; the operator can allow http there with "
        f"{url.host}:{url.port} in the setting egress_allow or egress_http_hosts."
    )


def _serialize(method: str, url: Url, target: str, headers: Headers, body: bytes | None) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", f"Host: {url.authority}"]
    lines += [f"{name}: {value}" for name, value in headers]
    names = {name.lower() for name, _ in headers}
    lines += [f"{name}: {value}" for name, value in _DEFAULT_HEADERS if name not in names]
    lines.append(f"accept-encoding: {ACCEPTED_ENCODINGS}")
    if body is not None or method in ("POST", "PUT", "PATCH"):
        lines.append(f"content-length: {len(body or b'')}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")
