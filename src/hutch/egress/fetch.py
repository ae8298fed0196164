"""What is asked of the broker and what it answers with, besides the answer's body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from hutch.egress.urls import Url
from hutch.errors import HutchError
from hutch.settings import Settings

Headers = list[tuple[str, str]]
Kind = Literal[
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
    """A request came to nothing. The message can be shown to a guest."""

    code = "fetch_error"

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Request(msgspec.Struct, kw_only=True):
    """As a guest makes it."""

    method: str
    url: str
    headers: Headers = []
    body: bytes | None = None
    redirect: Literal["follow", "manual", "error"] = "follow"


class Injected(msgspec.Struct, frozen=True):
    """A header that the host adds; with the id of the credential whose value it is, if it is one."""

    name: str
    value: str
    credential: str | None = None

    def __repr__(self) -> str:
        return f"Injected({self.name!r}, credential={self.credential!r})"


class Injection(msgspec.Struct, frozen=True):
    """What is added to one request: of two with one name the later counts, so static ones come first."""

    headers: Sequence[Injected] = ()


class Injector(Protocol):
    """Decides what is added, for every request anew, also for those that a redirect leads to."""

    def headers(self, url: Url) -> Injection: ...


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one run may take."""

    seconds: float = 30.0
    """From a request to the end of its answer's body, redirects included."""
    response_bytes: int = 8 * 1024 * 1024
    """Of an answer's body, decompressed."""
    body_bytes: int = 8 * 1024 * 1024
    redirects: int = 20
    requests: int = 50
    """In all, those that redirects lead to included."""

    @classmethod
    def of(cls, settings: Settings) -> FetchLimits:
        return cls(
            seconds=settings.fetch_seconds,
            response_bytes=settings.fetch_bytes,
            body_bytes=settings.fetch_body_bytes,
            redirects=settings.fetch_redirects,
            requests=settings.fetch_requests,
        )


class Hop(msgspec.Struct, kw_only=True):
    """A line of the request log: where and how much, never what."""

    method: str
    host: str
    path: str
    """Without a query, which may be anything; secrets in the rest are scrubbed."""
    credentials: tuple[str, ...] = ()
    """Ids of those that were sent with it."""
    status: int | None = None
    sent_bytes: int = 0
    received_bytes: int = 0
    ms: float = 0.0
    """Until the answer's body was read, or given up."""
    error: Kind | None = None
