"""Makes an ability from recorded requests. Secrets become credentials and are never written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from hutch.cli.ability_import.models import (
    ImportedAbility,
    NeededCredential,
    credential_kinds,
    http_address,
    js,
    make_id,
)
from hutch.cli.ability_import.wrapper_code import PATH_SEGMENT
from hutch.errors import InvalidInput
from hutch.session.json_value import NotJsonSafe, decode_value

SECRET_NAME = re.compile(
    r"auth|cookie|token|secret|passw|pwd|api[-_]?key|apikey|access[-_]?key|session|signature|csrf|xsrf"
    r"|credential|^(?:key|sig|code|pin|otp)$",
    re.I,
)
_AUTHORIZATION = re.compile(r"\b(?:Bearer|Basic) +\S", re.I)
_TOKEN = re.compile(r"[A-Za-z0-9+/_=.~-]{20,}")
_DIGIT, _LETTER = re.compile("[0-9]"), re.compile("[A-Za-z]")
_IGNORED_HEADERS = frozenset(("host", "content-length", "connection", "accept-encoding"))
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_HOST = re.compile(r"[A-Za-z0-9_.-]+\Z|[0-9A-Fa-f:]+\Z")
_METHOD = re.compile(r"[A-Z]{1,20}\Z")
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


class RecordedRequest(msgspec.Struct):
    method: str = ""
    url: str = ""
    headers: list[tuple[str, str]] = []
    body: str | None = None
    has_user: bool = False
    """True if the request has HTTP Basic credentials that are not among its headers."""


class PathParameter(msgspec.Struct, frozen=True):
    """A path segment that is a parameter of the ability."""

    name: str


class _Sample(msgspec.Struct):
    """A query parameter, or a member of a body. The recorded value becomes the default, unless requests have
    different values.
    """

    type: str | list[str] | None
    default: Any
    has_default: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        return {"type": self.type} if self.type else {}


def parse_url(option: str, url: str) -> SplitResult:
    """Returns the parts of a URL of http or https. Raises InvalidInput, whose message has no values."""
    try:
        parts = urlsplit(url if "://" in url else f"https://{url}")
        _ = parts.port
    except ValueError:
        raise InvalidInput(option, "the URL cannot be parsed.") from None
    if parts.scheme not in ("http", "https") or not _HOST.match(parts.hostname or ""):
        raise InvalidInput(option, "expected a URL that starts with https://.")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput(option, "the URL contains a user name; send it as a header instead.")
    return parts


class RequestImporter:
    """Makes one ability from requests with the same method, host and path."""

    def __init__(self, option: str, parts: SplitResult, path: Sequence[str | PathParameter]) -> None:
        """`path` is the list of the path's segments, without the slashes."""
        self._option = option
        self._parts = parts
        self._host = parts.hostname or ""
        self._path = path
        self._credentials: dict[NeededCredential, None] = {}
        self._headers: dict[str, str] = {}
        self._query: dict[str, _Sample] = {}
        self._body: dict[str, _Sample] | None = None
        self._body_type = FORM
        self._has_requests = False

    def add(self, request: RecordedRequest, query: str) -> None:
        """Adds a request. Raises InvalidInput, whose message contains no values of the request."""
        headers = self._plain_headers(request)
        members = self._pairs(query, "query")
        body = None if request.body is None else self._parse_body(request.body, headers)
        self._headers = {**headers, **self._headers}
        self._query = _merge(self._query, members) if self._has_requests else members
        if body is not None:
            self._body = body if self._body is None else _merge(self._body, body)
        self._has_requests = True

    def ability(self, method: str, ability_id: str | None, taken: Sequence[str] = ()) -> ImportedAbility:
        """Returns the ability. Raises InvalidInput."""
        if not _METHOD.match(method):
            raise InvalidInput(self._option, "expected a method such as GET or POST.")
        path = "".join(f"/{each if isinstance(each, str) else f'{{{each.name}}}'}" for each in self._path)
        properties = {each.name: {"type": ["string", "integer"]} for each in self._parameters}
        properties |= {
            name: each.schema for name, each in (*self._query.items(), *(self._body or {}).items())
        }
        schema: dict[str, Any] = {"type": "object", "properties": properties}
        if self._parameters:
            schema["required"] = [each.name for each in self._parameters]
        definition = {
            "ability_id": ability_id or make_id([f"{self._host} {method} {path}".lower()], taken),
            "service_name": self._host,
            "description": f"{method} {self._host}{path}",
            "static_headers": self._headers,
            "dynamic_header_keys": list(dict.fromkeys(each.key for each in self._credentials)),
            **credential_kinds(self._credentials),
            "input_schema": schema,
            "wrapper_code": self._wrapper_code(method),
        }
        return ImportedAbility(definition, list(self._credentials), http_address(self._parts))

    @property
    def _parameters(self) -> list[PathParameter]:
        return [each for each in self._path if isinstance(each, PathParameter)]

    def _wrapper_code(self, method: str) -> str:
        origin = f"{self._parts.scheme}://{self._parts.netloc}"
        url = js(origin)
        for each in self._path:
            url += (
                f" + {js('/' + each)}"
                if isinstance(each, str)
                else f' + "/" + segment(payload[{js(each.name)}])'
            )
        if not self._parameters:
            url = js(origin + "".join(f"/{each}" for each in self._path))
        lines = [f"  const url = new URL({url});", *_setters("url.searchParams", self._query)]
        init = [f"method: {js(method)}"]
        if self._body is not None and self._body_type == JSON:
            members = (f"{js(name)}: {_payload(name, each)}" for name, each in self._body.items())
            init.append(f"body: JSON.stringify({{ {', '.join(members)} }})")
        elif self._body is not None:
            lines += ["  const form = new URLSearchParams();", *_setters("form", self._body)]
            init.append("body: form.toString()")
        lines.append(f"  return await fetch(url, {{ {', '.join(init)} }});")
        helpers = PATH_SEGMENT if self._parameters else ""
        return helpers + "\n".join(("export async function wrapper(payload) {", *lines, "}", ""))

    def _need(self, name: str, kind: str, hint: str = "") -> None:
        self._credentials[NeededCredential(f"{self._host}::{name}", kind, hint)] = None

    def _plain_headers(self, request: RecordedRequest) -> dict[str, str]:
        """Returns the headers that are not secret."""
        headers: dict[str, str] = {}
        if request.has_user:
            self._need("Authorization", "header", "Basic, a space, and USER:PASSWORD in base64")
        for name, value in request.headers:
            if name.lower() == "cookie":
                self._need("Cookie", "cookie")
            elif _is_secret(name, value):
                self._need(name, "header")
            elif name and name.lower() not in _IGNORED_HEADERS:
                headers[name] = value
        return headers

    def _pairs(self, text: str, kind: str) -> dict[str, _Sample]:
        samples = self._members(dict(parse_qsl(text, keep_blank_values=True)), kind)
        for sample in samples.values():
            if sample.default.isdecimal():
                sample.type = ["string", "integer"]
        return samples

    def _members(self, members: dict[str, Any], kind: str) -> dict[str, _Sample]:
        """Returns the members that are not secret."""
        samples: dict[str, _Sample] = {}
        for name, value in members.items():
            if _is_secret(name, value):
                self._need(name, kind)
            elif _contains_secret(value):
                reason = f"{name[:40]!r} contains a nested secret; only top-level members may be secrets."
                raise InvalidInput(self._option, reason)
            else:
                kind_of_value = None if value is None else _TYPES.get(type(value), "object")
                samples[name] = _Sample(kind_of_value, value)
        return samples

    def _parse_body(self, data: str, headers: dict[str, str]) -> dict[str, _Sample]:
        """Returns the members of a body.

        If there is no Content-Type, adds one: JSON if the body is a JSON object, otherwise that of a form, as
        curl does. If a JSON object were read as a form, the whole text, with its secrets, would become the
        name of a field.
        """
        given = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
        try:
            value = decode_value(data.encode())
        except (NotJsonSafe, UnicodeEncodeError):
            value = None
        if given is None:
            headers["Content-Type"] = given = JSON if isinstance(value, dict) else FORM
        if given.startswith(FORM):
            return self._pairs(data, "body")
        if not isinstance(value, dict):
            raise InvalidInput(self._option, "expected a body that is a JSON object or a form.")
        self._body_type = JSON
        return self._members(value, "body")


