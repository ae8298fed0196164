"""Sources of settings, their precedence, and error messages for invalid values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_type_hints

import msgspec
import pytest

from hutch.api.hutch import Hutch
from hutch.errors import SettingError
from hutch.settings import DEFAULT_PORT, MIB, PROJECT_SETTINGS, Settings, as_environ, load_settings
from hutch.settings.config_text import ConfigText
from hutch.settings.model import RecordLevel
from hutch.settings.overrides import SettingOverrides


def test_defaults_match_the_protocol() -> None:
    settings = load_settings(environ={"HUTCH_HOME": "/nowhere"})
    assert (settings.timeout_ms, settings.memory_limit_bytes) == (5_000, 64 * MIB)
    assert (settings.max_log_lines, settings.max_log_chars) == (100, 64_000)
    assert (settings.host, settings.port) == ("127.0.0.1", 4111)


def test_keyword_arguments_of_hutch_have_the_types_of_the_settings() -> None:
    """If this test fails, a setting was added or changed. Change `SettingOverrides` in the same way."""
    declared, expected = get_type_hints(SettingOverrides), get_type_hints(Settings)
    assert declared.keys() == expected.keys()
    wider = {
        tuple[str, ...]: Sequence[str],
        dict[str, str]: Mapping[str, str],
        dict[str, int]: Mapping[str, int],
        dict[str, RecordLevel]: Mapping[str, RecordLevel],
    }
    assert declared == {name: wider.get(hint, hint) for name, hint in expected.items()}


def test_flags_override_variables_and_variables_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text("port = 1\nmax_calls = 1\nmax_queue = 1\n")
    environ = {"HUTCH_PORT": "2", "HUTCH_MAX_CALLS": "2"}
    settings = load_settings({"port": 3, "host": None}, environ=environ, file=file)
    assert (settings.port, settings.max_calls, settings.max_queue) == (3, 2, 1)
    assert settings.host == "127.0.0.1"


def test_file_in_the_current_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder, port in ((home, 1), (here, 2)):
        folder.mkdir()
        (folder / "hutch.toml").write_text(f"port = {port}\n")
    monkeypatch.chdir(here)
    assert load_settings(environ={"HUTCH_HOME": str(home)}).port == 1
    assert load_settings({"home": str(home)}, environ={}).port == 1


def test_project_overrides_the_file_in_home_and_is_overridden_by_variables(tmp_path: Path) -> None:
    (tmp_path / "hutch.toml").write_text("port = 1\ntimeout_ms = 1\nmax_log_lines = 1\nmax_log_chars = 1\n")
    homes: list[Path] = []

    def project(home: Path) -> ConfigText:
        homes.append(home)
        return ConfigText(Path("/p/hutch.toml"), b"max_log_lines = 2\nmax_log_chars = 2\n")

    environ = {"HUTCH_HOME": str(tmp_path), "HUTCH_MAX_LOG_CHARS": "3"}
    settings = load_settings(environ=environ, project=project)
    assert (settings.port, settings.timeout_ms) == (1, 1)
    assert (settings.max_log_lines, settings.max_log_chars) == (2, 3)
    assert homes == [tmp_path]


def test_project_cannot_weaken_the_settings() -> None:
    for name in set(Settings.__struct_fields__) - set(PROJECT_SETTINGS):
        project = ConfigText(Path("/p/hutch.toml"), f"{name} = 1\n".encode())
        with pytest.raises(
            SettingError, match=f"/p/hutch.toml: {name}: the file of a project cannot set this"
        ):
            load_settings(environ={"HUTCH_HOME": "/nowhere"}, project=lambda _, project=project: project)
    forbidden = "home mcp_ approvals egress isolation database proxy host port api_key allowed owners offline"
    assert [name for name in PROJECT_SETTINGS if name.startswith(tuple(forbidden.split()))] == []
    assert set(PROJECT_SETTINGS) <= set(Settings.__struct_fields__)


def test_paths_in_a_file_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If these paths were relative to the current directory, they could name files of another user, who owns
    that directory.
    """
    monkeypatch.chdir("/")
    (tmp_path / "hutch.toml").write_text('home = "state"\nmcp_config = ["servers.json", "/etc/x", "~/y"]\n')
    settings = load_settings(environ={"HUTCH_HOME": ""}, file=tmp_path / "hutch.toml")
    assert settings.home_path == tmp_path / "state"
    assert settings.mcp_config == (str(tmp_path / "servers.json"), "/etc/x", "~/y")


