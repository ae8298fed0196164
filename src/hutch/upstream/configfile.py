"""One file of MCP servers: read, checked, its variables replaced; and where in it everything stands."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias
from urllib.parse import urlsplit

from hutch.errors import ConfigError
from hutch.upstream.entries import Endpoint, OAuthClient, Program, Protocol, ServerConfig
from hutch.upstream.positions import dotted, line_of

SERVERS = "mcpServers"
MAX_BYTES = 4 * 1024 * 1024

_KINDS: dict[str, Literal["stdio", "http", "sse"]] = {
    "stdio": "stdio",
    "http": "http",
    "sse": "sse",
    # What other clients call it.
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
}
_COMMON = ("type", "disabled", "includeTools", "excludeTools", "connectSeconds", "callSeconds")
_KEYS = {
    "stdio": (*_COMMON, "command", "args", "env", "cwd"),
    "http": (*_COMMON, "url", "headers", "oauth"),
}
_OAUTH = ("clientId", "clientSecret", "scope", "port")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

Where: TypeAlias = tuple[str | int, ...]


class ConfigFile:
    """Raises ConfigError; `warnings` are what can be lived with."""

    def __init__(self, path: Path, environ: Mapping[str, str]) -> None:
        self.path = path
        self.environ = environ
        self.warnings: list[str] = []
        self._text = self._read()
        self._unset: list[str] = []

    def servers(self) -> dict[str, ServerConfig]:
        root = self._object(self._parse(), ())
        self._warn_of_others(root, (SERVERS, "$schema"), ())
        entries = self._object(root.get(SERVERS, {}), (SERVERS,))
        found = {name: self._server(name, entry) for name, entry in entries.items()}
        return {name: server for name, server in found.items() if server is not None}

    def _server(self, name: str, entry: Any) -> ServerConfig | None:
        where: Where = (SERVERS, name)
        if not name.strip() or not name.isprintable() or len(name) > 200:
            self._fail(where, "expected a name of printable characters, at most 200")
        fields = self._object(entry, where)
        self._unset = []
        kind = self._kind(fields, where)
        self._warn_of_others(fields, _KEYS["stdio" if kind == "stdio" else "http"], where)
        reach = self._program(fields, where) if kind == "stdio" else self._endpoint(fields, where, kind)
        server = ServerConfig(
            name=name,
            reach=reach,
            include=self._texts(fields, "includeTools", where) if "includeTools" in fields else None,
            exclude=self._texts(fields, "excludeTools", where),
            connect_seconds=self._seconds(fields, "connectSeconds", where),
            call_seconds=self._seconds(fields, "callSeconds", where),
            problem="; ".join(self._unset) or None,
        )
        return None if self._get(fields, "disabled", where, bool, "true or false") else server

    def _kind(self, fields: Mapping[str, Any], where: Where) -> Literal["stdio", "http", "sse", "either"]:
        if "type" in fields:
            told = self._text_of(fields["type"], (*where, "type"))
            if told not in _KINDS:
                self._fail((*where, "type"), f"expected stdio, http or sse, got {told!r}")
            return _KINDS[told]
        if "command" in fields and "url" in fields:
            self._fail(where, "has both `command` and `url`", "Keep one, or say `type`.")
        if "command" not in fields and "url" not in fields:
            self._fail(where, "expected `command` (a program to start) or `url`")
        return "stdio" if "command" in fields else "either"

    def _program(self, fields: Mapping[str, Any], where: Where) -> Program:
        cwd = self._optional_text(fields, "cwd", where)
        return Program(
            command=self._required_text(fields, "command", where),
            args=self._texts(fields, "args", where),
            env=self._table(fields, "env", where, self._check_variable),
            # Relative to the file, wherever we were started.
            cwd=None if cwd is None else str(self.path.absolute().parent / Path(cwd).expanduser()),
        )

    def _endpoint(self, fields: Mapping[str, Any], where: Where, protocol: Protocol) -> Endpoint:
        url = self._required_text(fields, "url", where)
        if not self._unset:
            self._check_url(url, fields["url"], (*where, "url"))
        return Endpoint(
            url=url,
            headers=self._table(fields, "headers", where, self._check_header),
            protocol=protocol,
            oauth=self._oauth(fields.get("oauth", {}), (*where, "oauth")),
        )

    def _oauth(self, entry: Any, where: Where) -> OAuthClient:
        fields = self._object(entry, where)
        self._warn_of_others(fields, _OAUTH, where)
        port = self._get(fields, "port", where, int, "a port number") or 0
        if not 0 <= port <= 65535:
            self._fail((*where, "port"), f"expected a number from 0 to 65535, got {port}")
        return OAuthClient(
            client_id=self._optional_text(fields, "clientId", where),
            client_secret=self._optional_text(fields, "clientSecret", where),
            scope=self._optional_text(fields, "scope", where),
            port=port,
        )

    # --- values ---

    def _object(self, value: Any, where: Where) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._fail(where, f"expected an object, got {_kind_of(value)}")
        return value

    def _get(self, fields: Mapping[str, Any], key: str, where: Where, kind: type, words: str) -> Any:
        value = fields.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
            self._fail((*where, key), f"expected {words}, got {_kind_of(value)}")
        return value

    def _seconds(self, fields: Mapping[str, Any], key: str, where: Where) -> float | None:
        value = fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 86_400:
            self._fail((*where, key), "expected a number of seconds above 0, at most 86400")
        return float(value)

    def _optional_text(self, fields: Mapping[str, Any], key: str, where: Where) -> str | None:
        return self._text_of(fields[key], (*where, key)) if fields.get(key) is not None else None

    def _required_text(self, fields: Mapping[str, Any], key: str, where: Where) -> str:
        if fields.get(key) is None:
            self._fail(where, f"`{key}` is missing")
        text = self._text_of(fields[key], (*where, key))
        if not text.strip() and not self._unset:
            self._fail((*where, key), "is empty")
        return text

    def _texts(self, fields: Mapping[str, Any], key: str, where: Where) -> tuple[str, ...]:
        values = fields.get(key)
        if values is None:
            return ()
        if not isinstance(values, list):
            self._fail((*where, key), f"expected a list of strings, got {_kind_of(values)}")
        return tuple(self._text_of(each, (*where, key, number)) for number, each in enumerate(values))

    def _table(
        self, fields: Mapping[str, Any], key: str, where: Where, check: Callable[[str, str, Where], None]
    ) -> dict[str, str]:
        entries = self._object(fields.get(key) or {}, (*where, key))
        table = {}
        for name, value in entries.items():
            table[name] = self._text_of(value, (*where, key, name))
            check(name, table[name], (*where, key, name))
        return table

    def _text_of(self, value: Any, where: Where) -> str:
        """The text with its variables replaced. One that is not set spoils the server, not the file."""
        if not isinstance(value, str):
            quoted = isinstance(value, (bool, int, float))
            self._fail(
                where,
                f"expected a string, got {_kind_of(value)}",
                f'Write it in quotes: "{json.dumps(value)}".' if quoted else None,
            )

        def replace(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            if self.environ.get(name) or (default is None and name in self.environ):
                return self.environ[name]
            if default is None:
                self._unset.append(
                    f"{self._place(where)}: the variable {name} is not set"
                    f" (write ${{{name}:-}} where an empty text will do)"
                )
            return default or ""

        text = _VARIABLE.sub(replace, value)
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            self._fail(where, "has a character that no program could be given")
        return text

    def _check_variable(self, name: str, _: str, where: Where) -> None:
        if not name or "=" in name or "\0" in name:
            self._fail(where, "is no name that a variable can have")

    def _check_header(self, name: str, value: str, where: Where) -> None:
        if not _HEADER.fullmatch(name):
            self._fail(where, "is no name that a header can have")
        if "\r" in value or "\n" in value or not value.isascii():
            self._fail(where, "expected ASCII text in one line")

    def _check_url(self, url: str, written: str, where: Where) -> None:
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            good = False
        if not good or any(character.isspace() for character in url):
            self._fail(where, f"expected a URL that begins with http:// or https://, got {written!r}")

    # --- the text ---

    def _read(self) -> str:
        try:
            with self.path.open("rb") as opened:
                data = opened.read(MAX_BYTES + 1)
        except FileNotFoundError:
            raise ConfigError(str(self.path), None, "", "there is no such file.") from None
        except OSError as error:
            raise ConfigError(str(self.path), None, "", f"cannot be read: {error.strerror}.") from None
        if len(data) > MAX_BYTES:
            raise ConfigError(str(self.path), None, "", f"is larger than {MAX_BYTES} bytes.")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigError(str(self.path), line, "", "is not UTF-8 text.") from None

    def _parse(self) -> Any:
        twice: set[str] = set()

        def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
            seen = dict(members)
            if len(seen) < len(members):
                names = [name for name, _ in members]
                twice.update(name for name in names if names.count(name) > 1)
            return seen

        try:
            parsed = json.loads(self._text, object_pairs_hook=pairs)
        except json.JSONDecodeError as error:
            raise ConfigError(
                str(self.path), error.lineno, "", f"is not JSON: {error.msg} (column {error.colno})."
            ) from None
        except RecursionError:
            raise ConfigError(str(self.path), None, "", "is nested too deep.") from None
        for name in sorted(twice):
            self.warnings.append(
                f"{self.path}: the key {name!r} stands twice in one object; the last counts."
            )
        return parsed

    def _warn_of_others(self, fields: Mapping[str, Any], known: Sequence[str], where: Where) -> None:
        for key in fields:
            if key not in known:
                near = get_close_matches(key, known, 1)
                hint = f" Did you mean {near[0]}?" if near else ""
                self.warnings.append(f"{self._place((*where, key))}: nobody reads this key.{hint}")

    def _place(self, where: Where) -> str:
        return f"{self.path}:{line_of(self._text, where)}: {dotted(where)}"

    def _fail(self, where: Where, message: str, remedy: str | None = None) -> NoReturn:
        line = line_of(self._text, where)
        raise ConfigError(str(self.path), line, dotted(where), f"{message}.", remedy=remedy)


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")
