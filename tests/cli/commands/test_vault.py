"""Tests of `hutch user`, `key`, `credential` and `vault`."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import select
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO, TextIOWrapper
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from tests.support.flows import flow, node
from tests.support.forbidden import forbidden
from tests.support.processes import HUTCH, TIMEOUT_SECONDS, hutch

from hutch import cli

Command = Callable[..., "CompletedProcess[str]"]

VALUE = "Bearer sk-0123456789abcdefghijWXYZ"
VECTOR = json.dumps(
    {
        "ciphertext": "iQdNE3ruUSfEK/7bugGb+HhaJUBcFMIdNpApDrRYqpM=",
        "iv": base64.b64encode(bytes(range(12))).decode(),
    }
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def shell(home: Path) -> Command:
    """Runs commands as processes, with an empty home."""

    def run(*arguments: str, input: str = "", **env: str) -> CompletedProcess[str]:
        return hutch(*arguments, input=input, env={"HUTCH_HOME": str(home), **env})

    return run


@pytest.fixture
def command(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs commands in this process, which is faster."""

    def run(*arguments: str, input: str = "", **env: str) -> CompletedProcess[str]:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["hutch", *arguments])
            patch.setattr(sys, "stdin", TextIOWrapper(BytesIO(input.encode())))
            for name, value in {"HUTCH_HOME": str(home), **env}.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                cli.main()
        assert isinstance(ended.value.code, int)
        return CompletedProcess(arguments, ended.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def bo(command: Command) -> str:
    """Adds a user and returns its id."""
    done = command("user", "add", "bo")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def output_of(done: CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def set_value(command: Command, about: str = "api.example.com::Authorization", value: str = VALUE) -> None:
    done = command("credential", "set", "--user", "bo", about, input=value)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


# --- users ---


def test_first_user_needs_no_server_and_no_setup(shell: Command, home: Path) -> None:
    empty = shell("user", "list")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert "hutch user add NAME" in empty.stderr
    added = shell("user", "add", "bo")
    assert re.fullmatch(r"user_[0-9a-f]{16}\n", added.stdout)
    assert "hutch key add bo" in added.stderr
    assert f"{home / 'master.key'} is new" in added.stderr
    assert "master.key" not in shell("user", "add", "ann").stderr
    assert (home / "master.key").stat().st_mode & 0o777 == 0o600
    assert (home / "hutch.db").stat().st_mode & 0o777 == 0o600
    assert re.fullmatch(r"hk_[A-Za-z0-9_-]{43}\n", shell("key", "add", "bo").stdout)
    set_value(shell, value=f"{VALUE}\n")
    assert "…WXYZ" in shell("credential", "list", "--user", "bo").stdout


def test_users_are_listed(command: Command, bo: str) -> None:
    (listed,) = json.loads(command("user", "list", "--json").stdout)
    assert (listed["name"], listed["id"]) == ("bo", bo)
    assert set(listed) == {"id", "name", "created_at"}
    table = command("user", "list").stdout.splitlines()
    assert [line.split()[:2] for line in table] == [["NAME", "ID"], ["bo", bo]]


def test_user_is_shown_and_removed_with_everything_it_owns(command: Command, bo: str) -> None:
    command("key", "add", "bo")
    set_value(command)
    shown = json.loads(command("user", "show", "bo", "--json").stdout)
    assert (shown["id"], shown["keys"], shown["credentials"], shown["abilities"]) == (bo, 1, 1, 0)
    assert "credentials  1\n" in command("user", "show", "bo").stdout
    removed = command("user", "remove", "bo")
    assert removed.stdout == "removed bo with 1 keys, 1 credentials and 0 abilities\n"
    assert command("key", "list", "--json").stdout == "[]\n"
    gone = command("user", "show", "bo")
    assert (gone.returncode, gone.stdout) == (2, "")
    assert gone.stderr == "hutch: user: there is no 'bo'. `hutch user add NAME` adds one.\n"


def test_duplicate_and_invalid_names_are_rejected(command: Command, bo: str) -> None:
    taken = command("user", "add", "bo")
    assert (taken.returncode, taken.stdout) == (1, "")
    assert "'bo'" in taken.stderr
    bad = command("user", "add", "b o")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "name: expected 1 to 64 letters" in bad.stderr


# --- keys ---


def test_home_of_another_user_is_reported_with_a_remedy(command: Command, bo: str, home: Path) -> None:
    with forbidden(home):
        done = command("user", "add", "ada")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{home / 'hutch.db'}: cannot be opened: " in done.stderr
    assert done.stderr.endswith(
        " cannot be read and written by this user. Set HUTCH_HOME to a folder that you may write.\n"
    )


def test_key_is_alone_on_stdout_and_shown_once(command: Command, bo: str, home: Path) -> None:
    added = command("key", "add", "bo", "--name", "laptop", "--expires", "30d", "--scope", "tpmjs")
    secret = added.stdout.removesuffix("\n")
    assert re.fullmatch(r"hk_[A-Za-z0-9_-]{43}", secret)
    assert "not shown again" in added.stderr
    assert secret not in added.stderr
    (listed,) = json.loads(command("key", "list", "bo", "--json").stdout)
    assert (listed["user"], listed["name"], listed["state"]) == ("bo", "laptop", "active")
    assert (listed["scopes"], listed["ends_with"]) == (["tpmjs"], secret[-4:])
    assert "digest" not in listed
    outputs = [
        command("key", "list"),
        command("key", "list", "--json"),
        command("key", "show", listed["id"]),
        command("key", "show", listed["id"], "--json"),
    ]
    assert [each.returncode for each in outputs] == [0] * 4
    for each in outputs:
        assert secret[3:40] not in output_of(each)
    for file in home.iterdir():
        assert secret[3:40].encode() not in file.read_bytes()


def test_keys_are_revoked_and_removed_by_id(command: Command, bo: str) -> None:
    secret = command("key", "add", "bo").stdout.strip()
    (listed,) = json.loads(command("key", "list", "--json").stdout)
    key_id = listed["id"]
    assert (listed["expires_at"], listed["scopes"]) == (None, ["abilities", "mcp"])
    assert command("key", "revoke", key_id).stdout == f"revoked {key_id}\n"
    (revoked,) = json.loads(command("key", "list", "--json").stdout)
    assert revoked["state"] == "revoked"
    assert command("key", "remove", key_id).stdout == f"removed {key_id}\n"
    assert command("key", "list", "--json").stdout == "[]\n"
    for verb in ("show", "revoke", "remove"):
        gone = command("key", verb, key_id)
        assert (gone.returncode, gone.stdout) == (2, "")
        assert f"there is no {key_id!r}" in gone.stderr
    # If the secret key is given instead of its id, it is not printed again.
    given = command("key", "revoke", secret)
    assert (given.returncode, given.stdout) == (2, "")
    assert secret not in given.stderr
    assert "expected a key's id" in given.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["bo", "--expires", "soon"],
            "--expires: expected a duration such as 90m, 12h, 30d or 8w, or a date",
        ),
        (["bo", "--expires", "0d"], "--expires: expected a duration"),
        (["bo", "--expires", "2001-01-01"], "expires: expected a time in the future"),
        (["bo", "--scope", "all"], "scope: there is no 'all'; expected some of abilities, execbox"),
        (["al"], "user: there is no 'al'."),
    ],
)
def test_invalid_keys_are_rejected(command: Command, bo: str, arguments: list[str], message: str) -> None:
    done = command("key", "add", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert command("key", "list", "--json").stdout == "[]\n"


# --- credentials ---


def test_value_is_read_from_stdin_and_never_printed(command: Command, bo: str, home: Path) -> None:
    set_value(command, value=f"{VALUE}\n")
    set_value(command, "API.example.com::X-Pin", "1234")
    outputs = [
        command("credential", verb, "--user", "bo", *about, *form)
        for verb, about in (("list", ()), ("show", ("api.example.com",)))
        for form in ((), ("--json",))
    ]
    assert [each.returncode for each in outputs] == [0] * 4
    for each in outputs:
        assert "sk-0123" not in output_of(each)
        assert "1234" not in output_of(each)
        assert "hutch1." not in output_of(each)
    by_name = {each["key"]: each for each in json.loads(outputs[1].stdout)}
    assert by_name["Authorization"]["ends_with"] == "WXYZ"
    assert by_name["X-Pin"]["ends_with"] == ""
    assert {each["state"] for each in by_name.values()} == {"active"}
    table = outputs[0].stdout.splitlines()
    assert table[0].split() == ["DOMAIN", "NAME", "KIND", "STATE", "VALUE", "SET", "CAUSE"]
    assert table[1].split()[:5] == ["api.example.com", "Authorization", "header", "active", "…WXYZ"]
    for file in home.iterdir():
        assert b"sk-0123" not in file.read_bytes()


def test_value_in_argv_is_rejected_and_not_repeated(command: Command, bo: str) -> None:
    for given in (["sk-secret"], ["--", "sk-secret"], ["--value", "sk-secret"], ["--value=sk-secret"]):
        done = command("credential", "set", "--user", "bo", "a.example::X-Key", *given)
        assert (done.returncode, done.stdout) == (2, "")
        assert "sk-secret" not in done.stderr
    done = command("credential", "set", "--user", "bo", "a.example::X-Key", "sk-secret")
    assert "value: it cannot be given on the command line, where other users can see it." in done.stderr
    for about in ("a.example::X-Key=sk-secret", "sk-secret", "X-Key: sk-secret"):
        done = command("credential", "set", "--user", "bo", about, input="x")
        assert (done.returncode, done.stdout) == (2, "")
        assert "sk-secret" not in done.stderr
    assert command("credential", "list", "--user", "bo", "--json").stdout == "[]\n"


def test_value_is_prompted_for_at_a_terminal_and_not_shown(command: Command, bo: str, home: Path) -> None:
    question = b"Value of a.example::X-Key: "
    shown, status = at_terminal(
        home, question, b"typed-secret-0123456789", "credential", "set", "--user", "bo", "a.example::X-Key"
    )
    assert status == 0
    assert b"stored a.example::X-Key for bo" in shown
    assert b"typed-secret" not in shown
    (found,) = json.loads(command("credential", "list", "--user", "bo", "--json").stdout)
    assert found["ends_with"] == "6789"


def test_removal_of_a_user_is_confirmed_at_a_terminal(command: Command, bo: str, home: Path) -> None:
    question = b"Remove bo with 0 keys, 0 credentials and 0 abilities?"
    assert at_terminal(home, question, b"n", "user", "remove", "bo")[1] == 130
    assert command("user", "show", "bo").returncode == 0
    assert at_terminal(home, question, b"y", "user", "remove", "bo")[1] == 0
    assert command("user", "show", "bo").returncode == 2


def at_terminal(home: Path, question: bytes, answer: bytes, *arguments: str) -> tuple[bytes, int]:
    """Runs a command at a pseudo-terminal. Returns its whole output, and the exit code."""
    our_end, their_end = pty.openpty()
    environ = {**os.environ, "HUTCH_HOME": str(home)}
    with subprocess.Popen(
        [*HUTCH, *arguments],
        stdin=their_end,
        stdout=their_end,
        stderr=their_end,
        env=environ,
        start_new_session=True,
    ) as process:
        os.close(their_end)
        seen = b""
        while question not in seen:
            seen += read(our_end)
        os.write(our_end, answer + b"\n")
        while chunk := read(our_end):
            seen += chunk
        status = process.wait(TIMEOUT_SECONDS)
    os.close(our_end)
    return seen, status


def read(handle: int) -> bytes:
    """Returns b"" when the other side is closed."""
    assert select.select([handle], [], [], TIMEOUT_SECONDS)[0], "the process prints nothing more"
    try:
        return os.read(handle, 4096)
    except OSError:
        return b""


def test_credentials_are_removed_by_domain_name_and_kind(command: Command, bo: str) -> None:
    for about in ("a.example::One", "a.example::Two", "b.example::One"):
        set_value(command, about)
    remove = ("credential", "remove", "--user", "bo")
    assert command(*remove, "a.example::one", "--kind", "cookie").returncode == 2
    assert command(*remove, "A.example::one").stdout == "removed 1 of A.example::one\n"
    assert command(*remove, "a.example").stdout == "removed 1 of a.example\n"
    assert command(*remove, "a.example").returncode == 2
    (left,) = json.loads(command("credential", "list", "--user", "bo", "--json").stdout)
    assert left["domain"] == "b.example"


def test_token_without_its_scheme_is_stored_with_a_note(command: Command, bo: str) -> None:
    put = ("credential", "set", "--user", "bo", "a.example::authorization")
    assert "expects `Bearer` in front" in command(*put, input="sk-0123456789").stderr
    assert "Bearer" not in command(*put, input=VALUE).stderr
    assert "Bearer" not in command(*put, "--kind", "auth_token", input="sk-0123456789").stderr


def test_value_encrypted_by_the_public_client_is_decrypted(command: Command, bo: str) -> None:
    set_encrypted = ("credential", "set", "--user", "bo", "a.example::X-Key", "--encrypted")
    done = command(*set_encrypted, input=VECTOR, HUTCH_CREDENTIAL_KEY="meowmeow")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "",
        "hutch: stored a.example::X-Key for bo\n",
    )
    wrong = command(*set_encrypted, input=VECTOR, HUTCH_CREDENTIAL_KEY="meow")
    assert wrong.returncode == 2
    assert "encrypted with another key, or was altered" in wrong.stderr
    missing = command(*set_encrypted, input=VECTOR)
    assert missing.returncode == 2
    assert "HUTCH_CREDENTIAL_KEY: expected the key" in missing.stderr


