"""Configuration files: every shape, every variable, every mistake with its file, line and key."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hutch.errors import ConfigError
from hutch.upstream.config import load
from hutch.upstream.entries import Endpoint, Program, ServerConfig
from hutch.upstream.positions import line_of

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
    """The only server of a file."""

    def make(entry: Any, **environ: str) -> ServerConfig:
        (server,) = load([write({"mcpServers": {"it": entry}})], environ).servers.values()
        return server

    return make


One = Callable[..., ServerConfig]


def test_program_with_and_without_a_type(one: One) -> None:
    entry = {"command": "npx", "args": ["-y", "server"], "env": {"KEY": "v"}}
    expected = Program(command="npx", args=("-y", "server"), env={"KEY": "v"})
    assert one(entry).reach == expected
    assert one({**entry, "type": "stdio"}).reach == expected


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
def test_address_with_and_without_a_type(one: One, type_: str | None, protocol: str) -> None:
    entry = {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer x"}}
    reach = one(entry if type_ is None else {**entry, "type": type_}).reach
    assert isinstance(reach, Endpoint)
    assert (reach.url, reach.protocol) == ("https://example.com/mcp", protocol)
    assert reach.headers == {"Authorization": "Bearer x"}


def test_everything_else_that_a_server_can_have(one: One) -> None:
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
    assert isinstance(server.reach, Endpoint)
    oauth = server.reach.oauth
    assert (oauth.client_id, oauth.client_secret, oauth.scope, oauth.port) == ("i", "s", "x y", 8123)


def test_tools_are_chosen_by_name_and_by_star_and_by_nothing_else(one: One) -> None:
    server = one({"command": "x", "includeTools": ["get_*", "a?", "[ab]"], "excludeTools": ["*_secret"]})
    assert server.offers("get_user")
    assert not server.offers("get_secret")
    assert not server.offers("ab")
    assert server.offers("a?")
    assert not server.offers("a")
    assert server.offers("[ab]")
    assert one({"command": "x"}).offers("anything")
    assert not one({"command": "x", "includeTools": []}).offers("anything")


def test_disabled_servers_are_left_out(write: Write) -> None:
    entries = {"on": {"command": "x", "disabled": False}, "off": {"command": "x", "disabled": True}}
    assert list(load([write({"mcpServers": entries})], {}).servers) == ["on"]


def test_variables_are_replaced_in_every_string(one: One) -> None:
    program = one(
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
    assert isinstance(program.reach, Program)
    assert program.reach.command == "/opt/bin/server"
    assert program.reach.args == ("--key=k", "$KEY", "${}", "$k", "fallback", "")
    assert program.reach.env == {"TOKEN": "kk"}
    assert program.include == ("k_*",)
    endpoint = one({"url": "https://${HOST:-example.com}/mcp", "headers": {"X": "${KEY}"}}, KEY="k").reach
    assert isinstance(endpoint, Endpoint)
    assert (endpoint.url, endpoint.headers) == ("https://example.com/mcp", {"X": "k"})


def test_what_a_variable_holds_is_not_replaced_again(one: One) -> None:
    reach = one({"command": "${A}"}, A="${B}", B="no").reach
    assert isinstance(reach, Program)
    assert reach.command == "${B}"


def test_variable_that_is_not_set_spoils_its_server_alone(write: Write) -> None:
    file = write({"mcpServers": {"a": {"command": "x", "env": {"T": "${NOPE}"}}, "b": {"command": "y"}}})
    config = load([file], {})
    problem = config.servers["a"].problem or ""
    assert problem.startswith(f"{file}:6: mcpServers.a.env.T: the variable NOPE is not set")
    assert "${NOPE:-}" in problem
    assert config.servers["b"].problem is None


def test_later_files_win_for_each_server(write: Write) -> None:
    home = write({"mcpServers": {"a": {"command": "old", "args": ["x"]}, "b": {"command": "b"}}}, "1.json")
    project = write({"mcpServers": {"a": {"command": "new"}, "c": {"command": "c"}}}, "2.json")
    config = load([home, project], {})
    assert list(config.servers) == ["a", "b", "c"]
    assert config.servers["a"].reach == Program(command="new")
    assert config.files == (str(home), str(project))


def test_usual_files_are_those_of_the_home_and_of_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    for folder, name in ((home, "h"), (project, "p")):
        folder.mkdir()
        (folder / ".toolscript.json").write_text(json.dumps({"mcpServers": {name: {"command": name}}}))
    monkeypatch.chdir(project)
    assert list(load(environ={"HOME": str(home)}).servers) == ["h", "p"]
    assert list(load(environ={"HOME": str(project)}).servers) == ["p"]
    monkeypatch.chdir(tmp_path)
    assert load(environ={"HOME": "/nonexistent"}).servers == {}


def test_working_directory_is_relative_to_its_file(one: One, tmp_path: Path) -> None:
    reach = one({"command": "x", "cwd": "sub"}).reach
    assert isinstance(reach, Program)
    assert reach.cwd == str(tmp_path / "sub")


WHOLE_FILES: list[tuple[str, int | None, str, str]] = [
    ('{"mcpServers": {\n  "a": {"command": "x",}\n}}', 2, "", "is not JSON: "),
    ('{\n// hello\n"mcpServers": {}}', 2, "", "is not JSON: "),
    ("", 1, "", "is not JSON"),
    ("[]", 1, "", "expected an object, got a list"),
    ('{"mcpServers":\n []}', 1, "mcpServers", "expected an object, got a list"),
    ('{"mcpServers": {\n"a": "npx"}}', 2, "mcpServers.a", "expected an object, got a string"),
    ('{"mcpServers": {\n"": {"command": "x"}}}', 2, "mcpServers.", "expected a name"),
    ("[" * 100_000, None, "", "is nested too deep"),
]
# The fields of a server that begin on the second line.
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
    ('"command": "x",\n"env": {"A=B": "1"}', 3, ".env.A=B", "is no name that a variable can have"),
    ('"command": "x\\u0000"', 2, ".command", "a character that no program could be given"),
    ('"command": "x\\ud800"', 2, ".command", "a character that no program could be given"),
    ('\n"url": "ftp://x"', 3, ".url", "expected a URL that begins with http:// or https://"),
    ('\n"url": "http://"', 3, ".url", "expected a URL"),
    ('\n"url": "http://h:99999/"', 3, ".url", "expected a URL"),
    ('\n"url": "http://h/a b"', 3, ".url", "expected a URL"),
    ('"url": "http://h",\n"headers": {"X": "a\\nB: c"}', 3, ".headers.X", "ASCII text in one line"),
    ('"url": "http://h",\n"headers": {"X Y": "a"}', 3, ".headers.X Y", "no name that a header can have"),
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
def test_mistake_is_named_with_its_file_line_and_key(
    write: Write, text: str, line: int | None, key: str, message: str
) -> None:
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load([file], {})
    error = caught.value
    assert (error.file, error.line, error.key) == (str(file), line, key)
    assert message in str(error)
    assert str(error).startswith(f"{file}:{line}: " if line else f"{file}: ")


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.json: there is no such file"):
        load([tmp_path / "gone.json"], {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load([tmp_path], {})
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{\n"a": "\xe9"}')
    with pytest.raises(ConfigError, match=r"latin\.json:2: is not UTF-8 text"):
        load([latin], {})


def test_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "bom.json"
    file.write_bytes(b'\xef\xbb\xbf{"mcpServers": {}}')
    assert load([file], {}).servers == {}


def test_unknown_keys_are_warned_of_with_the_likely_one(
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
        config = load([file], {})
    assert list(config.servers) == ["a", "b"]
    assert config.warnings == (
        f"{file}:3: mcpservers: nobody reads this key. Did you mean mcpServers?",
        f"{file}:7: mcpServers.a.arguments: nobody reads this key. Did you mean args?",
        f"{file}:8: mcpServers.a.autoApprove: nobody reads this key.",
        f"{file}:10: mcpServers.b.command_: nobody reads this key.",
        f"{file}:10: mcpServers.b.oauth.client: nobody reads this key. Did you mean clientId?",
    )
    assert all(warning in caplog.text for warning in config.warnings)


def test_keys_that_stand_twice_are_warned_of(write: Write) -> None:
    file = write('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}')
    config = load([file], {})
    assert config.servers["a"].reach == Program(command="y")
    assert config.warnings == (f"{file}: the key 'a' stands twice in one object; the last counts.",)


def test_nothing_secret_shows(write: Write) -> None:
    entries = {
        "a": {"command": "x", "args": ["--token=s3cret"], "env": {"K": "s3cret"}},
        "b": {
            "url": "https://user:s3cret@h/mcp?key=s3cret",
            "headers": {"Authorization": "s3cret"},
            "oauth": {"clientId": "i", "clientSecret": "s3cret"},
        },
    }
    config = load([write({"mcpServers": entries})], {})
    for shown in (repr(config), str(config.servers), f"{config.servers['b'].reach}"):
        assert "s3cret" not in shown
    assert "https://h/mcp" in repr(config)


def test_secret_in_a_url_that_is_none_is_not_quoted(one: One) -> None:
    with pytest.raises(ConfigError) as caught:
        one({"url": "${URL}"}, URL="s3cret")
    assert "s3cret" not in str(caught.value)
    assert "${URL}" in str(caught.value)


def test_lines_are_found_whatever_is_in_the_strings() -> None:
    text = '{"a\\"{": [1,\n {"b": "}\\n]"},\n [],\n {"c":\n  {"d": null}}]}'
    assert line_of(text, ()) == 1
    assert line_of(text, ('a"{', 1, "b")) == 2
    assert line_of(text, ('a"{', 2)) == 3
    assert line_of(text, ('a"{', 3, "c", "d")) == 5
    assert line_of(text, ('a"{', 3, "nope")) == 4
