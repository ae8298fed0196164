"""The store and the vault for one command: opened without a server, and beside one."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from hutch import settings as settings_module
from hutch.cli import loop
from hutch.errors import InvalidInput
from hutch.vault import journals

if TYPE_CHECKING:
    from hutch.store.rows import User
    from hutch.store.store import Store
    from hutch.vault.vault import Vault

T = TypeVar("T")


def with_store(action: Callable[[Store], Awaitable[T]]) -> T:
    """For what needs no secret of a user's. The master key is asked for only by what is sealed itself."""

    async def run() -> T:
        store = await journals.open_store(settings_module.load())
        try:
            return await action(store)
        finally:
            await store.close()

    return loop.run(run())


def with_vault(action: Callable[[Vault], Awaitable[T]]) -> T:
    """Raises VaultError if the master key is not the one of this store."""
    from hutch.vault.vault import Vault

    async def run(store: Store) -> T:
        home = settings_module.load().home_path
        return await action(await Vault.open(store, home, os.environ))

    return with_store(run)


async def user_named(store: Store, name: str) -> User:
    """Raises InvalidInput."""
    user = await store.users.by_name(name)
    if user is None:
        raise InvalidInput("user", f"there is no {name!r}.", remedy="`hutch user add NAME` makes one.")
    return user
