"""Key rotation while other processes read and write. After every step, all data can be decrypted.

Each user gets a new data key in front of the existing ones. All data keys are encrypted with the current
master key, and every credential is encrypted with the user's new data key. Older data keys are kept for a
while, because a process may still be encrypting with one of them; a later rotation removes these keys. If a
rotation is interrupted, the stored keys can still decrypt everything. Flows get a new data key too, but their
rows are not encrypted again (see `flow_keys`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from hutch.errors import VaultError
from hutch.store.models import Credential, User
from hutch.store.store import Store
from hutch.vault import credentials, crypto, data_keys, flow_keys, master_key_check
from hutch.vault.data_keys import DataKeys
from hutch.vault.vault import Vault

# Maximum number of attempts to add a data key while other rotations change the user.
ATTEMPTS = 20
# Number of passes over all credentials. Another process may store a credential with an older key during a
# pass. Such a credential is encrypted again in the next pass, or by the next rotation.
PASSES = 3

Progress = Callable[[str], None]


class RotationResult(msgspec.Struct, frozen=True, kw_only=True):
    users: int = 0
    credentials: int = 0
    unreadable: tuple[str, ...] = ()
    """Credentials that no key can decrypt, as `user: domain::key`."""
    flows: bool = False
    """True if flows have a new data key."""


async def rotate(vault: Vault, progress: Progress = lambda text: None) -> RotationResult:
    """Creates new data keys for all users and flows. Encrypts all data keys with the current master key.
    Raises VaultError.
    """
    store = vault.store
    await master_key_check.check(store, vault.master)
    users = reencrypted = 0
    unreadable: list[str] = []
    for user in await store.users.list():
        count, unreadable_rows = await _rotate_user(vault, user)
        users += 1
        reencrypted += count
        unreadable += [f"{user.name}: {row.domain}::{row.key}" for row in unreadable_rows]
        progress(f"{user.name}: {count} credentials encrypted with a new key")
    older = await flow_keys.rotate(store, vault.master)
    if older is not None:
        progress(f"flows: a new key for new data; older keys still in use: {older}")
    # Change the check value last, because the replaced master keys are needed until here.
    await master_key_check.reencrypt(store, vault.master)
    return RotationResult(
        users=users, credentials=reencrypted, unreadable=tuple(unreadable), flows=older is not None
    )


async def _rotate_user(vault: Vault, user: User) -> tuple[int, list[Credential]]:
    """Encrypts the credentials of a user with a new data key. Returns how many were encrypted again, and the
    credentials that cannot be decrypted.
    """
    store = vault.store
    current = await _add_key(vault, user.id)
    if current is None:
        return 0, []
    keys = vault.data_keys(current)
    reencrypted, unreadable, changed = 0, list[Credential](), True
    for _ in range(PASSES):
        outcomes = [
            (credential, await _reencrypt(store, keys, credential))
            for credential in await store.credentials.list(user.id)
        ]
        reencrypted += sum(outcome == "reencrypted" for _, outcome in outcomes)
        unreadable = [credential for credential, outcome in outcomes if outcome == "unreadable"]
        changed = any(outcome == "changed" for _, outcome in outcomes)
        stored = await store.users.by_id(user.id)
        if stored is None or stored.data_key != current.data_key:
            # Stop, because another rotation has started and will encrypt these credentials again.
            return reencrypted, []
        if not any(outcome in ("reencrypted", "changed") for _, outcome in outcomes):
            break
    # Keep the old keys if a credential could not be encrypted again, because it may become readable later.
    # For example, a row that was moved to another user may be moved back, and then its old key is needed.
    if not unreadable and not changed:
        await store.users.set_data_key(
            user.id, current.data_key, data_keys.drop_expired_keys(current.data_key)
        )
    return reencrypted, unreadable


async def _add_key(vault: Vault, user_id: str) -> User | None:
    """Adds a new data key for a user. Returns the changed user, or None if the user was removed."""
    store = vault.store
    for _ in range(ATTEMPTS):
        user = await store.users.by_id(user_id)
        if user is None:
            return None
        text = data_keys.add_data_key(vault.master, user.data_key, user_id)
        if await store.users.set_data_key(user_id, user.data_key, text):
            return msgspec.structs.replace(user, data_key=text)
    raise VaultError("Other processes keep rotating this data key.", remedy="Try again later.")


async def _reencrypt(
    store: Store, keys: DataKeys, credential: Credential
) -> Literal["current", "reencrypted", "changed", "unreadable"]:
    """Encrypts a credential with the current data key. Returns `changed` if another process has changed the
    credential, and `unreadable` if no key decrypts it.
    """
    try:
        if crypto.is_current(keys, credential.sealed):
            return "current"
        encrypted = credentials.reencrypt(keys, credential)
    except VaultError:
        return "unreadable"
    replaced = await store.credentials.replace_sealed(credential.id, credential.sealed, encrypted)
    return "reencrypted" if replaced else "changed"
