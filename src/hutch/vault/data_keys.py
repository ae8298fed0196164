"""Data keys, which encrypt the credentials. Each user has separate data keys, encrypted with the master key.

Flows and their runs have data keys of the same format, which belong to no user.

The store keeps the keys of a user as one text, `created:encrypted created:encrypted …`, newest first. The
creation time is in seconds since the epoch. The first key encrypts. Replaced keys are kept for a while,
because a process that has just read the user may still encrypt with a replaced key.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Container
from itertools import pairwise
from typing import NamedTuple

from hutch.errors import VaultError
from hutch.vault import crypto
from hutch.vault.crypto import KEY_BYTES, EncryptionKey, KeyRing, MasterKeys

CONTEXT = "data key"
FLOWS_OWNER = "journal"
"""Used instead of a user id for the data keys of flows."""
FLOWS_META_KEY = "vault.journal"
"""Key of the meta table under which the data keys of flows are stored."""
# Time for which replaced keys are kept. A process may still use them with the row of a user that it has read,
# but for a much shorter time than this.
GRACE_SECONDS = 3600


class DataKey(EncryptionKey):
    noun = "data key"


class DataKeys(KeyRing[DataKey]):
    """Decrypted data keys of one user."""


class DataKeyEntry(NamedTuple):
    created: int
    sealed: str

    def __str__(self) -> str:
        return f"{self.created}:{self.sealed}"


def create_data_key(master: MasterKeys, user_id: str) -> str:
    """Returns a new data key, encrypted with the master key."""
    return str(_new_entry(master, user_id))


def decrypt_data_keys(master: MasterKeys, text: str, user_id: str) -> DataKeys:
    """Decrypts the data keys of a user. Raises VaultError if the master key is missing, or if the text
    belongs to another user or was altered.
    """
    return DataKeys([_decrypt_entry(master, entry, user_id) for entry in parse_entries(text)])


def add_data_key(master: MasterKeys, text: str, user_id: str) -> str:
    """Adds a new data key at the start of a stored text, and returns the new text. All keys in it are
    encrypted with the current master key. Raises VaultError.
    """
    older = [
        DataKeyEntry(entry.created, _encrypt_key(master, _decrypt_entry(master, entry, user_id), user_id))
        for entry in parse_entries(text)
    ]
    return _join([_new_entry(master, user_id), *older])


def drop_expired_keys(text: str, needed: Container[DataKeyEntry] = ()) -> str:
    """Removes the keys that were replaced more than GRACE_SECONDS ago from a stored text, except for the
    entries in `needed`.
    """
    entries = parse_entries(text)
    oldest = int(time.time()) - GRACE_SECONDS
    # The entries are sorted newest first, so a key was replaced when the entry before it was created.
    older = [entry for newer, entry in pairwise(entries) if newer.created > oldest or entry in needed]
    return _join([entries[0], *older])


def entries_with_ids(master: MasterKeys, text: str, user_id: str, ids: Container[str]) -> list[DataKeyEntry]:
    """Returns the entries with these key ids. Raises VaultError."""
    return [entry for entry in parse_entries(text) if _decrypt_entry(master, entry, user_id).id in ids]


def parse_entries(text: str) -> list[DataKeyEntry]:
    """Parses the stored text. The newest entry is the first. Raises VaultError if there is no entry."""
    entries = []
    for part in text.split():
        created, _, sealed = part.partition(":")
        if not created.isdecimal():
            raise VaultError("A stored data key is corrupt.")
        entries.append(DataKeyEntry(int(created), sealed))
    if not entries:
        raise VaultError("The data key is missing (is the database damaged?).")
    return entries


def _new_entry(master: MasterKeys, user_id: str) -> DataKeyEntry:
    return DataKeyEntry(
        int(time.time()), _encrypt_key(master, DataKey(secrets.token_bytes(KEY_BYTES)), user_id)
    )


def _encrypt_key(master: MasterKeys, key: DataKey, user_id: str) -> str:
    return crypto.encrypt(master, key.secret, CONTEXT, user_id)


def _decrypt_entry(master: MasterKeys, entry: DataKeyEntry, user_id: str) -> DataKey:
    return DataKey(crypto.decrypt(master, entry.sealed, CONTEXT, user_id))


def _join(entries: list[DataKeyEntry]) -> str:
    return " ".join(map(str, entries))


def master_key_ids(text: str) -> list[str]:
    """Returns the ids of the master keys with which these data keys are encrypted."""
    return [crypto.key_id(entry.sealed) for entry in parse_entries(text)]
