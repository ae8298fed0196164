"""Tests of `hutch vault`, and of quotas."""

from __future__ import annotations

import base64
import json
import sqlite3
from pathlib import Path

import pytest
from tests.cli.commands.vault_helpers import Command, output_of, set_value
from tests.support.flows import flow, node


def test_wrong_master_key_changes_nothing(command: Command, bo: str, home: Path) -> None:
    set_value(command)
    before = dump(home)
    wrong = {"HUTCH_MASTER_KEY": base64.b64encode(b"w" * 32).decode()}
    for arguments in (
        ("user", "add", "al"),
        ("credential", "set", "--user", "bo", "api.example.com::Authorization"),
        ("vault", "rotate"),
    ):
        done = command(*arguments, input="another", **wrong)
        assert (done.returncode, done.stdout) == (1, "")
        assert "The master key is not the one that this database is encrypted with" in done.stderr
        assert wrong["HUTCH_MASTER_KEY"] not in done.stderr
    status = command("vault", "status", **wrong)
    assert status.returncode == 1
    assert "is not the one" in status.stderr
    assert dump(home) == before


def test_master_and_data_keys_are_rotated(command: Command, bo: str, home: Path) -> None:
    set_value(command)
    before = json.loads(command("vault", "status", "--json").stdout)
    assert [(each["state"], each["users"]) for each in before["masters"]] == [("current", 1)]
    done = command("vault", "rotate", "--master")
    assert (done.returncode, done.stdout) == (
        0,
        "1 users have new data keys, 1 credentials were re-encrypted\n",
    )
    assert "added a new master key" in done.stderr
    after = json.loads(command("vault", "status", "--json").stdout)
    assert [(each["state"], each["users"]) for each in after["masters"]] == [("current", 1), ("older", 0)]
    assert after["masters"][1]["id"] == before["masters"][0]["id"]
    shown = command("vault", "status")
    assert (shown.returncode, "is not needed here any more" in shown.stderr) == (0, True)
    # Remove the older master key from the file. Everything can still be decrypted.
    file = home / "master.key"
    file.write_text(file.read_text().splitlines()[0] + "\n")
    assert (
        command("vault", "rotate").stdout == "1 users have new data keys, 1 credentials were re-encrypted\n"
    )
    for secret in file.read_text().split():
        assert secret not in output_of(done) + output_of(shown)


def test_keys_of_flows_are_shown_and_rotated(command: Command, shell: Command, home: Path) -> None:
    file = home / "flow.json"
    home.mkdir()
    file.write_text(json.dumps(flow([node("e", "finish", outputs=1)])))
    assert shell("flow", "run", str(file)).returncode == 0

    def masters(**env: str) -> list[tuple[str, bool]]:
        keys = json.loads(command("vault", "status", "--json", **env).stdout)["masters"]
        return [(key["state"], key["flows"]) for key in keys]

    assert masters() == [("current", True)]
    old, new = (home / "master.key").read_text().strip(), base64.b64encode(b"n" * 32).decode()
    # The new key is current, but nothing is encrypted with it yet.
    assert masters(HUTCH_MASTER_KEY=f"{new},{old}") == [("current", False), ("older", True)]
    waiting = command("vault", "status", HUTCH_MASTER_KEY=f"{new},{old}")
    assert "is not needed here any more" not in waiting.stderr
    assert command("vault", "rotate", HUTCH_MASTER_KEY=f"{new},{old}").returncode == 0
    assert masters(HUTCH_MASTER_KEY=f"{new},{old}") == [("current", True), ("older", False)]


def test_empty_vault_has_no_keys(command: Command, home: Path) -> None:
    status = command("vault", "status")
    assert (status.returncode, status.stderr) == (0, "")
    assert "users             0\n" in status.stdout
    assert not (home / "master.key").exists()
    assert (
        command("vault", "rotate").stdout == "0 users have new data keys, 0 credentials were re-encrypted\n"
    )


def test_master_key_in_the_variable_is_not_replaced(command: Command, bo: str, home: Path) -> None:
    text = (home / "master.key").read_text().strip()
    new = base64.b64encode(b"n" * 32).decode()
    refused = command("vault", "rotate", "--master", HUTCH_MASTER_KEY=text)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "which only you can change" in refused.stderr
    done = command("vault", "rotate", HUTCH_MASTER_KEY=f"{new},{text}")
    assert done.returncode == 0, done.stderr
    assert json.loads(command("vault", "status", "--json", HUTCH_MASTER_KEY=new).stdout)["problem"] is None


def dump(home: Path) -> list[object]:
    with sqlite3.connect(home / "hutch.db") as database:
        found = [
            database.execute(f"SELECT * FROM {each}").fetchall() for each in ("meta", "users", "credentials")
        ]
    database.close()
    return [*found, (home / "master.key").read_bytes()]


# --- quotas ---


def test_quota_of_a_user_is_changed_and_shown(command: Command) -> None:
    command("user", "add", "bo")
    shown = command("user", "quota", "bo", HUTCH_MAX_EXECUTIONS_PER_MINUTE="60").stdout
    assert "max_executions_per_minute  60 (setting)\n" in shown
    assert "max_executions_per_day     no limit (setting)\n" in shown
    assert "used today                 0 executions, 0 CPU s\n" in shown
    command("user", "quota", "bo", "--max-executions-per-day", "1000", "--weight", "2")
    command("user", "quota", "bo", "--max-executions-per-minute", "0")
    shown = command("user", "quota", "bo", HUTCH_MAX_EXECUTIONS_PER_MINUTE="60").stdout
    assert "max_executions_per_minute  no limit\n" in shown
    assert "max_executions_per_day     1000\n" in shown
    assert "weight                     2\n" in shown
    command("user", "quota", "bo", "--clear", "--weight", "3")
    assert json.loads(command("user", "quota", "bo", "--json").stdout)["quota"] == {"weight": 3}


def test_quota_of_a_key_is_changed_and_removed_with_it(command: Command, home: Path) -> None:
    command("user", "add", "bo")
    command("key", "add", "bo")
    [key] = json.loads(command("key", "list", "--json").stdout)
    assert "max_cpu_seconds_per_day    its user's\n" in command("key", "quota", key["id"]).stdout
    command("key", "quota", key["id"], "--max-cpu-seconds-per-day", "60")
    command("user", "quota", "bo", "--max-executions-per-day", "5")
    assert "max_cpu_seconds_per_day    60\n" in command("key", "quota", key["id"]).stdout
    command("user", "remove", "bo", "--yes")
    with sqlite3.connect(home / "hutch.db") as database:
        assert database.execute("SELECT count(*) FROM quotas").fetchone() == (0,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--max-executions-per-day", "-1"), "is not in the range"),
        (("--max-executions-per-day", "many"), "is not a valid integer range"),
        (("--weight", "0"), "is not in the range"),
    ],
)
def test_invalid_quota_is_refused(command: Command, arguments: tuple[str, ...], message: str) -> None:
    command("user", "add", "bo")
    refused = command("user", "quota", "bo", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert command("user", "quota", "nobody").returncode != 0


def test_command_beyond_a_quota_says_what_to_do(shell: Command) -> None:
    limit = {"HUTCH_MAX_EXECUTIONS_PER_DAY": "1"}
    assert shell("eval", "1 + 1", **limit).stdout == "2\n"
    refused = shell("eval", "1 + 1", **limit)
    assert refused.returncode == 1
    assert "1 executions a day (max_executions_per_day). Try again in " in refused.stderr
