"""Requests, limits, errors and log entries of the HTTP client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from hutch.egress.addresses import Url
from hutch.egress.request_log import OutgoingRequest
from hutch.errors import HutchError
from hutch.settings import Settings

Headers = list[tuple[str, str]]
FetchErrorKind = Literal[
    "egress_refused",
    "unreachable",
    "timeout",
    "too_large",
    "too_many_redirects",
    "too_many_requests",
    "redirected",
    "bad_url",
    "bad_header",
    "bad_request",
    "tls",
    "protocol",
    "closed",
]


class FetchError(HutchError):
    """A request failed. The message may be shown to a guest."""

    code = "fetch_error"

    def __init__(self, kind: FetchErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class FetchRequest(msgspec.Struct, kw_only=True):
    method: str
    url: str
    headers: Headers = []
    body: bytes | None = None
    redirect: Literal["follow", "manual", "error"] = "follow"


class InjectedHeader(msgspec.Struct, frozen=True):
    """Header that the host adds to a request. `credential` is the id of the credential in the value, if there
    is one.
    """

    name: str
    value: str
    credential: str | None = None

    def __repr__(self) -> str:
        return f"InjectedHeader({self.name!r}, credential={self.credential!r})"


class InjectedField(msgspec.Struct, frozen=True):
    """Credential that the host adds to the query or the body of a request. `credential` is its id."""

    place: Literal["query", "body"]
    name: str
    value: str
    credential: str

    def __repr__(self) -> str:
        return f"InjectedField({self.place!r}, {self.name!r}, credential={self.credential!r})"


class Injection(msgspec.Struct, frozen=True):
    """Headers and fields to add to one request. If the name of a header occurs twice, the later value wins,
    so static headers come first.
    """

    headers: Sequence[InjectedHeader] = ()
    fields: Sequence[InjectedField] = ()


class Injector(Protocol):
    """Chooses the headers and fields that are added to a request. Called for every request and again after
    every redirect.
    """

    def inject(self, url: Url) -> Injection: ...


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    max_seconds: float = 30.0
    """Time from the request to the end of the response body, including redirects."""
    max_response_bytes: int = 8 * 1024 * 1024
    max_body_bytes: int = 8 * 1024 * 1024
    max_redirects: int = 20
    max_requests: int = 50

    @classmethod
    def of(cls, settings: Settings) -> FetchLimits:
        return cls(
            max_seconds=settings.fetch_seconds,
            max_response_bytes=settings.max_fetch_bytes,
            max_body_bytes=settings.max_fetch_body_bytes,
            max_redirects=settings.max_fetch_redirects,
            max_requests=settings.max_fetch_requests,
        )


class RequestLogEntry(OutgoingRequest, kw_only=True):
    credentials: tuple[str, ...] = ()
    """Ids of the credentials that were sent."""
