"""Configuration files: all fields, variables, and errors with file, line and key."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import ConfigError
from hutch.mcp_client.config import HttpConfig, ServerConfig, StdioConfig
from hutch.mcp_client.config_file import line_of, load_config
from hutch.settings.config_text import ConfigText

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(content: Any, name: str = "servers.json") -> Path:
        file = tmp_path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content, indent=2))
        return file

    return make


@pytest.fixture
def one(write: Write) -> Callable[..., ServerConfig]:
    """Returns a function that loads a file with one server and returns the configuration of this server."""

    def make(entry: Any, **environ: str) -> ServerConfig:
        (server,) = load_config([write({"mcpServers": {"it": entry}})], environ).servers.values()
        return server

    return make


One = Callable[..., ServerConfig]


def test_stdio_server_with_and_without_a_type(one: One, tmp_path: Path) -> None:
    entry = {"command": "npx", "args": ["-y", "server"], "env": {"KEY": "v"}}
    expected = StdioConfig(command="npx", args=("-y", "server"), env={"KEY": "v"}, cwd=str(tmp_path))
    assert one(entry).transport == expected
    assert one({**entry, "type": "stdio"}).transport == expected


@pytest.mark.parametrize(
    ("type_", "protocol"),
    [
        (None, "either"),
        ("http", "http"),
        ("streamable-http", "http"),
        ("streamableHttp", "http"),
        ("sse", "sse"),
    ],
)
def test_url_with_and_without_a_type(one: One, type_: str | None, protocol: str) -> None:
    entry = {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer x"}}
    reach = one(entry if type_ is None else {**entry, "type": type_}).transport
    assert isinstance(reach, HttpConfig)
    assert (reach.url, reach.protocol) == ("https://example.com/mcp", protocol)
    assert reach.headers == {"Authorization": "Bearer x"}


def test_all_other_fields_of_a_server(one: One) -> None:
    server = one(
        {
            "url": "http://localhost:1/",
            "includeTools": ["a*", "b"],
            "excludeTools": ["ab"],
            "connectSeconds": 5,
            "callSeconds": 0.5,
            "oauth": {"clientId": "i", "clientSecret": "s", "scope": "x y", "port": 8123},
        }
    )
    assert (server.include, server.exclude) == (("a*", "b"), ("ab",))
    assert (server.connect_seconds, server.call_seconds) == (5.0, 0.5)
    assert isinstance(server.transport, HttpConfig)
    oauth = server.transport.oauth
    assert (oauth.client_id, oauth.client_secret, oauth.scope, oauth.port) == ("i", "s", "x y", 8123)


def test_tools_are_filtered_by_name_and_star_only(one: One) -> None:
    server = one({"command": "x", "includeTools": ["get_*", "a?", "[ab]"], "excludeTools": ["*_secret"]})
    assert server.includes("get_user")
    assert not server.includes("get_secret")
    assert not server.includes("ab")
    assert server.includes("a?")
    assert not server.includes("a")
    assert server.includes("[ab]")
    assert one({"command": "x"}).includes("anything")
    assert not one({"command": "x", "includeTools": []}).includes("anything")


def test_disabled_servers_are_omitted(write: Write) -> None:
    entries = {"on": {"command": "x", "disabled": False}, "off": {"command": "x", "disabled": True}}
    assert list(load_config([write({"mcpServers": entries})], {}).servers) == ["on"]


def test_variables_are_replaced_in_every_string(one: One) -> None:
    stdio_server = one(
        {
            "type": "${KIND:-stdio}",
            "command": "${DIR}/bin/${NAME:-server}",
            "args": ["--key=${KEY}", "$KEY", "${}", "$${KEY}", "${EMPTY:-fallback}", "${EMPTY}"],
            "env": {"TOKEN": "${KEY}${KEY}"},
            "includeTools": ["${KEY}_*"],
        },
        DIR="/opt",
        KEY="k",
        EMPTY="",
    )
    assert isinstance(stdio_server.transport, StdioConfig)
    assert stdio_server.transport.command == "/opt/bin/server"
    assert stdio_server.transport.args == ("--key=k", "$KEY", "${}", "$k", "fallback", "")
    assert stdio_server.transport.env == {"TOKEN": "kk"}
    assert stdio_server.include == ("k_*",)
    http_server = one(
        {"url": "https://${HOST:-example.com}/mcp", "headers": {"X": "${KEY}"}}, KEY="k"
    ).transport
    assert isinstance(http_server, HttpConfig)
    assert (http_server.url, http_server.headers) == ("https://example.com/mcp", {"X": "k"})


def test_value_of_a_variable_is_not_expanded_again(one: One) -> None:
    reach = one({"command": "${A}"}, A="${B}", B="no").transport
    assert isinstance(reach, StdioConfig)
    assert reach.command == "${B}"


def test_unset_variable_disables_its_server_only(write: Write) -> None:
    file = write({"mcpServers": {"a": {"command": "x", "env": {"T": "${NOPE}"}}, "b": {"command": "y"}}})
    config = load_config([file], {})
    problem = config.servers["a"].problem or ""
    assert problem.startswith(f"{file}:6: mcpServers.a.env.T: the variable NOPE is not set")
    assert "${NOPE:-}" in problem
    assert config.servers["b"].problem is None


def test_later_file_replaces_servers_of_the_same_name(write: Write) -> None:
    home = write({"mcpServers": {"a": {"command": "old", "args": ["x"]}, "b": {"command": "b"}}}, "1.json")
    project = write({"mcpServers": {"a": {"command": "new"}, "c": {"command": "c"}}}, "2.json")
    config = load_config([home, project], {})
    assert list(config.servers) == ["a", "b", "c"]
    assert config.servers["a"].transport == StdioConfig(command="new", cwd=str(project.parent))
    assert config.files == (str(home), str(project))


def test_default_file_is_in_the_home_and_not_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, current = tmp_path / "home", tmp_path / "current"
    for folder, name in ((home, "h"), (current, "c")):
        folder.mkdir()
        (folder / ".toolscript.json").write_text(json.dumps({"mcpServers": {name: {"command": name}}}))
    monkeypatch.chdir(current)
    assert list(load_config(environ={"HOME": str(home)}).servers) == ["h"]
    assert load_config(environ={"HOME": "/nonexistent"}).servers == {}
    project = ConfigText(Path("/p/.toolscript.json"), b'{"mcpServers": {"p": {"command": "p", "cwd": "x"}}}')
    config = load_config(environ={"HOME": str(home)}, project=project)
    assert list(config.servers) == ["h", "p"]
    assert config.servers["p"].transport == StdioConfig(command="p", cwd="/p/x")
    assert list(load_config([home / ".toolscript.json"], {}, project=project).servers) == ["h"]


def test_working_directory_is_relative_to_the_file(one: One, tmp_path: Path) -> None:
    reach = one({"command": "x", "cwd": "sub"}).transport
    assert isinstance(reach, StdioConfig)
    assert reach.cwd == str(tmp_path / "sub")


WHOLE_FILES: list[tuple[str, int | None, str, str]] = [
    ('{"mcpServers": {\n  "a": {"command": "x",}\n}}', 2, "", "is not JSON: "),
    ('{\n// hello\n"mcpServers": {}}', 2, "", "is not JSON: "),
    ("", 1, "", "is not JSON"),
    ("[]", 1, "", "expected an object, got a list"),
    ('{"mcpServers":\n []}', 1, "mcpServers", "expected an object, got a list"),
    ('{"mcpServers": {\n"a": "npx"}}', 2, "mcpServers.a", "expected an object, got a string"),
    ('{"mcpServers": {\n"": {"command": "x"}}}', 2, "mcpServers.", "expected a name"),
    ("[" * 100_000, None, "", "is nested too deeply"),
]
# For each case: the fields of a server that starts on the second line, the line and the key that the error
# names, and its message.
SERVERS = [
    ("", 2, "", "expected `command` (a program to start) or `url`"),
    ('"command": "x", "url": "http://h"', 2, "", "has both `command` and `url`"),
    ('\n"type": "ftp"', 3, ".type", "expected stdio, http or sse, got 'ftp'"),
    ('"type": "stdio"', 2, "", "`command` is missing"),
    ('"type": "http",\n"command": "x"', 2, "", "`url` is missing"),
    ('\n\n"command": ""', 4, ".command", "is empty"),
    ('\n"command": ["x"]', 3, ".command", "expected a string, got a list"),
    ('"command": "x",\n"args": "y"', 3, ".args", "expected a list of strings, got a string"),
    ('"command": "x",\n"args": ["y",\n 7]', 4, ".args[1]", 'Write it in quotes: "7".'),
    ('"command": "x",\n"env": {"A": 1}', 3, ".env.A", "expected a string, got a number"),
    ('"command": "x",\n"env": {"A": true}', 3, ".env.A", 'Write it in quotes: "true".'),
    ('"command": "x",\n"env": {"A=B": "1"}', 3, ".env.A=B", "is not a valid variable name"),
    ('"command": "x\\u0000"', 2, ".command", "a character that cannot be passed to a program"),
    ('"command": "x\\ud800"', 2, ".command", "a character that cannot be passed to a program"),
    ('\n"url": "ftp://x"', 3, ".url", "expected a URL that begins with http:// or https://"),
    ('\n"url": "http://"', 3, ".url", "expected a URL"),
    ('\n"url": "http://h:99999/"', 3, ".url", "expected a URL"),
    ('\n"url": "http://h/a b"', 3, ".url", "expected a URL"),
    ('"url": "http://h",\n"headers": {"X": "a\\nB: c"}', 3, ".headers.X", "one line of ASCII text"),
    ('"url": "http://h",\n"headers": {"X Y": "a"}', 3, ".headers.X Y", "not a valid header name"),
    ('"url": "http://h",\n"oauth": {"port": "x"}', 3, ".oauth.port", "expected a port number, got a string"),
    ('"url": "http://h",\n"oauth": {"port": true}', 3, ".oauth.port", "expected a port number"),
    ('"url": "http://h",\n"oauth": {"port": 70000}', 3, ".oauth.port", "from 0 to 65535, got 70000"),
    ('"command": "x",\n"disabled": "no"', 3, ".disabled", "expected true or false, got a string"),
    ('"command": "x",\n"callSeconds": 0', 3, ".callSeconds", "seconds above 0"),
    ('"command": "x",\n"callSeconds": true', 3, ".callSeconds", "seconds above 0"),
]
BROKEN = [
    *WHOLE_FILES,
    *(
        (f'{{"mcpServers": {{\n"a": {{{fields}}}}}}}', line, f"mcpServers.a{key}", message)
        for fields, line, key, message in SERVERS
    ),
]


@pytest.mark.parametrize(("text", "line", "key", "message"), BROKEN)
def test_error_names_file_line_and_key(
    write: Write, text: str, line: int | None, key: str, message: str
) -> None:
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load_config([file], {})
    error = caught.value
    assert (error.file, error.line, error.key) == (str(file), line, key)
    assert message in str(error)
    assert str(error).startswith(f"{file}:{line}: " if line else f"{file}: ")


def test_unreadable_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json: there is no such file"):
        load_config([tmp_path / "gone.json"], {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_config([tmp_path], {})
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{\n"a": "\xe9"}')
    with pytest.raises(ConfigError, match=r"latin\.json:2: is not UTF-8 text"):
        load_config([latin], {})


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "bom.json"
    file.write_bytes(b'\xef\xbb\xbf{"mcpServers": {}}')
    assert load_config([file], {}).servers == {}


def test_unknown_keys_are_warned_about_with_a_suggestion(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    text = """{
  "$schema": "https://example.com/schema.json",
  "mcpservers": {},
  "mcpServers": {
    "a": {
      "command": "x",
      "arguments": [],
      "autoApprove": []
    },
    "b": {"url": "http://h", "command_": "x", "oauth": {"client": "x"}}
  }
}"""
    file = write(text)
    with caplog.at_level(logging.WARNING):
        config = load_config([file], {})
    assert list(config.servers) == ["a", "b"]
    assert config.warnings == (
        f"{file}:3: mcpservers: this key is unknown. Did you mean mcpServers?",
        f"{file}:7: mcpServers.a.arguments: this key is unknown. Did you mean args?",
        f"{file}:8: mcpServers.a.autoApprove: this key is unknown.",
        f"{file}:10: mcpServers.b.command_: this key is unknown.",
        f"{file}:10: mcpServers.b.oauth.client: this key is unknown. Did you mean clientId?",
    )
    assert all(warning in caplog.text for warning in config.warnings)


def test_duplicate_keys_are_warned_about(write: Write) -> None:
    file = write('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}')
    config = load_config([file], {})
    assert config.servers["a"].transport == StdioConfig(command="y", cwd=str(file.parent))
    assert config.warnings == (f"{file}: the key 'a' occurs twice in one object; the last one counts.",)


@pytest.mark.parametrize(
    "words",
    [
        ["hutch", "mcp"],
        ["/home/me/.venv/bin/hutch", "mcp", "--config", "servers.json"],
        ["python3", "-m", "hutch", "mcp"],
        ["uvx", "hutch@1.2", "mcp"],
    ],
)
def test_hutch_itself_is_ignored_with_a_warning(write: Write, words: list[str]) -> None:
    entries = {
        "me": {"command": words[0], "args": words[1:]},
        "it": {"command": "hutch-notes", "args": ["mcp"]},
    }
    file = write({"mcpServers": entries})
    config = load_config([file], {})
    assert [*config.servers] == ["it"]
    (warning,) = config.warnings
    assert warning.startswith(f"{file}:3: mcpServers.me: this entry is Hutch itself")


def test_secrets_are_never_shown(write: Write) -> None:
    entries = {
        "a": {"command": "x", "args": ["--token=s3cret"], "env": {"K": "s3cret"}},
        "b": {
            "url": "https://user:s3cret@h/mcp?key=s3cret",
            "headers": {"Authorization": "s3cret"},
            "oauth": {"clientId": "i", "clientSecret": "s3cret"},
        },
    }
    config = load_config([write({"mcpServers": entries})], {})
    for shown in (repr(config), str(config.servers), f"{config.servers['b'].transport}"):
        assert "s3cret" not in shown
    assert "https://h/mcp" in repr(config)


def test_secret_in_an_invalid_url_is_not_quoted(one: One) -> None:
    with pytest.raises(ConfigError) as caught:
        one({"url": "${URL}"}, URL="s3cret")
    assert "s3cret" not in str(caught.value)
    assert "${URL}" in str(caught.value)


def test_lines_are_found_with_any_string_content() -> None:
    text = '{"a\\"{": [1,\n {"b": "}\\n]"},\n [],\n {"c":\n  {"d": null}}]}'
    assert line_of(text, ()) == 1
    assert line_of(text, ('a"{', 1, "b")) == 2
    assert line_of(text, ('a"{', 2)) == 3
    assert line_of(text, ('a"{', 3, "c", "d")) == 5
    assert line_of(text, ('a"{', 3, "nope")) == 4
