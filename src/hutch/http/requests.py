"""Reads requests: bounded JSON bodies and query parameters, with the same rules for all protocols.

Does not import Starlette, because the gateway also uses this module for requests from jails.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec

from hutch.http.errors import ApiError
from hutch.session.json_value import NotJsonSafe, kind_of
from hutch.session.large_json import LARGE_TEXT_BYTES, DuplicateKey, decode_large_value
from hutch.strict_json import find_duplicate_key
from hutch.text import printable

if TYPE_CHECKING:
    from starlette.requests import Request

# Header with the id of the run whose script makes the request. The process that runs the script sets this
# header. The header is trusted because the same request carries the operator's key.
RUN_HEADER = "x-hutch-run"
MAX_TEXT_CHARS = 1_000
# Maximum number of values in a body. It is higher than the limit for messages of guests, because a table of
# 100 000 rows is a reasonable parameter of a tool.
MAX_BODY_VALUES = 1_000_000
# Query parameters with more digits are refused.
_MAX_DIGITS = 18
_CHARSETS = ("utf-8", "utf8", "us-ascii")


class JsonBodyReader:
    """Reads request bodies, with limits on size and time."""

    def __init__(self, max_bytes: int, seconds: float, max_values: int = MAX_BODY_VALUES) -> None:
        """`max_values` limits the number of values in a body."""
        self.max_bytes = max_bytes
        self._max_values = max_values
        self._seconds = seconds
        self._large_body = asyncio.Lock()

    async def read_object(self, request: Request, *, optional: bool = False) -> dict[str, Any]:
        """Returns a JSON object. With `optional`, an empty body is an empty object.

        Raises ApiError if the body is not valid, ClientDisconnect if the client disconnects.
        """
        check_headers(request.headers.get, self.max_bytes)
        body = await self.read_bytes(request)
        if not body.strip():
            if optional:
                return {}
            raise ApiError("invalid_request", "body: expected a JSON object, got nothing")
        if len(body) <= LARGE_TEXT_BYTES:
            return _as_object(await _decode(body, self._max_values))
        # Decode only one large body at a time, because a decoded body takes several times its size.
        async with self._large_body:
            return _as_object(await _decode(body, self._max_values))

    async def read_text(self, request: Request, max_bytes: int) -> str:
        """Returns a body in UTF-8 that is not JSON. The caller checks its content type. Raises like
        `read_object`.
        """
        body = await self.read_bytes(request, min(max_bytes, self.max_bytes))
        try:
            return body.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ApiError(
                "invalid_request", f"body: expected UTF-8, but byte {error.start} is not valid"
            ) from None

    async def read_bytes(self, request: Request, max_bytes: int | None = None) -> bytes:
        """Returns the body. The caller checks its content type. Raises like `read_object`."""
        _check_length(request.headers.get, max_bytes or self.max_bytes)
        parts, size = [], 0
        try:
            async with asyncio.timeout(self._seconds), aclosing(request.stream()) as stream:
                async for part in stream:
                    size += len(part)
                    check_size(size, max_bytes or self.max_bytes)
                    parts.append(part)
        except TimeoutError:
            message = f"body: did not arrive within {self._seconds:g} s"
            raise ApiError("invalid_request", message) from None
        return b"".join(parts)


def check_headers(header: Callable[[str], str | None], max_bytes: int) -> None:
    """Checks the headers before the body is read. Raises ApiError if they announce a body that is too large
    or not JSON.
    """
    _check_length(header, max_bytes)
    content_type = header("content-type")
    # Other content types are refused, because browsers send some of them to other sites without a preflight
    # request.
    if content_type is not None and not _is_json(content_type):
        message = f"Content-Type: expected application/json, got {content_type[:60]!r}"
        raise ApiError("unsupported_media_type", message)


def _check_length(header: Callable[[str], str | None], max_bytes: int) -> None:
    length = header("content-length") or ""
    if length.isdecimal():
        check_size(int(length[:20]), max_bytes)
    encoding = (header("content-encoding") or "identity").strip().lower()
    if encoding != "identity":
        message = f"Content-Encoding: expected none, got {encoding[:60]!r}"
        raise ApiError("unsupported_media_type", message)


def check_size(size: int, max_bytes: int) -> None:
    """Raises ApiError if the body is too large."""
    if size > max_bytes:
        raise ApiError("too_large", f"body: the maximum is {max_bytes} bytes")


async def parse_optional_object(body: bytes) -> dict[str, Any]:
    """Decodes a body that the caller has read. An empty body is an empty object. Raises ApiError."""
    return _as_object(await _decode(body, MAX_BODY_VALUES)) if body.strip() else {}


async def _decode(body: bytes, max_values: int) -> Any:
    """Decodes a JSON body. Refuses an object that has a key twice, because parsers differ in which of the two
    values they use.
    """
    value = None
    try:
        value = await decode_large_value(body, max_values)
        may_lack_keys = len(body) <= LARGE_TEXT_BYTES and not _has_all_keys(value, body)
    except DuplicateKey:
        may_lack_keys = True
    except NotJsonSafe as error:
        raise ApiError("invalid_request", f"body: {error}") from None
    if may_lack_keys:
        # Search in a thread, because this takes about a second for ten megabytes.
        key = await asyncio.to_thread(find_duplicate_key, body)
        if key is not None:
            message = f"body: expected each key once in an object, got {printable(key[:40])!r} twice"
            raise ApiError("invalid_request", message)
    return value


def _has_all_keys(value: Any, body: bytes) -> bool:
    """Returns False if the body may have a key twice. Compares the number of colons in the body and in the
    encoded value, because dropped keys leave fewer colons.
    """
    if b"\\u003a" in body or b"\\u003A" in body:
        # The body has an escaped colon, which becomes a plain one when the value is encoded. So the counts
        # would differ. Let the caller search for duplicate keys.
        return False
    try:
        return body.count(b":") == msgspec.json.encode(value).count(b":")
    except ValueError:
        # The value has lone surrogates and cannot be encoded. Let the caller search for duplicate keys.
        return False


def _as_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ApiError("invalid_request", f"body: expected an object, got {kind_of(value)}")
    return value


def _is_json(content_type: str) -> bool:
    name, *parameters = (part.strip().lower() for part in content_type.split(";"))
    kind, _, subtype = name.partition("/")
    charsets = [part[8:].strip('"') for part in parameters if part.startswith("charset=")]
    is_json = kind == "application" and (subtype == "json" or subtype.endswith("+json"))
    return is_json and all(charset in _CHARSETS for charset in charsets)


def is_yaml(content_type: str | None) -> bool:
    """Returns True for the content types of YAML. Browsers ask with a preflight request before they send one
    of them to another site.
    """
    name = (content_type or "").partition(";")[0].strip().lower()
    return name in ("application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml")


# --- query parameters ---


def query_integer(
    params: Mapping[str, str], name: str, default: int, maximum: int, *, minimum: int = 1
) -> int:
    """Returns an integer parameter, or the default if it is missing or empty. Raises ApiError."""
    value = params.get(name, "").strip()
    if not value:
        return default
    is_integer = value.isascii() and value.isdecimal() and len(value) <= _MAX_DIGITS
    if is_integer and minimum <= int(value) <= maximum:
        return int(value)
    raise _not_in_range(name, minimum, maximum, value)


def query_number(
    params: Mapping[str, str], name: str, default: float, maximum: float, *, minimum: float = 0
) -> float:
    """Like `query_integer`, for numbers with decimals."""
    value = params.get(name, "").strip()
    if not value:
        return default
    with contextlib.suppress(ValueError):
        number = float(value)
        if minimum <= number <= maximum:
            return number
    raise _not_in_range(name, minimum, maximum, value)


def query_text(params: Mapping[str, str], name: str) -> str:
    value = params.get(name, "")
    if "\0" in value or len(value) > MAX_TEXT_CHARS:
        message = f"{name}: expected at most {MAX_TEXT_CHARS} characters, without NUL"
        raise ApiError("invalid_request", message)
    return value


def query_flag(params: Mapping[str, str], name: str) -> bool:
    return params.get(name, "").lower() in ("true", "1", "yes")


def _not_in_range(name: str, minimum: float, maximum: float, value: str) -> ApiError:
    message = f"{name}: expected a number from {minimum:.17g} to {maximum:.17g}, got {value[:40]!r}"
    return ApiError("invalid_request", message)
