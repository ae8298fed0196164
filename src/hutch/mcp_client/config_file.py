"""Loads the configuration of MCP servers from `.toolscript.json` in the user's home directory and in a
trusted project, or from other files of that format.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

from hutch.errors import ConfigError
from hutch.mcp_client.config import (
    HttpConfig,
    HttpProtocol,
    McpConfig,
    OAuthClient,
    ServerConfig,
    StdioConfig,
    starts_hutch,
)
from hutch.settings.config_text import ConfigText, read_config_text
from hutch.text import did_you_mean

logger = logging.getLogger("hutch.mcp_client")

DEFAULT_FILE = ".toolscript.json"

SERVERS_KEY = "mcpServers"

JsonPath = tuple[str | int, ...]

_TYPES: dict[str, Literal["stdio", "http", "sse"]] = {
    "stdio": "stdio",
    "http": "http",
    "sse": "sse",
    # Names that other MCP clients use.
    "streamable-http": "http",
    "streamableHttp": "http",
    "streamable_http": "http",
}
_COMMON_KEYS = ("type", "disabled", "includeTools", "excludeTools", "connectSeconds", "callSeconds")
_KEYS_BY_TYPE = {
    "stdio": (*_COMMON_KEYS, "command", "args", "env", "cwd"),
    "http": (*_COMMON_KEYS, "url", "headers", "oauth"),
}
_OAUTH_KEYS = ("clientId", "clientSecret", "scope", "port")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")

_WHITESPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder()


def load_config(
    paths: Sequence[Path | str] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    project: ConfigText | None = None,
    sources: Sequence[ConfigText] | None = None,
) -> McpConfig:
    """Loads configuration files. A server in a later file replaces a server with the same name.

    Without `paths`, loads ~/.toolscript.json, if it exists, and `project`, the trusted file of a project.
    With `sources`, which are files that were already read, loads only these. `environ` provides the values
    for `${NAME}`. Raises ConfigError with file, line and key. Logs a warning for unknown keys.
    """
    environ = os.environ if environ is None else environ
    servers: dict[str, ServerConfig] = {}
    files: list[str] = []
    warnings: list[str] = []
    if sources is not None:
        pass
    elif paths is None:
        sources = [source for source in (_user_source(environ), project) if source is not None]
    else:
        sources = [read_source(Path(path).expanduser()) for path in paths]
    for source in sources:
        reader = ConfigFile(source, environ)
        servers.update(reader.servers())
        files.append(str(source.path))
        warnings += reader.warnings
    for warning in warnings:
        logger.warning("%s", warning)
    return McpConfig(servers, tuple(files), tuple(warnings))


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Returns the path of the user's own configuration. The file need not exist."""
    home = environ.get("HOME")
    return Path(home) / DEFAULT_FILE if home else None


def _user_source(environ: Mapping[str, str]) -> ConfigText | None:
    path = user_file(environ)
    return None if path is None else read_config_text(path)


def read_source(path: Path) -> ConfigText:
    """Reads a file. Raises ConfigError if there is none."""
    source = read_config_text(path, regular=False)
    if source is None:
        raise ConfigError(str(path), None, "", "there is no such file.")
    return source


