"""The data keys of flows and their runs, which are no user's: in the store, sealed with the master key.

They are kept as a user's are (`datakeys`), newest first, and made at the first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import VaultError
from hutch.store.store import Store
from hutch.vault import canary, datakeys, keys, sealing
from hutch.vault.datakeys import JOURNAL, JOURNAL_KEY

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.vault.datakeys import DataKeys
    from hutch.vault.keys import MasterKeys

ATTEMPTS = 20
"""Another rotation may have come between."""
# What a step gave may have half a character in it.
_ODD = "surrogatepass"


class JournalCipher:
    """Seals and opens what runs of flows are given, give and tell."""

    def __init__(self, data_keys: DataKeys) -> None:
        self._keys = data_keys

    def seal(self, text: str, *about: str) -> str:
        return sealing.seal(self._keys, text.encode("utf-8", _ODD), *about)

    def unseal(self, text: str, *about: str) -> str:
        return sealing.unseal(self._keys, text, *about).decode("utf-8", _ODD)


async def open_store(settings: Settings) -> Store:
    """The store, with the keys of flows loaded at their first use. Raises StoreError."""
    home = settings.home_path
    return await Store.open(settings, lambda store: load(store, home, os.environ))


async def load(store: Store, home: Path, environ: Mapping[str, str]) -> JournalCipher:
    """With the data keys as they are now; a first one is made. Raises VaultError.

    A new master key is made only where nothing is sealed yet, and a wrong one is told before any harm.
    """
    text = await store.meta.get(JOURNAL_KEY)
    master = keys.load(home, environ, make=text is None and not await canary.sealed(store))
    await canary.check(store, master)
    if text is None:
        # Of two that begin at once one is first, and the other has to fit.
        text = await store.meta.put_first(JOURNAL_KEY, datakeys.make(master, JOURNAL))
    return JournalCipher(datakeys.unseal(master, text, JOURNAL))


async def rotate(store: Store, master: MasterKeys) -> int | None:
    """Puts a new data key in front, which seals from now on; how many older ones open what there is.

    All are sealed with the current master key. What is sealed with older ones stays so, for there may be much
    of it; when the last of it is forgotten, they go. None where there is no key yet. Raises VaultError.
    """
    for _ in range(ATTEMPTS):
        text = await store.meta.get(JOURNAL_KEY)
        if text is None:
            return None
        added = datakeys.add(master, text, JOURNAL)
        needed = datakeys.with_ids(master, added, JOURNAL, await store.sealed_with())
        renewed = datakeys.drop(added, needed)
        if await store.meta.swap(JOURNAL_KEY, text, renewed):
            return len(datakeys.entries(renewed)) - 1
    raise VaultError("The data key of flows changes all the time.", remedy="Run it again later.")
