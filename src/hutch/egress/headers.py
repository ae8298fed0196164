"""One value per header: what the host adds, what a guest sets, and what neither has a say in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from hutch.egress.fetch import FetchError, Headers, Injected

MAX_HEADERS = 256
MAX_HEADER_BYTES = 64 * 1024

_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
# RFC 9110, section 5.5, as bytes: no CR, LF, NUL or other control characters but the tab.
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
# Framing and connection are the broker's alone; so is the encoding, which is undone before scrubbing.
_FORBIDDEN = frozenset(
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
# What must not follow a redirect to somebody else.
_OF_ONE_ORIGIN = frozenset(("authorization", "cookie"))
_OF_A_BODY = frozenset(("content-encoding", "content-language", "content-location", "content-type"))


class Merged(msgspec.Struct, frozen=True):
    """What is sent, and the ids of the credentials among it."""

    headers: Headers
    credentials: tuple[str, ...]


def merge(injected: Sequence[Injected], own: Iterable[tuple[str, str]]) -> Merged:
    """One value per name, whatever its case: the last of the injected, or else the guest's own.

    A guest that sets a header twice means both. Cookies are joined, all of them. Raises FetchError.
    """
    chosen: dict[str, tuple[str, str, tuple[str, ...]]] = {}
    cookies: list[str] = []
    carried: list[str] = []
    for header in injected:
        name = _checked(header.name, header.value)
        ids = (header.credential,) if header.credential is not None else ()
        if name == "cookie":
            cookies.append(header.value.strip(" \t;"))
            carried.extend(ids)
        elif not _is_forbidden(name):
            chosen[name] = (header.name, header.value.strip(" \t"), ids)
    mine: dict[str, tuple[str, str]] = {}
    for count, (given, value) in enumerate(own):
        if count >= MAX_HEADERS:
            raise _too_many()  # before they are joined, which takes the longer the more there are
        name = _checked(given, value)
        if name == "cookie":
            cookies.append(value.strip(" \t;"))
        elif not _is_forbidden(name):
            before = mine.get(name)
            text = value.strip(" \t")
            mine[name] = (given, text) if before is None else (before[0], f"{before[1]}, {text}")
    for name, (given, value) in mine.items():
        chosen[name] = (given, value, ())
    headers = [(given, value) for given, value, _ in chosen.values()]
    ids_sent = [each for _, _, ids in chosen.values() for each in ids]
    if joined := "; ".join(filter(None, cookies)):
        headers.append(("Cookie", joined))
        ids_sent += carried
    _check_size(headers)
    return Merged(headers, tuple(dict.fromkeys(ids_sent)))


def for_elsewhere(own: Headers) -> Headers:
    """A guest's own headers, after a redirect to another origin."""
    return [(name, value) for name, value in own if name.lower() not in _OF_ONE_ORIGIN]


def without_body(own: Headers) -> Headers:
    """A guest's own headers, after a redirect that makes a GET of it."""
    return [(name, value) for name, value in own if name.lower() not in _OF_A_BODY]


def _checked(name: str, value: str) -> str:
    if not _NAME.fullmatch(name):
        raise FetchError("bad_header", f"{name[:64]!r} is no name for a header.")
    if not _VALUE.fullmatch(value):
        what = "line breaks, control characters or characters beyond Latin-1"
        raise FetchError(
            "bad_header", f"The value of the header {name[:64]} has {what}, which cannot be sent."
        )
    return name.lower()


def _is_forbidden(name: str) -> bool:
    return name in _FORBIDDEN or name.startswith("proxy-")


def _check_size(headers: Headers) -> None:
    if len(headers) > MAX_HEADERS:
        raise _too_many()
    if sum(len(name) + len(value) + 4 for name, value in headers) > MAX_HEADER_BYTES:
        raise FetchError("bad_header", f"The headers have more than {MAX_HEADER_BYTES // 1024} KiB.")


def _too_many() -> FetchError:
    return FetchError("bad_header", f"There are more than {MAX_HEADERS} headers.")
