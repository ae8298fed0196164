"""`hutch config`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.processes import hutch

from hutch.settings import Settings


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    (home / "hutch.toml").write_text("max_queue = 7\nport = 5000\n")
    return home


def rows(output: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split()[1:] for line in output.splitlines()[1:]}


def test_every_setting_is_shown_with_its_source(home: Path) -> None:
    done = hutch("config", env={"HUTCH_HOME": str(home), "HUTCH_PORT": "6000"})
    shown = rows(done.stdout)
    assert list(shown) == list(Settings.__struct_fields__)
    assert shown["port"] == ["6000", "HUTCH_PORT"]
    assert shown["max_queue"] == ["7", f"{home / 'hutch.toml'}:", "max_queue"]
    assert shown["log_json"] == ["false", "default"]


def test_changed_shows_only_settings_that_were_set(home: Path) -> None:
    done = hutch("config", "--changed", env={"HUTCH_HOME": str(home)})
    assert list(rows(done.stdout)) == ["home", "port", "max_queue"]


def test_named_settings_are_shown_and_unknown_ones_corrected(home: Path) -> None:
    done = hutch("config", "port", "log_json", env={"HUTCH_HOME": str(home)})
    assert list(rows(done.stdout)) == ["port", "log_json"]
    done = hutch("config", "prot", env={"HUTCH_HOME": str(home)})
    assert (done.returncode, done.stdout) == (2, "")
    assert "prot: there is no such setting. Did you mean port?" in done.stderr


def test_secrets_are_not_shown(home: Path) -> None:
    env = {
        "HUTCH_HOME": str(home),
        "EXECUTOR_API_KEY": "sesame",
        "HUTCH_DATABASE_URL": "postgresql://u:pw@h/d",
    }
    for option in ("--changed", "--json"):
        done = hutch("config", option, env=env)
        assert "sesame" not in done.stdout
        assert "pw@" not in done.stdout
    values = {each["name"]: each for each in json.loads(done.stdout)}
    assert (values["api_key"]["value"], values["api_key"]["source"]) == ("***", "EXECUTOR_API_KEY")


def test_settings_of_a_trusted_project_do_not_apply_to_a_server(home: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "hutch.toml").write_text("timeout_ms = 1234\n")
    env = {"HUTCH_HOME": str(home)}
    assert hutch("trust", "--yes", env=env, cwd=project).returncode == 0
    assert rows(hutch("config", env=env, cwd=project).stdout)["timeout_ms"][0] == "1234"
    assert rows(hutch("config", "--server", env=env, cwd=project).stdout)["timeout_ms"] == ["5000", "default"]


def test_invalid_setting_is_reported_with_its_source(home: Path) -> None:
    done = hutch("config", env={"HUTCH_HOME": str(home), "HUTCH_PORT": "many"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "HUTCH_PORT" in done.stderr