def looks_secret(value: object) -> bool:
    """Returns True for texts that look like a token: long, without spaces, with letters and digits."""
    if not isinstance(value, str):
        return False
    # Split the text into words and use one simple pattern per condition, because this takes linear time for
    # any text.
    words = (word for word in value.split() if _TOKEN.search(word))
    return _AUTHORIZATION.search(value) is not None or any(
        _DIGIT.search(word) and _LETTER.search(word) for word in words
    )


def _merge(one: dict[str, _Sample], other: dict[str, _Sample]) -> dict[str, _Sample]:
    """Merges the members of two requests. A member gets no default if its values differ or if one request
    lacks it.
    """
    merged: dict[str, _Sample] = {}
    for name in dict.fromkeys((*one, *other)):
        first = one[name] if name in one else other[name]
        second = other.get(name, first)
        is_same = name in one and name in other and first.default == second.default
        merged[name] = _Sample(
            first.type if first.type == second.type else None, first.default, is_same and first.has_default
        )
    return merged


def _setters(target: str, members: dict[str, _Sample]) -> list[str]:
    return [
        f"  {target}.set({js(name)}, {_payload(name, each)});"
        if each.has_default
        else f"  if (payload[{js(name)}] !== undefined) {target}.set({js(name)}, payload[{js(name)}]);"
        for name, each in members.items()
    ]


def _payload(name: str, sample: _Sample) -> str:
    return f"payload[{js(name)}]{f' ?? {js(sample.default)}' if sample.has_default else ''}"


def _is_secret(name: str, value: object) -> bool:
    return SECRET_NAME.search(name) is not None or looks_secret(value)


def _contains_secret(value: object) -> bool:
    pending = [value]
    while pending:
        match pending.pop():
            case dict() as members:
                if any(_is_secret(name, item) for name, item in members.items()):
                    return True
                pending += members.values()
            case list() as items:
                if any(looks_secret(item) for item in items):
                    return True
                pending += items
    return False
