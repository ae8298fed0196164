"""Data keys: one for each user, sealed with the master key. Credentials are sealed with them.

Those of flows and their runs are kept in the same way, and are no user's.

In the store a user's are one text, `made:sealed made:sealed …`, newest first: when each was made, in seconds
since the epoch, and the sealed key. The first one seals. A replaced one still opens for a while: whoever has
read the user just before may yet write something that is sealed with it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Container
from itertools import pairwise
from typing import NamedTuple

from hutch.errors import VaultError
from hutch.vault import sealing
from hutch.vault.keys import BYTES, Key, Keys, MasterKeys

ABOUT = "data key"
JOURNAL = "journal"
"""Whose those of flows are: it is no user's id."""
JOURNAL_KEY = "vault.journal"
"""Where the store has them, among the facts about itself."""
# Far longer than anybody goes on with a user that was read once.
GRACE_SECONDS = 3600


class DataKey(Key):
    """Seals what one user keeps."""

    noun = "data key"


class DataKeys(Keys[DataKey]):
    """Those of one user."""


class Entry(NamedTuple):
    """One of them as it is kept."""

    made: int
    sealed: str

    def __str__(self) -> str:
        return f"{self.made}:{self.sealed}"


def make(master: MasterKeys, user_id: str) -> str:
    """A new one, sealed."""
    return str(_make(master, user_id))


def unseal(master: MasterKeys, text: str, user_id: str) -> DataKeys:
    """Raises VaultError: no such master key, another user's, or not as it was sealed."""
    return DataKeys([_unseal(master, each, user_id) for each in entries(text)])


def add(master: MasterKeys, text: str, user_id: str) -> str:
    """With a new one in front, and all of them sealed with the current master key. Raises VaultError."""
    older = [
        Entry(each.made, sealing.seal(master, _unseal(master, each, user_id).secret, ABOUT, user_id))
        for each in entries(text)
    ]
    return _join([_make(master, user_id), *older])


def drop(text: str, needed: Container[Entry] = ()) -> str:
    """Without those that were replaced so long ago that nobody goes on with them, unless they are needed."""
    found = entries(text)
    oldest = int(time.time()) - GRACE_SECONDS
    # One was replaced when the one before it in the text was made.
    kept = [each for newer, each in pairwise(found) if newer.made > oldest or each in needed]
    return _join([found[0], *kept])


def with_ids(master: MasterKeys, text: str, user_id: str, ids: Container[str]) -> list[Entry]:
    """Those of them that have these ids. Raises VaultError."""
    return [each for each in entries(text) if _unseal(master, each, user_id).id in ids]


def entries(text: str) -> list[Entry]:
    """Newest first. Raises VaultError for a text that has none."""
    found = []
    for each in text.split():
        made, _, sealed = each.partition(":")
        if not made.isdecimal():
            raise VaultError("A data key is not as it was written.")
        found.append(Entry(int(made), sealed))
    if not found:
        raise VaultError("There is no data key where one has to be.")
    return found


def _make(master: MasterKeys, user_id: str) -> Entry:
    sealed = sealing.seal(master, secrets.token_bytes(BYTES), ABOUT, user_id)
    return Entry(int(time.time()), sealed)


def _unseal(master: MasterKeys, entry: Entry, user_id: str) -> DataKey:
    return DataKey(sealing.unseal(master, entry.sealed, ABOUT, user_id))


def _join(found: list[Entry]) -> str:
    return " ".join(map(str, found))


def master_ids(text: str) -> list[str]:
    """The master keys that they are sealed with."""
    return [sealing.key_id(each.sealed) for each in entries(text)]