def test_hutch_api_key_takes_precedence_over_executor_api_key() -> None:
    assert load_settings(environ={"EXECUTOR_API_KEY": "theirs"}).api_key == "theirs"
    assert load_settings(environ={"HUTCH_API_KEY": "ours"}).api_key == "ours"
    assert load_settings(environ={"EXECUTOR_API_KEY": "theirs", "HUTCH_API_KEY": "ours"}).api_key == "ours"


def test_empty_variable_counts_as_not_set() -> None:
    settings = load_settings(environ={"HUTCH_API_KEY": "", "EXECUTOR_API_KEY": "theirs", "HUTCH_PORT": ""})
    assert (settings.api_key, settings.port) == ("theirs", 4111)


def test_unrelated_variables_are_ignored() -> None:
    assert load_settings(environ={"HUTCH_DENO": "/deno", "HUTCH_UNRELATED": "x", "PORT": "1"}).port == 4111


def test_variables_are_converted_to_the_type_of_the_setting() -> None:
    environ = {
        "HUTCH_LOG_JSON": "True",
        "HUTCH_OWNERS_SHARE": "0",
        "HUTCH_DRAIN_SECONDS": "1.5",
        "HUTCH_ALLOWED_HOSTS": "a.example, b.example,",
    }
    settings = load_settings(environ=environ)
    assert (settings.log_json, settings.owners_share, settings.drain_seconds) == (True, False, 1.5)
    assert settings.allowed_hosts == ("a.example", "b.example")


