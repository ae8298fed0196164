"""Settings: where they come from, which wins, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hutch.errors import SettingError
from hutch.settings import DEFAULT_PORT, MIB, Settings, as_environ, load


def test_defaults_are_those_of_the_protocol() -> None:
    settings = load(environ={"HUTCH_HOME": "/nowhere"})
    assert (settings.timeout_ms, settings.memory_limit_bytes) == (5_000, 64 * MIB)
    assert (settings.max_log_lines, settings.max_log_chars) == (100, 64_000)
    assert (settings.host, settings.port) == ("127.0.0.1", 4111)


def test_flags_beat_variables_which_beat_the_file_which_beats_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text("port = 1\nmax_calls = 1\nmax_queue = 1\n")
    environ = {"HUTCH_PORT": "2", "HUTCH_MAX_CALLS": "2"}
    settings = load({"port": 3, "host": None}, environ=environ, file=file)
    assert (settings.port, settings.max_calls, settings.max_queue) == (3, 2, 1)
    assert settings.host == "127.0.0.1"


def test_file_of_the_current_directory_beats_that_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder, port in ((home, 1), (here, 2)):
        folder.mkdir()
        (folder / "hutch.toml").write_text(f"port = {port}\n")
    monkeypatch.chdir(tmp_path)
    assert load(environ={"HUTCH_HOME": str(home)}).port == 1
    assert load({"home": str(home)}, environ={}).port == 1
    monkeypatch.chdir(here)
    assert load(environ={"HUTCH_HOME": str(home)}).port == 2


def test_api_key_has_two_names_and_ours_wins() -> None:
    assert load(environ={"EXECUTOR_API_KEY": "theirs"}).api_key == "theirs"
    assert load(environ={"HUTCH_API_KEY": "ours"}).api_key == "ours"
    assert load(environ={"EXECUTOR_API_KEY": "theirs", "HUTCH_API_KEY": "ours"}).api_key == "ours"


def test_empty_variable_counts_as_not_set() -> None:
    settings = load(environ={"HUTCH_API_KEY": "", "EXECUTOR_API_KEY": "theirs", "HUTCH_PORT": ""})
    assert (settings.api_key, settings.port) == ("theirs", 4111)


def test_other_variables_are_not_ours_to_judge() -> None:
    assert load(environ={"HUTCH_DENO": "/deno", "HUTCH_NONSENSE": "x", "PORT": "1"}).port == 4111


def test_variables_become_what_the_setting_is() -> None:
    environ = {
        "HUTCH_LOG_JSON": "True",
        "HUTCH_OWNERS_SHARE": "0",
        "HUTCH_DRAIN_SECONDS": "1.5",
        "HUTCH_ALLOWED_HOSTS": "a.example, b.example,",
    }
    settings = load(environ=environ)
    assert (settings.log_json, settings.owners_share, settings.drain_seconds) == (True, False, 1.5)
    assert settings.allowed_hosts == ("a.example", "b.example")


def test_list_in_the_file_is_a_list(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text('allowed_origins = ["https://a.example"]\nlog_level = "info"\n')
    settings = load(environ={}, file=file)
    assert (settings.allowed_origins, settings.log_level) == (("https://a.example",), "info")


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"HUTCH_PORT": "http"}, "HUTCH_PORT: expected an integer from 0 to 65535, got 'http'."),
        ({"HUTCH_PORT": "65536"}, "HUTCH_PORT: expected an integer from 0 to 65535, got '65536'."),
        ({"HUTCH_TIMEOUT_MS": "0"}, "HUTCH_TIMEOUT_MS: expected an integer of at least 1, got '0'."),
        ({"HUTCH_LOG_JSON": "yes"}, "HUTCH_LOG_JSON: expected true or false, got 'yes'."),
        ({"HUTCH_QUEUE_SECONDS": "-1"}, "HUTCH_QUEUE_SECONDS: expected a number of at least 0, got '-1'."),
        ({"HUTCH_QUEUE_SECONDS": "nan"}, "HUTCH_QUEUE_SECONDS: expected a number of at least 0, got 'nan'."),
        (
            {"HUTCH_LOG_LEVEL": "loud"},
            "HUTCH_LOG_LEVEL: expected one of debug, error, info, warning, got 'loud'.",
        ),
        (
            {"HUTCH_ISOLATION": "none"},
            "HUTCH_ISOLATION: expected one of auto, container, process, got 'none'.",
        ),
    ],
)
def test_wrong_variable_is_named_with_what_was_expected(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        load(environ=environ)
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("port = true", "{file}: port: expected an integer from 0 to 65535, got True."),
        ("allowed_hosts = [1]", "{file}: allowed_hosts: expected a list of strings, got [1]."),
        ("prot = 1", "{file}: prot: there is no such setting. Did you mean port?"),
        ("[server]\nport = 1", "{file}: server: there is no such setting."),
        ("home = 7", "{file}: home: expected a string, got 7."),
        ("api_key = 12345", "{file}: api_key: expected a string, got something else."),
        ("port = ", "{file}: cannot be read: Invalid value (at end of document)"),
    ],
)
def test_wrong_file_is_named_with_the_key_and_what_was_expected(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as refused:
        load(environ={}, file=file)
    assert str(refused.value) == message.format(file=file)


def test_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    with pytest.raises(SettingError, match=r"hutch\.toml: cannot be read: No such file or directory"):
        load(environ={}, file=file)
    file.write_bytes(b"host = '\xff'")
    with pytest.raises(SettingError, match=r"hutch\.toml: cannot be read: .*utf-8"):
        load(environ={}, file=file)


def test_unknown_keyword_is_named_with_the_nearest() -> None:
    with pytest.raises(SettingError) as refused:
        load({"timeout": 3}, environ={})
    assert str(refused.value) == "timeout: there is no such setting. Did you mean timeout_ms?"


def test_home_that_is_no_path_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"HUTCH_HOME: expected the path of a directory, got '~nobody-here/x'"
    ):
        load(environ={"HUTCH_HOME": "~nobody-here/x"})


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert load(environ={}).home_path == Path("/somewhere/.hutch")


def test_repr_hides_the_key_and_tells_whether_there_is_one() -> None:
    text = repr(Settings(api_key="secret"))
    assert "secret" not in text
    assert "api_key=***" in text
    assert "api_key=None" in repr(Settings())
    assert "port=4111" in text


def test_mistyped_variable_is_warned_of_with_the_nearest(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "HUTCH_HOME": "/nowhere",
        "HUTCH_TIMOUT_MS": "secret",
        "HUTCH_DENO": "x",
        "HUTCH_BWRAP": "x",
        "HUTCH_ZZZ": "somebody else's",
    }
    assert load(environ=environ).timeout_ms == 5_000
    assert [each.getMessage() for each in caplog.records] == [
        "HUTCH_TIMOUT_MS: there is no such setting. Did you mean HUTCH_TIMEOUT_MS?"
    ]


def test_settings_as_variables_are_the_same_settings_but_for_who_may_come_in(tmp_path: Path) -> None:
    given = Settings(
        home=str(tmp_path),
        database_url="postgresql://u:p@one,two/db",
        api_key="secret",
        port=1,
        egress="allowlist",
        egress_allow=("a.test:1", "b.test:2"),
        package_egress={"x": "a.test b.test", "y": "none"},
        offline=True,
        mcp_eager=False,
        drain_seconds=0.5,
        approvals={"*": "ask"},
        quickjs_warm=0,
    )
    found = load(environ=as_environ(given))
    assert found == msgspec.structs.replace(given, api_key=None, port=DEFAULT_PORT)
    assert load(environ=as_environ(Settings(home=str(tmp_path)))) == Settings(home=str(tmp_path))


def test_a_text_in_a_file_is_no_number_and_in_the_environment_it_is(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text('timeout_ms = "5"')
    with pytest.raises(SettingError, match=r"hutch.toml: timeout_ms: expected .*, got '5'"):
        load(environ={}, file=file)
    assert load(environ={"HUTCH_TIMEOUT_MS": "7"}, file=file).timeout_ms == 7
    file.write_text("timeout_ms = 5")
    assert load(environ={}, file=file).timeout_ms == 5
