"""Tests of `hutch ability share` and `unshare`, and of `hutch group`, as processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.protocols.abilities.harness import ability
from tests.support.processes import hutch

ID = "twitter_get_user_profile"


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUTCH_HOME", str(tmp_path))
    for name in ("ann", "bo"):
        assert hutch("user", "add", name).returncode == 0


def listed(user: str) -> list[tuple[str, str | None]]:
    done = hutch("ability", "list", "--user", user, "--json")
    return [(each["ability_id"], each["shared_by"]) for each in json.loads(done.stdout)]


@pytest.mark.usefixtures("users")
def test_ability_is_shared_with_users_and_groups() -> None:
    assert hutch("group", "add", "team", "ann", "bo").stdout == "team: ann, bo\n"
    stored = hutch("ability", "add", "--user", "ann", "-", input=json.dumps(ability()))
    assert stored.returncode == 0
    share, unshare = ("ability", "share", "--user", "ann", ID), ("ability", "unshare", "--user", "ann", ID)
    shared = hutch(*share, "--with", "bo", "--with-group", "team")
    assert (shared.returncode, shared.stdout) == (0, "user bo\ngroup team\n"), shared.stderr
    assert listed("bo") == [(ID, "ann")]
    table = hutch("ability", "list", "--user", "bo").stdout
    assert "  ann  " in table.splitlines()[1]
    assert hutch(*share).stdout == shared.stdout
    assert hutch(*unshare, "--with", "bo").stdout == "group team\n"
    assert hutch("group", "remove", "team", "bo").stdout == "team: ann\n"
    assert listed("bo") == []
    assert json.loads(hutch("group", "list", "--json").stdout)[0]["members"] == ["ann"]
    assert hutch("group", "remove", "team", "--yes").stdout == "removed team\n"
    left = hutch(*share)
    assert (left.returncode, left.stdout) == (0, "")
    assert "shared with no user and no group" in left.stderr


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ability", "share", "--user", "ann", "unknown", "--with", "bo"), "ann has no ability 'unknown'"),
        (("group", "add", "team", "unknown"), "user: there is no 'unknown'"),
        (("group", "add", "a b"), "expected 1 to 64 letters"),
        (("group", "remove", "unknown"), "group: there is no 'unknown'"),
        (("ability", "unshare", "--user", "ann", ID), "--with"),
    ],
)
def test_unknown_names_are_refused(arguments: tuple[str, ...], message: str) -> None:
    done = hutch(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert hutch("group", "list").stdout == ""