def test_export_is_imported_completely_or_not_at_all(command: Command, bo: str, tmp_path: Path) -> None:
    rows = [
        {"domain": f"{each}.example", "credentialType": kind, "credentialKey": key, "encryptedValue": VECTOR}
        for each, kind, key in (("a", "header", "a.example::X-Key"), ("b", "cookie", "sid"))
    ]
    file = tmp_path / "exported.json"
    bring = ("credential", "import", "--user", "bo")
    file.write_text(json.dumps([*rows, {**rows[0], "domain": "no host"}]))
    bad = command(*bring, str(file), HUTCH_CREDENTIAL_KEY="meowmeow")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "credentials[2]: domain: expected the name of a host" in bad.stderr
    assert command("credential", "list", "--user", "bo", "--json").stdout == "[]\n"
    file.write_text(json.dumps(rows))
    done = command(*bring, str(file), HUTCH_CREDENTIAL_KEY="meowmeow")
    assert (done.returncode, done.stdout) == (0, "a.example::X-Key (header)\nb.example::sid (cookie)\n")
    again = command(*bring, "-", input=json.dumps(rows), HUTCH_CREDENTIAL_KEY="meowmeow")
    assert again.returncode == 0
    assert len(json.loads(command("credential", "list", "--user", "bo", "--json").stdout)) == 2


@pytest.mark.parametrize(
    ("arguments", "input", "message"),
    [
        (["--user", "al", "a.example::X"], "x", "user: there is no 'al'."),
        (["--user", "bo", "a.example"], "x", "DOMAIN::NAME: expected both"),
        (["--user", "bo", "https://a.example::X"], "x", "domain: expected the name of a host"),
        (["--user", "bo", "a.example::X"], "", "value: expected a value, got nothing."),
        (["--user", "bo", "a.example::X"], "sk-secret\r\nHost: b", "value: it contains a line break"),
        (["--user", "bo", "a.example::X", "--kind", "oauth"], "x", "'oauth' is not one of"),
        (["a.example::X"], "x", "Missing option '--user'"),
    ],
)
def test_invalid_credentials_are_rejected(
    command: Command, bo: str, arguments: list[str], input: str, message: str
) -> None:
    done = command("credential", "set", *arguments, input=input)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "sk-secret" not in done.stderr
    assert command("credential", "list", "--user", "bo", "--json").stdout == "[]\n"


# --- vault ---


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
    # Everything can still be decrypted without the older key.
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
