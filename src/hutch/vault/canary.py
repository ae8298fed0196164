"""The canary: a sealed word in the store, to tell the right master key from a wrong one before any harm."""

from __future__ import annotations

from hutch.errors import VaultError
from hutch.store.store import Store
from hutch.vault import datakeys, sealing
from hutch.vault.keys import MasterKeys

KEY = "vault.canary"
WORD = b"hutch"


async def sealed(store: Store) -> bool:
    """Whether anything in the store is sealed."""
    known = await store.meta.get(KEY) or await store.meta.get(datakeys.JOURNAL_KEY)
    return known is not None or await store.users.any()


async def check(store: Store, master: MasterKeys) -> None:
    """Raises VaultError if the store was sealed with other keys. Where nothing is sealed yet, these count."""
    found = await store.meta.get(KEY)
    if found is None:
        # A store that has lost its canary still has users, or flows.
        for user in await store.users.list():
            _open(master, datakeys.entries(user.data_key)[0].sealed, datakeys.ABOUT, user.id)
        if text := await store.meta.get(datakeys.JOURNAL_KEY):
            _open(master, datakeys.entries(text)[0].sealed, datakeys.ABOUT, datakeys.JOURNAL)
        # Of two that begin at once one is first, and the other has to fit.
        found = await store.meta.put_first(KEY, sealing.seal(master, WORD, KEY))
    _open(master, found, KEY)


async def reseal(store: Store, master: MasterKeys) -> None:
    """With the current master key. Raises VaultError."""
    await check(store, master)
    found = await store.meta.get(KEY)
    if found is not None and not sealing.is_current(master, found):
        # Who was quicker has resealed it as well.
        await store.meta.swap(KEY, found, sealing.seal(master, WORD, KEY))


def _open(master: MasterKeys, text: str, *about: str) -> None:
    try:
        sealing.unseal(master, text, *about)
    except sealing.KeyMissing as error:
        raise VaultError(
            f"The master key is not the one that this database is sealed with: that is {error.key_id}, and "
            f"there is only {', '.join(master.ids)}. Nothing was changed.",
            remedy="Give it that key, in HUTCH_MASTER_KEY or in HUTCH_HOME/master.key.",
        ) from None
