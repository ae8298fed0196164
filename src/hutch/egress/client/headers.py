"""Merges the headers that the host injects with the headers that the guest sets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from hutch.egress.client.models import FetchError, Headers, InjectedHeader

MAX_HEADERS = 256
MAX_HEADER_BYTES = 64 * 1024

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# Allowed bytes of a value (RFC 9110, section 5.5): no control characters except the tab.
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# Headers that guests cannot set. The client sets the headers for framing and for the connection. It also
# chooses the encoding, because it decompresses bodies before redaction.
_FORBIDDEN_HEADERS = frozenset(
    (
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
# Headers that are removed before a redirect to another origin.
_ORIGIN_HEADERS = frozenset(("authorization", "cookie"))
# Header that `fetch` adds if the body is a string and the wrapper sets no Content-Type.
_DEFAULT_TYPE = ("content-type", "text/plain;charset=UTF-8")
_BODY_HEADERS = frozenset(("content-encoding", "content-language", "content-location", "content-type"))


class MergedHeaders(msgspec.Struct, frozen=True):
    """Headers to send, and the ids of the credentials that they contain."""

    headers: Headers
    credentials: tuple[str, ...]


def merge_headers(
    injected: Sequence[InjectedHeader], guest_headers: Iterable[tuple[str, str]]
) -> MergedHeaders:
    """Merges headers by name, ignoring case. A header of the guest replaces an injected one, except for the
    default Content-Type that `fetch` itself adds to texts. A later injected header replaces an earlier one.
    If the guest sets a header several times, its values are joined. All cookies are joined too. Raises
    FetchError.
    """
    chosen: dict[str, tuple[str, str, tuple[str, ...]]] = {}
    cookies: list[str] = []
    cookie_credentials: list[str] = []
    for header in injected:
        name = _validate(header.name, header.value)
        ids = (header.credential,) if header.credential is not None else ()
        if name == "cookie":
            cookies.append(header.value.strip(" \t;"))
            cookie_credentials.extend(ids)
        elif not _is_forbidden(name):
            chosen[name] = (header.name, header.value.strip(" \t"), ids)
    guest: dict[str, tuple[str, str]] = {}
    for count, (given, value) in enumerate(guest_headers):
        if count >= MAX_HEADERS:
            raise _too_many()  # check this first: joining takes quadratic time
        name = _validate(given, value)
        if name == "cookie":
            cookies.append(value.strip(" \t;"))
        elif not _is_forbidden(name):
            before = guest.get(name)
            text = value.strip(" \t")
            guest[name] = (given, text) if before is None else (before[0], f"{before[1]}, {text}")
    for name, (given, value) in guest.items():
        if name not in chosen or (name, value) != _DEFAULT_TYPE:
            chosen[name] = (given, value, ())
    headers = [(given, value) for given, value, _ in chosen.values()]
    ids_sent = [credential for _, _, ids in chosen.values() for credential in ids]
    if joined := "; ".join(filter(None, cookies)):
        headers.append(("Cookie", joined))
        ids_sent += cookie_credentials
    _check_size(headers)
    return MergedHeaders(headers, tuple(dict.fromkeys(ids_sent)))


def without_origin_headers(guest_headers: Headers) -> Headers:
    return [(name, value) for name, value in guest_headers if name.lower() not in _ORIGIN_HEADERS]


def without_body_headers(guest_headers: Headers) -> Headers:
    return [(name, value) for name, value in guest_headers if name.lower() not in _BODY_HEADERS]


def _validate(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise FetchError("bad_header", f"{name[:64]!r} is not a valid header name.")
    if not _VALUE.fullmatch(value):
        what = "line breaks, control characters or characters beyond Latin-1"
        raise FetchError(
            "bad_header", f"The value of the header {name[:64]} has {what}, which cannot be sent."
        )
    return name.lower()


def _is_forbidden(name: str) -> bool:
    return name in _FORBIDDEN_HEADERS or name.startswith("proxy-")


def _check_size(headers: Headers) -> None:
    if len(headers) > MAX_HEADERS:
        raise _too_many()
    if sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
        raise FetchError("bad_header", f"The headers have more than {MAX_HEADER_BYTES // 1024} KiB.")


def _too_many() -> FetchError:
    return FetchError("bad_header", f"There are more than {MAX_HEADERS} headers.")
