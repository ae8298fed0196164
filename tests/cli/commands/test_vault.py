"""Tests of `hutch user`, `key` and `credential`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
from pathlib import Path

import pytest
from tests.cli.commands.vault_helpers import VALUE, VECTOR, Command, output_of, set_value
from tests.support.forbidden import forbidden
from tests.support.processes import HUTCH, TIMEOUT_SECONDS

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
    # The user passes the secret key instead of the key's id. The message must not repeat the secret.
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
    """Reads available bytes. Returns b"" when the other end is closed."""
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
