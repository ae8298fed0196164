"""Makes an ability from a curl command. Secrets become credentials and are never written."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import msgspec

from hutch.errors import InvalidInput

_SECRET_NAME = re.compile(
    r"auth|cookie|token|secret|passw|pwd|api[-_]?key|apikey|access[-_]?key|session|signature|csrf|xsrf"
    r"|credential|^(?:key|sig|code|pin|otp)$",
    re.I,
)
# Options of curl that change nothing in the request that an ability makes.
_IGNORED_FLAGS = frozenset(
    [
        "-s",
        "--silent",
        "-S",
        "--show-error",
        "-L",
        "--location",
        "-v",
        "--verbose",
        "-i",
        "--include",
        "--compressed",
        "-f",
        "--fail",
        "-g",
        "--globoff",
        "-k",
        "--insecure",
        "--http1.1",
        "--http2",
        "-#",
    ]
)
_IGNORED_WITH_VALUE = frozenset(("-o", "--output", "-m", "--max-time", "--connect-timeout", "--retry"))
_DATA = frozenset(
    ("-d", "--data", "--data-raw", "--data-ascii", "--data-binary", "--json", "--data-urlencode")
)
_IGNORED_HEADERS = frozenset(("host", "content-length", "connection", "accept-encoding"))
_TOKEN = re.compile(r"(?=[^\s]*[0-9])(?=[^\s]*[A-Za-z])[A-Za-z0-9+/_=.~-]{20,}|\b(?:Bearer|Basic) +\S", re.I)
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"


class NeededCredential(msgspec.Struct, frozen=True):
    """A credential that the command contains. Its value is not kept."""

    key: str
    kind: str


class ImportedAbility(msgspec.Struct, frozen=True):
    definition: dict[str, Any]
    credentials: list[NeededCredential]


class _Request(msgspec.Struct):
    method: str = ""
    url: str = ""
    headers: list[tuple[str, str]] = []
    data: list[str] = []
    is_get: bool = False
    has_user: bool = False


def import_curl(command: str, ability_id: str | None = None) -> ImportedAbility:
    """Converts a curl command. Raises InvalidInput, whose message contains no values of the command."""
    request = _parse(command)
    parts = urlsplit(request.url if "://" in request.url else f"https://{request.url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("--curl", "expected a URL that starts with https://.")
    if parts.username is not None or parts.password is not None:
        raise InvalidInput("--curl", "the URL contains a user name; use -u instead.")
    return _Importer(request, parts.hostname).ability(parts, ability_id)


def _parse(command: str) -> _Request:
    try:
        words = iter(shlex.split(command.replace("\\\n", " ").replace("\\\r\n", " ")))
    except ValueError as error:
        raise InvalidInput("--curl", f"cannot be parsed: {error}.") from None
    if next(words, "") != "curl":
        raise InvalidInput("--curl", "expected a command that starts with `curl`.")
    request = _Request()
    for word in _separate_values(words):
        option, _, value = word.partition("\0")
        match option:
            case "":
                request.url = value
            case "-X" | "--request":
                request.method = value.upper()
            case "-H" | "--header":
                name, _, text = value.partition(":")
                request.headers.append((name.strip(), text.strip()))
            case "-b" | "--cookie":
                request.headers.append(("Cookie", value))
            case "-A" | "--user-agent":
                request.headers.append(("User-Agent", value))
            case "-e" | "--referer":
                request.headers.append(("Referer", value))
            case "-u" | "--user":
                request.has_user = True
            case "-G" | "--get":
                request.is_get = True
            case "-I" | "--head":
                request.method = "HEAD"
            case _:
                if value.startswith("@") and option != "--data-raw":
                    raise InvalidInput("--curl", f"{option} reads a file; write the data itself.")
                request.data.append(value)
                if option == "--json":
                    request.headers += [("Content-Type", _JSON), ("Accept", _JSON)]
    return request


_WITH_VALUE = _DATA.union(
    [
        "-X",
        "--request",
        "-H",
        "--header",
        "-b",
        "--cookie",
        "-A",
        "--user-agent",
        "-e",
        "--referer",
        "-u",
        "--user",
        "--url",
    ]
)


def _separate_values(words: Iterator[str]) -> Iterator[str]:
    """Yields options with their values, separated by NUL. A URL has no option."""
    for word in words:
        option, value = word, None
        if word.startswith("--") and "=" in word:
            option, _, value = word.partition("=")
        elif len(word) > 2 and word[0] == "-" and word[1] != "-" and word[:2] in _WITH_VALUE:
            option, value = word[:2], word[2:]
        if option in _WITH_VALUE or option in _IGNORED_WITH_VALUE:
            value = next(words, "") if value is None else value
            if option in _WITH_VALUE:
                yield f"{'' if option == '--url' else option}\0{value}"
        elif option in ("-G", "--get", "-I", "--head"):
            yield f"{option}\0"
        elif option.startswith("-"):
            if option not in _IGNORED_FLAGS and not re.fullmatch(r"-[sSLvifgk#]+", option):
                raise InvalidInput("--curl", f"the option {option[:40]} is not supported.")
        else:
            yield f"\0{word}"


class _Importer:
    def __init__(self, request: _Request, host: str) -> None:
        self._request = request
        self._host = host
        self._credentials: dict[NeededCredential, None] = {}
        self._properties: dict[str, Any] = {}

    def ability(self, parts: SplitResult, ability_id: str | None) -> ImportedAbility:
        request = self._request
        if any(_looks_secret(part) for part in parts.path.split("/")):
            raise InvalidInput("--curl", "the path seems to contain a secret, which abilities cannot add.")
        headers = self._headers()
        data = "&".join(request.data) if request.data else None
        query = parts.query
        if request.is_get and data is not None:
            query, data = "&".join(filter(None, (query, data))), None
        method = request.method or ("POST" if data is not None else "GET")
        url = f"{parts.scheme}://{parts.netloc}{parts.path or '/'}"
        lines = [f"  const url = new URL({json.dumps(url)});"]
        for name, value in self._pairs(query, "query").items():
            lines.append(f"  url.searchParams.set({json.dumps(name)}, {_payload(name, value)});")
        init = [f"method: {json.dumps(method)}"]
        if data is not None:
            init.append(f"body: {self._body(data, headers)}")
        lines.append(f"  return await fetch(url, {{ {', '.join(init)} }});")
        definition = {
            "ability_id": ability_id or _make_id(method, self._host, parts.path),
            "service_name": self._host,
            "description": f"{method} {self._host}{parts.path}",
            "static_headers": headers,
            "dynamic_header_keys": [credential.key for credential in self._credentials],
            "input_schema": {"type": "object", "properties": self._properties},
            "wrapper_code": "\n".join(("export async function wrapper(payload) {", *lines, "}", "")),
        }
        return ImportedAbility(definition, list(self._credentials))

    def _need(self, name: str, kind: str) -> None:
        self._credentials[NeededCredential(f"{self._host}::{name}", kind)] = None

    def _headers(self) -> dict[str, str]:
        """Returns the headers that are not secret."""
        headers: dict[str, str] = {}
        if self._request.has_user:
            self._need("Authorization", "header")
        for name, value in self._request.headers:
            if name.lower() == "cookie":
                self._need("Cookie", "cookie")
            elif _is_secret(name, value):
                self._need(name, "header")
            elif name and name.lower() not in _IGNORED_HEADERS:
                headers[name] = value
        return headers

    def _pairs(self, text: str, kind: str) -> dict[str, Any]:
        return self._members(dict(parse_qsl(text, keep_blank_values=True)), kind)

    def _members(self, members: dict[str, Any], kind: str) -> dict[str, Any]:
        """Returns the members that are not secret, and adds them to the schema."""
        for name, value in members.items():
            if _is_secret(name, value):
                self._need(name, kind)
            elif _contains_secret(value):
                raise InvalidInput("--curl", f"{name[:40]!r} contains a secret; only its top level may.")
            else:
                self._properties[name] = (
                    {"type": _TYPES.get(type(value), "object")} if value is not None else {}
                )
        return {name: value for name, value in members.items() if name in self._properties}

    def _body(self, data: str, headers: dict[str, str]) -> str:
        """Returns the code of the body. Adds the type that curl sends by default."""
        given = next((value for name, value in headers.items() if name.lower() == "content-type"), None)
        if given is None:
            headers["Content-Type"] = given = _FORM
        if given.startswith(_FORM):
            members = self._pairs(data, "body")
            return f"new URLSearchParams({_object(members)}).toString()"
        try:
            value = json.loads(data)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise InvalidInput("--curl", "expected a body that is a JSON object or a form.")
        return f"JSON.stringify({_object(self._members(value, 'body'))})"


def _object(members: dict[str, Any]) -> str:
    return (
        "{ "
        + ", ".join(f"{json.dumps(name)}: {_payload(name, value)}" for name, value in members.items())
        + " }"
    )


def _payload(name: str, default: Any) -> str:
    return f"payload[{json.dumps(name)}] ?? {json.dumps(default)}"


def _make_id(method: str, host: str, path: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", f"{host} {method} {path}".lower()).strip("_")[:100]


def _is_secret(name: str, value: object) -> bool:
    return _SECRET_NAME.search(name) is not None or _looks_secret(value)


def _looks_secret(value: object) -> bool:
    """Returns True for texts that look like a token: long, without spaces, with letters and digits."""
    return isinstance(value, str) and _TOKEN.search(value) is not None


def _contains_secret(value: object) -> bool:
    if isinstance(value, dict):
        return any(_is_secret(name, item) or _contains_secret(item) for name, item in value.items())
    if isinstance(value, list):
        return any(_looks_secret(item) or _contains_secret(item) for item in value)
    return False
