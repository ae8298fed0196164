"""Detects a wrong master key before anything is written, by decrypting a known value from the store."""

from __future__ import annotations

from hutch.errors import VaultError
from hutch.store.store import Store
from hutch.vault import crypto, data_keys
from hutch.vault.crypto import MasterKeys

META_KEY = "vault.canary"
CHECK_VALUE = b"hutch"


async def has_encrypted_data(store: Store) -> bool:
    value = await store.meta.get(META_KEY) or await store.meta.get(data_keys.FLOWS_META_KEY)
    return value is not None or await store.users.any()


async def check(store: Store, master: MasterKeys) -> None:
    """Raises VaultError if the store was encrypted with other master keys. If the store has no check value
    yet, adds one.
    """
    encrypted = await store.meta.get(META_KEY)
    if encrypted is None:
        # There is no check value yet, so check whether the data keys of users and flows can be decrypted.
        for user in await store.users.list():
            _decrypt(master, data_keys.parse_entries(user.data_key)[0].sealed, data_keys.CONTEXT, user.id)
        if text := await store.meta.get(data_keys.FLOWS_META_KEY):
            _decrypt(
                master, data_keys.parse_entries(text)[0].sealed, data_keys.CONTEXT, data_keys.FLOWS_OWNER
            )
        # Two processes may get here at the same time. The first one stores its check value, and both check
        # that value.
        encrypted = await store.meta.put_first(META_KEY, crypto.encrypt(master, CHECK_VALUE, META_KEY))
    _decrypt(master, encrypted, META_KEY)


async def reencrypt(store: Store, master: MasterKeys) -> None:
    """Encrypts the check value with the current master key. Raises VaultError."""
    await check(store, master)
    encrypted = await store.meta.get(META_KEY)
    if encrypted is not None and not crypto.is_current(master, encrypted):
        # If the value has changed meanwhile, another process has already encrypted it again.
        await store.meta.swap(META_KEY, encrypted, crypto.encrypt(master, CHECK_VALUE, META_KEY))


def _decrypt(master: MasterKeys, text: str, *context: str) -> None:
    try:
        crypto.decrypt(master, text, *context)
    except crypto.KeyMissing as error:
        raise VaultError(
            f"The master key is not the one that this database is encrypted with: that is {error.key_id}, "
            f"and only {', '.join(master.ids)} is available. Nothing was changed.",
            remedy="Put that key into HUTCH_MASTER_KEY or HUTCH_HOME/master.key.",
        ) from None
