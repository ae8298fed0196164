"""Opens the store and the vault for one command. A server may use them at the same time."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from hutch.cli.support import event_loop
from hutch.errors import InvalidInput
from hutch.settings import load_settings
from hutch.vault import flow_keys

if TYPE_CHECKING:
    from hutch.store.models import Group, User
    from hutch.store.store import Store
    from hutch.vault.vault import Vault

T = TypeVar("T")


def with_store(action: Callable[[Store], Awaitable[T]]) -> T:
    """Runs `action` with an open store. The master key is loaded only if `action` reads encrypted columns."""

    async def run() -> T:
        store = await flow_keys.open_store(load_settings())
        try:
            return await action(store)
        finally:
            await store.close()

    return event_loop.run_async(run())


def with_vault(action: Callable[[Vault], Awaitable[T]]) -> T:
    """Runs `action` with an open vault. Raises VaultError if the store was encrypted with another master
    key.
    """
    from hutch.vault.vault import Vault

    async def run(store: Store) -> T:
        home = load_settings().home_path
        return await action(await Vault.open(store, home, os.environ))

    return with_store(run)


async def find_user(store: Store, name: str) -> User:
    """Returns the user with this name. Raises InvalidInput if there is none."""
    user = await store.users.by_name(name)
    if user is None:
        raise InvalidInput("user", f"there is no {name!r}.", remedy="`hutch user add NAME` adds one.")
    return user


async def find_group(store: Store, name: str) -> Group:
    """Returns the group with this name. Raises InvalidInput if there is none."""
    group = await store.groups.by_name(name)
    if group is None:
        raise InvalidInput("group", f"there is no {name!r}.", remedy="`hutch group add NAME` adds one.")
    return group
