"""`hutch backup` and `hutch restore`: back up and restore the database as one file, and the master keys as
another.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.cli.support import event_loop
from hutch.cli.support.console import print_facts, print_note
from hutch.cli.support.store import with_store
from hutch.errors import VaultError
from hutch.settings import load_settings
from hutch.vault import crypto, flow_keys, master_key_check, private_files

if TYPE_CHECKING:
    from hutch.store.backup import Backup


def back_up(file: Path, key_file: Path | None) -> int:
    """Writes a backup of the database and, if `key_file` is given, a copy of the master keys."""
    home = load_settings().home_path
    keys = crypto.read_master_keys(home, os.environ) if key_file is not None else None
    backup = with_store(lambda store: store.write_backup(file))
    _print_backup(backup)
    if key_file is not None and keys is not None:
        private_files.write_if_missing(key_file, keys)
        print_note(f"the master key is in {key_file}; keep it apart from the backup")
    else:
        source = crypto.master_key_source(home, os.environ)
        print_note(f"the master key is not in the backup: keep a copy of {source}, or use --master-key FILE")
    return 0


def restore(file: Path, key_file: Path | None) -> int:
    """Restores a backup into an empty database. Returns 1 if the master key does not match."""
    settings = load_settings()
    if key_file is not None:
        _install_master_key(settings.home_path, key_file)

    async def run() -> tuple[Backup, str | None]:
        from hutch.store.backup import restore_backup

        backup = await restore_backup(settings, file)
        async with await flow_keys.open_store(settings) as store:
            if not await master_key_check.has_encrypted_data(store):
                return backup, None
            try:
                master = crypto.load_master_keys(settings.home_path, os.environ, create=False)
                await master_key_check.check(store, master)
            except VaultError as error:
                return backup, str(error)
        return backup, None

    backup, problem = event_loop.run_async(run())
    _print_backup(backup)
    if problem is not None:
        print_note(f"everything is restored, but encrypted data cannot be read yet. {problem}")
        return 1
    place = "the database" if settings.database_url else str(settings.home_path)
    print_note(f"everything is restored into {place}; `hutch serve` continues from there")
    return 0


def _install_master_key(home: Path, key_file: Path) -> None:
    text = private_files.read(key_file)
    if text is None:
        raise VaultError(f"{key_file}: does not exist.")
    crypto.check_master_keys(text, key_file)
    target = home / crypto.MASTER_KEY_FILE
    existing = private_files.read(target)
    if existing is not None and existing != text:
        raise VaultError(
            f"{target}: exists already with another key.",
            remedy="Restore into a new HUTCH_HOME, or move that file away.",
        )
    private_files.ensure_private_folder(home)
    private_files.write_if_missing(target, text)


def _print_backup(backup: Backup) -> None:
    counts = backup.counts
    facts = [
        ("created", f"{backup.header.created_at} by Hutch {backup.header.hutch}"),
        ("users", str(counts.get("users", 0))),
        ("credentials", str(counts.get("credentials", 0))),
        ("abilities", str(counts.get("abilities", 0))),
        ("flows", str(counts.get("flows", 0))),
        ("runs", str(counts.get("runs", 0))),
    ]
    print_facts(facts)
