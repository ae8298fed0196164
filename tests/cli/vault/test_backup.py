"""`hutch backup` and `hutch restore` as commands."""

from __future__ import annotations

from pathlib import Path

from tests.support.processes import hutch


def env(home: Path, **more: str) -> dict[str, str]:
    return {"HUTCH_HOME": str(home), **more}


def add_credential(home: Path) -> None:
    assert hutch("user", "add", "bo", env=env(home)).returncode == 0
    done = hutch("credential", "set", "--user", "bo", "api.test::Authorization", input="tok", env=env(home))
    assert done.returncode == 0, done.stderr


def test_backup_and_key_restore_a_home_on_another_machine(tmp_path: Path) -> None:
    old, new, backup, key = (tmp_path / name for name in ("old", "new", "b", "k"))
    add_credential(old)
    done = hutch("backup", str(backup), "--master-key", str(key), env=env(old))
    assert (done.returncode, "users        1" in done.stdout) == (0, True)
    assert key.read_bytes() == (old / "master.key").read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600
    done = hutch("restore", str(backup), "--master-key", str(key), env=env(new))
    assert done.returncode == 0
    assert done.stderr == f"hutch: everything is restored into {new}; `hutch serve` continues from there\n"
    assert hutch("vault", "status", env=env(new)).returncode == 0
    assert "api.test" in hutch("credential", "list", "--user", "bo", env=env(new)).stdout


def test_backup_without_the_key_says_where_the_key_is(tmp_path: Path) -> None:
    add_credential(tmp_path / "home")
    done = hutch("backup", str(tmp_path / "b"), env=env(tmp_path / "home"))
    assert f"keep a copy of {tmp_path / 'home' / 'master.key'}" in done.stderr


def test_restore_without_the_key_says_that_secrets_cannot_be_read(tmp_path: Path) -> None:
    add_credential(tmp_path / "old")
    hutch("backup", str(tmp_path / "b"), env=env(tmp_path / "old"))
    done = hutch("restore", str(tmp_path / "b"), env=env(tmp_path / "new"))
    assert done.returncode == 1
    assert "encrypted data cannot be read yet" in done.stderr
    assert "There is no master key" in done.stderr
    (tmp_path / "new" / "master.key").write_bytes((tmp_path / "old" / "master.key").read_bytes())
    (tmp_path / "new" / "master.key").chmod(0o600)
    assert hutch("vault", "status", env=env(tmp_path / "new")).returncode == 0


def test_another_master_key_is_not_replaced(tmp_path: Path) -> None:
    add_credential(tmp_path / "old")
    add_credential(tmp_path / "other")
    hutch("backup", str(tmp_path / "b"), "--master-key", str(tmp_path / "k"), env=env(tmp_path / "old"))
    before = (tmp_path / "other" / "master.key").read_bytes()
    done = hutch(
        "restore", str(tmp_path / "b"), "--master-key", str(tmp_path / "k"), env=env(tmp_path / "other")
    )
    assert done.returncode == 1
    assert "exists already with another key" in done.stderr
    assert (tmp_path / "other" / "master.key").read_bytes() == before


def test_file_that_is_not_a_backup_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("text")
    done = hutch("restore", str(tmp_path / "b"), env=env(tmp_path / "home"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a complete backup of Hutch" in done.stderr