def test_list_in_the_file_is_read_as_a_list(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text('allowed_origins = ["https://a.example"]\nlog_level = "info"\n')
    settings = load_settings(environ={}, file=file)
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
def test_invalid_variable_is_reported_with_the_expected_type(environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as refused:
        load_settings(environ=environ)
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
def test_invalid_file_entry_is_reported_with_key_and_expected_type(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text(text)
    with pytest.raises(SettingError) as refused:
        load_settings(environ={}, file=file)
    assert str(refused.value) == message.format(file=file)


def test_unreadable_file_is_named_in_the_error(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    with pytest.raises(SettingError, match=r"hutch\.toml: cannot be read: No such file or directory"):
        load_settings(environ={}, file=file)
    file.write_bytes(b"host = '\xff'")
    with pytest.raises(SettingError, match=r"hutch\.toml: cannot be read: .*utf-8"):
        load_settings(environ={}, file=file)


def test_unknown_keyword_gets_a_suggestion() -> None:
    with pytest.raises(SettingError) as refused:
        load_settings({"timeout": 3}, environ={})
    assert str(refused.value) == "timeout: there is no such setting. Did you mean timeout_ms?"


def test_home_that_cannot_be_expanded_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"HUTCH_HOME: expected the path of a directory, got '~no-such-user/x'"
    ):
        load_settings(environ={"HUTCH_HOME": "~no-such-user/x"})


def test_home_whose_parent_does_not_exist_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "mistyped" / "hutch"
    with pytest.raises(SettingError, match=r"HUTCH_HOME: .* cannot be created, because .*mistyped does not"):
        load_settings(environ={"HUTCH_HOME": str(home)})
    assert load_settings(environ={"HUTCH_HOME": str(home.parent)}).home_path == home.parent


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    assert load_settings(environ={}).home_path == Path("/somewhere/.hutch")


def test_repr_masks_the_api_key() -> None:
    text = repr(Settings(api_key="0123-key"))
    assert "0123-key" not in text
    assert "api_key=***" in text
    assert "api_key=None" in repr(Settings())
    assert "port=4111" in text


def test_misspelled_variable_is_logged_with_a_suggestion(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "HUTCH_HOME": "/nowhere",
        "HUTCH_TIMOUT_MS": "secret",
        "HUTCH_DENO": "x",
        "HUTCH_BWRAP": "x",
        "HUTCH_ZZZ": "another program's",
    }
    assert load_settings(environ=environ).timeout_ms == 5_000
    assert [record.getMessage() for record in caplog.records] == [
        "HUTCH_TIMOUT_MS: there is no such setting. Did you mean HUTCH_TIMEOUT_MS?"
    ]


def test_settings_survive_the_round_trip_through_variables_except_server_only_ones(tmp_path: Path) -> None:
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
    found = load_settings(environ=as_environ(given))
    assert found == msgspec.structs.replace(given, api_key=None, port=DEFAULT_PORT)
    assert load_settings(environ=as_environ(Settings(home=str(tmp_path)))) == Settings(home=str(tmp_path))


def test_number_as_text_is_refused_in_a_file_but_accepted_in_a_variable(tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text('timeout_ms = "5"')
    with pytest.raises(SettingError, match=r"hutch.toml: timeout_ms: expected .*, got '5'"):
        load_settings(environ={}, file=file)
    assert load_settings(environ={"HUTCH_TIMEOUT_MS": "7"}, file=file).timeout_ms == 7
    file.write_text("timeout_ms = 5")
    assert load_settings(environ={}, file=file).timeout_ms == 5


RENAMED = {
    "most_timeout_ms": "max_timeout_ms",
    "most_memory_limit_bytes": "max_memory_limit_bytes",
    "most_log_lines": "max_log_lines_ceiling",
    "most_log_chars": "max_log_chars_ceiling",
    "fetch_bytes": "max_fetch_bytes",
    "fetch_body_bytes": "max_fetch_body_bytes",
    "fetch_redirects": "max_fetch_redirects",
    "fetch_requests": "max_fetch_requests",
    "ability_max_chars": "max_ability_chars",
}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_name_in_a_file_still_loads_with_a_warning(
    old: str, new: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text(f"{old} = 7\n")
    assert getattr(load_settings(environ={}, file=file), new) == 7
    assert [record.getMessage() for record in caplog.records] == [
        f"{file}: {old}: this setting is now {new}; the old name will stop working in 0.3."
    ]


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_name_of_a_variable_still_loads_with_one_warning(
    old: str, new: str, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"HUTCH_HOME": "/nowhere", f"HUTCH_{old.upper()}": "7"}
    assert getattr(load_settings(environ=environ), new) == 7
    [record] = caplog.records
    assert record.getMessage() == (
        f"HUTCH_{old.upper()}: this setting is now HUTCH_{new.upper()}; "
        "the old name will stop working in 0.3."
    )


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_keyword_still_loads_with_a_deprecation_warning(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}: ") as caught:
        settings = Hutch(**{old: 7}).settings
    assert getattr(settings, new) == 7
    assert [str(warning.message) for warning in caught] == [
        f"{old}: this setting is now {new}; the old name will stop working in 0.3."
    ]
    assert caught[0].filename == __file__


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_and_new_name_in_one_source_are_refused(old: str, new: str, tmp_path: Path) -> None:
    file = tmp_path / "hutch.toml"
    file.write_text(f"{new} = 7\n{old} = 7\n")
    with pytest.raises(SettingError) as refused:
        load_settings(environ={}, file=file)
    assert (
        str(refused.value)
        == f"{file}: {old}: this is the old name of {new}, which is also set. Remove the old one."
    )
    variables = {f"HUTCH_{old.upper()}": "7", f"HUTCH_{new.upper()}": "7"}
    with pytest.raises(SettingError) as refused:
        load_settings(environ=variables)
    assert str(refused.value) == (
        f"HUTCH_{old.upper()}: this is the old name of HUTCH_{new.upper()}, which is also set."
        " Remove the old one."
    )
    with pytest.raises(SettingError) as refused:
        load_settings({old: 7, new: 7}, environ={})
    assert (
        str(refused.value) == f"{old}: this is the old name of {new}, which is also set. Remove the old one."
    )


def test_new_name_in_the_environment_overrides_the_old_one_in_a_file(tmp_path: Path) -> None:
    """Hutch passes settings to child processes in variables with the new names. The file may still contain
    the old names.
    """
    file = tmp_path / "hutch.toml"
    file.write_text("most_timeout_ms = 7\n")
    assert load_settings(environ={"HUTCH_MAX_TIMEOUT_MS": "8"}, file=file).max_timeout_ms == 8
    assert load_settings(environ={"HUTCH_MOST_TIMEOUT_MS": "9"}, file=file).max_timeout_ms == 9


def test_wrong_value_of_an_old_name_is_reported_under_that_name() -> None:
    with pytest.raises(SettingError) as refused:
        load_settings(environ={"HUTCH_MOST_TIMEOUT_MS": "0"})
    assert str(refused.value) == "HUTCH_MOST_TIMEOUT_MS: expected an integer of at least 1, got '0'."