class ConfigFile:
    """Parses one file. Raises ConfigError. `warnings` lists minor problems."""

    def __init__(self, source: ConfigText, environ: Mapping[str, str]) -> None:
        self.path = source.path
        self.environ = environ
        self.warnings: list[str] = []
        self._text = source.text
        self._unset: list[str] = []

    def entries(self) -> dict[str, Any]:
        """Returns the servers as written in the file, before variables are replaced."""
        root = self._object(self._parse(), ())
        self._warn_of_unknown_keys(root, (SERVERS_KEY, "$schema"), ())
        return self._object(root.get(SERVERS_KEY, {}), (SERVERS_KEY,))

    def servers(self) -> dict[str, ServerConfig]:
        servers = {name: self._server(name, entry) for name, entry in self.entries().items()}
        return {name: server for name, server in servers.items() if server is not None}

    def _server(self, name: str, entry: Any) -> ServerConfig | None:
        path: JsonPath = (SERVERS_KEY, name)
        if not name.strip() or not name.isprintable() or len(name) > 200:
            self._fail(path, "expected a name of printable characters, at most 200")
        fields = self._object(entry, path)
        self._unset = []
        kind = self._kind(fields, path)
        self._warn_of_unknown_keys(fields, _KEYS_BY_TYPE["stdio" if kind == "stdio" else "http"], path)
        transport = self._stdio(fields, path) if kind == "stdio" else self._http(fields, path, kind)
        server = ServerConfig(
            name=name,
            transport=transport,
            include=self._texts(fields, "includeTools", path) if "includeTools" in fields else None,
            exclude=self._texts(fields, "excludeTools", path),
            connect_seconds=self._seconds(fields, "connectSeconds", path),
            call_seconds=self._seconds(fields, "callSeconds", path),
            problem="; ".join(self._unset) or None,
        )
        if self._get(fields, "disabled", path, bool, "true or false"):
            return None
        if isinstance(transport, StdioConfig) and starts_hutch(transport):
            self.warnings.append(
                f"{self._location(path)}: this entry is Hutch itself, which would start itself again"
                " and again. It is ignored."
            )
            return None
        return server

    def _kind(self, fields: Mapping[str, Any], path: JsonPath) -> Literal["stdio", "http", "sse", "either"]:
        if "type" in fields:
            type_name = self._text_of(fields["type"], (*path, "type"))
            if type_name not in _TYPES:
                self._fail((*path, "type"), f"expected stdio, http or sse, got {type_name!r}")
            return _TYPES[type_name]
        if "command" in fields and "url" in fields:
            self._fail(path, "has both `command` and `url`", "Keep one of them, or set `type`.")
        if "command" not in fields and "url" not in fields:
            self._fail(path, "expected `command` (a program to start) or `url`")
        return "stdio" if "command" in fields else "either"

    def _stdio(self, fields: Mapping[str, Any], path: JsonPath) -> StdioConfig:
        cwd = self._optional_text(fields, "cwd", path)
        return StdioConfig(
            command=self._required_text(fields, "command", path),
            args=self._texts(fields, "args", path),
            env=self._table(fields, "env", path, self._check_variable),
            # The folder is relative to the configuration file, not to the current directory. The current
            # directory may be a checkout of another person's repository, and programs such as npx and `python
            # -m` would run code in it.
            cwd=str(self.path.absolute().parent / Path(cwd or "").expanduser()),
        )

    def _http(self, fields: Mapping[str, Any], path: JsonPath, protocol: HttpProtocol) -> HttpConfig:
        url = self._required_text(fields, "url", path)
        if not self._unset:
            self._check_url(url, fields["url"], (*path, "url"))
        return HttpConfig(
            url=url,
            headers=self._table(fields, "headers", path, self._check_header),
            protocol=protocol,
            oauth=self._oauth(fields.get("oauth", {}), (*path, "oauth")),
        )

    def _oauth(self, entry: Any, path: JsonPath) -> OAuthClient:
        fields = self._object(entry, path)
        self._warn_of_unknown_keys(fields, _OAUTH_KEYS, path)
        port = self._get(fields, "port", path, int, "a port number") or 0
        if not 0 <= port <= 65535:
            self._fail((*path, "port"), f"expected a number from 0 to 65535, got {port}")
        return OAuthClient(
            client_id=self._optional_text(fields, "clientId", path),
            client_secret=self._optional_text(fields, "clientSecret", path),
            scope=self._optional_text(fields, "scope", path),
            port=port,
        )

    # --- fields ---

    def _object(self, value: Any, path: JsonPath) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._fail(path, f"expected an object, got {_json_type(value)}")
        return value

    def _get(self, fields: Mapping[str, Any], key: str, path: JsonPath, kind: type, expected: str) -> Any:
        value = fields.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
            self._fail((*path, key), f"expected {expected}, got {_json_type(value)}")
        return value

    def _seconds(self, fields: Mapping[str, Any], key: str, path: JsonPath) -> float | None:
        value = fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 86_400:
            self._fail((*path, key), "expected a number of seconds above 0, at most 86400")
        return float(value)

    def _optional_text(self, fields: Mapping[str, Any], key: str, path: JsonPath) -> str | None:
        return self._text_of(fields[key], (*path, key)) if fields.get(key) is not None else None

    def _required_text(self, fields: Mapping[str, Any], key: str, path: JsonPath) -> str:
        if fields.get(key) is None:
            self._fail(path, f"`{key}` is missing")
        text = self._text_of(fields[key], (*path, key))
        if not text.strip() and not self._unset:
            self._fail((*path, key), "is empty")
        return text

    def _texts(self, fields: Mapping[str, Any], key: str, path: JsonPath) -> tuple[str, ...]:
        values = fields.get(key)
        if values is None:
            return ()
        if not isinstance(values, list):
            self._fail((*path, key), f"expected a list of strings, got {_json_type(values)}")
        return tuple(self._text_of(value, (*path, key, index)) for index, value in enumerate(values))

    def _table(
        self,
        fields: Mapping[str, Any],
        key: str,
        path: JsonPath,
        check: Callable[[str, str, JsonPath], None],
    ) -> dict[str, str]:
        entries = self._object(fields.get(key) or {}, (*path, key))
        table = {}
        for name, value in entries.items():
            table[name] = self._text_of(value, (*path, key, name))
            check(name, table[name], (*path, key, name))
        return table

    def _text_of(self, value: Any, path: JsonPath) -> str:
        """Returns the text with variables replaced. A variable that is not set disables this server, not the
        whole file.
        """
        if not isinstance(value, str):
            is_scalar = isinstance(value, (bool, int, float))
            self._fail(
                path,
                f"expected a string, got {_json_type(value)}",
                f'Write it in quotes: "{json.dumps(value)}".' if is_scalar else None,
            )

        def replace(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            if self.environ.get(name) or (default is None and name in self.environ):
                return self.environ[name]
            if default is None:
                self._unset.append(
                    f"{self._location(path)}: the variable {name} is not set"
                    f" (write ${{{name}:-}} to allow an empty value)"
                )
            return default or ""

        text = _VARIABLE.sub(replace, value)
        if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
            self._fail(path, "contains a character that cannot be passed to a program")
        return text

    def _check_variable(self, name: str, _: str, path: JsonPath) -> None:
        if not name or "=" in name or "\0" in name:
            self._fail(path, "is not a valid variable name")

    def _check_header(self, name: str, value: str, path: JsonPath) -> None:
        if not _HEADER.fullmatch(name):
            self._fail(path, "is not a valid header name")
        if "\r" in value or "\n" in value or not value.isascii():
            self._fail(path, "expected one line of ASCII text")

    def _check_url(self, url: str, written: str, path: JsonPath) -> None:
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_valid = False
        if not is_valid or any(character.isspace() for character in url):
            self._fail(path, f"expected a URL that begins with http:// or https://, got {written!r}")

    # --- file ---

    def _parse(self) -> Any:
        duplicates: set[str] = set()

        def pairs(members: list[tuple[str, Any]]) -> dict[str, Any]:
            values = dict(members)
            if len(values) < len(members):
                names = [name for name, _ in members]
                duplicates.update(name for name in names if names.count(name) > 1)
            return values

        try:
            parsed = json.loads(self._text, object_pairs_hook=pairs)
        except json.JSONDecodeError as error:
            raise ConfigError(
                str(self.path), error.lineno, "", f"is not JSON: {error.msg} (column {error.colno})."
            ) from None
        except RecursionError:
            raise ConfigError(str(self.path), None, "", "is nested too deeply.") from None
        for name in sorted(duplicates):
            self.warnings.append(
                f"{self.path}: the key {name!r} occurs twice in one object; the last one counts."
            )
        return parsed

    def _warn_of_unknown_keys(self, fields: Mapping[str, Any], known: Sequence[str], path: JsonPath) -> None:
        for key in fields:
            if key not in known:
                near = did_you_mean(key, known)
                hint = f" Did you mean {near}?" if near else ""
                self.warnings.append(f"{self._location((*path, key))}: this key is unknown.{hint}")

    def _location(self, path: JsonPath) -> str:
        return f"{self.path}:{line_of(self._text, path)}: {format_path(path)}"

    def _fail(self, path: JsonPath, message: str, remedy: str | None = None) -> NoReturn:
        line = line_of(self._text, path)
        raise ConfigError(str(self.path), line, format_path(path), f"{message}.", remedy=remedy)


def variables_in(value: Any) -> list[str]:
    """Returns the names of all variables in the strings of a JSON value, in order."""
    if isinstance(value, str):
        return [match[1] for match in _VARIABLE.finditer(value)]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return list(dict.fromkeys(name for item in items for name in variables_in(item)))


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), "a number")


