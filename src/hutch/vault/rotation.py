"""Replaces keys while others read and write: every step leaves everything open to everybody.

For each user: a new data key comes in front of those there are, all sealed with the current master key; every
credential is sealed anew. The older data keys stay a while, sealed: somebody may just be writing with one.
They go with a later rotation. Whoever stops in between leaves keys that open everything. For flows it is the
same, but that what is sealed already stays as it is (`journals`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from hutch.errors import VaultError
from hutch.store.rows import Credential, User
from hutch.store.store import Store
from hutch.vault import canary, credentials, datakeys, journals, sealing
from hutch.vault.datakeys import DataKeys
from hutch.vault.vault import Vault

# Another rotation may have come between.
ATTEMPTS = 20
# What somebody wrote meanwhile with an older key is found by the next look, or by the next rotation.
LOOKS = 3

Progress = Callable[[str], None]


class Rotated(msgspec.Struct, frozen=True, kw_only=True):
    """What was done."""

    users: int = 0
    credentials: int = 0
    unreadable: tuple[str, ...] = ()
    """Credentials that were altered, and open with no key: `user: domain::key`."""
    flows: bool = False
    """Whether what comes of flows is sealed with a new key."""


async def rotate(vault: Vault, progress: Progress = lambda text: None) -> Rotated:
    """New data keys for all users, sealed with the current master key. Raises VaultError."""
    store = vault.store
    await canary.check(store, vault.master)
    users = resealed = 0
    unreadable: list[str] = []
    for user in await store.users.list():
        count, bad = await _rotate_user(vault, user)
        users += 1
        resealed += count
        unreadable += [f"{user.name}: {each.domain}::{each.key}" for each in bad]
        progress(f"{user.name}: {count} credentials sealed with a new key")
    older = await journals.rotate(store, vault.master)
    if older is not None:
        progress(f"flows: a new key for what comes; {older} older for what is there")
    # Last: until then the keys that are leaving still have to be there.
    await canary.reseal(store, vault.master)
    return Rotated(users=users, credentials=resealed, unreadable=tuple(unreadable), flows=older is not None)


async def _rotate_user(vault: Vault, user: User) -> tuple[int, list[Credential]]:
    """How many credentials were sealed anew, and which do not open."""
    store = vault.store
    current = await _add_key(vault, user.id)
    if current is None:
        return 0, []
    keys = vault.data_keys(current)
    resealed, bad, changed = 0, list[Credential](), True
    for _ in range(LOOKS):
        outcomes = [
            (credential, await _reseal(store, keys, credential))
            for credential in await store.credentials.list(user.id)
        ]
        resealed += sum(outcome == "resealed" for _, outcome in outcomes)
        bad = [credential for credential, outcome in outcomes if outcome == "shut"]
        changed = any(outcome == "changed" for _, outcome in outcomes)
        found = await store.users.by_id(user.id)
        if found is None or found.data_key != current.data_key:
            # Another rotation has begun since, and seals all of these again.
            return resealed, []
        if not any(outcome in ("resealed", "changed") for _, outcome in outcomes):
            break
    # One that was moved may be moved back, and then needs the key that it was sealed with.
    if not bad and not changed:
        await store.users.set_data_key(user.id, current.data_key, datakeys.drop(current.data_key))
    return resealed, bad


async def _add_key(vault: Vault, user_id: str) -> User | None:
    """The user with a new data key in front; None if the user has been removed."""
    store = vault.store
    for _ in range(ATTEMPTS):
        user = await store.users.by_id(user_id)
        if user is None:
            return None
        text = datakeys.add(vault.master, user.data_key, user_id)
        if await store.users.set_data_key(user_id, user.data_key, text):
            return msgspec.structs.replace(user, data_key=text)
    raise VaultError("The data key changes all the time.", remedy="Run it again later.")


async def _reseal(
    store: Store, keys: DataKeys, credential: Credential
) -> Literal["current", "resealed", "changed", "shut"]:
    """What became of it: `changed` by others meanwhile, or `shut`, which opens with none of the keys."""
    try:
        if sealing.is_current(keys, credential.sealed):
            return "current"
        sealed = credentials.reseal(keys, credential)
    except VaultError:
        return "shut"
    done = await store.credentials.reseal(credential.id, credential.sealed, sealed)
    return "resealed" if done else "changed"