# --- positions in JSON ---


def line_of(text: str, path: JsonPath) -> int | None:
    """Returns the line of the value at `path`, or of the closest parent that exists. `text` is valid JSON."""
    at = _skip_whitespace(text, 0)
    place = at
    for step in path:
        member = _find_member(text, at, step)
        if member is None:
            break
        place, at = member
    return text.count("\n", 0, place) + 1


def format_path(path: JsonPath) -> str:
    """Formats a path like `servers.github.args[0]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")


def _find_member(text: str, at: int, step: str | int) -> tuple[int, int] | None:
    """Returns the offset of a member and the offset of its value. If a key occurs several times, returns the
    last member.
    """
    if text[at : at + 1] != ("[" if isinstance(step, int) else "{"):
        return None
    member = None
    number = 0
    at = _skip_whitespace(text, at + 1)
    while text[at] not in "]}":
        start, name = at, number
        if isinstance(step, str):
            name, at = _decoder.raw_decode(text, at)
            at = _skip_whitespace(text, _skip_whitespace(text, at) + 1)
        if name == step:
            member = (start, at)
        at = _skip_whitespace(text, _decoder.raw_decode(text, at)[1])
        if text[at] == ",":
            at = _skip_whitespace(text, at + 1)
        number += 1
    return member


def _skip_whitespace(text: str, at: int) -> int:
    matched = _WHITESPACE.match(text, at)
    return matched.end() if matched else at
