"""The vault: users, their API keys and their credentials, on top of the store."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from hutch.errors import InvalidInput, StoreError, VaultError
from hutch.store import rows
from hutch.store.rows import ApiKey, Credential, User
from hutch.store.store import Store
from hutch.vault import apikeys, canary, credentials, datakeys, keys, sealing
from hutch.vault.credentials import Secret
from hutch.vault.datakeys import DataKeys
from hutch.vault.keys import MasterKeys

# How often what changes meanwhile is read again.
ATTEMPTS = 4
# Users whose data keys are kept open: those who come again do so soon.
MOST_OPENED = 1_000

_USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


class Vault:
    """Who may come in, and what is kept for them."""

    def __init__(
        self, store: Store, master: MasterKeys, *, reload: Callable[[], MasterKeys] | None = None
    ) -> None:
        """`reload` gives the master keys as they are now: others may have added one."""
        self.store = store
        self.master = master
        self._reload = reload
        self._opened: dict[tuple[str, str], DataKeys] = {}

    @classmethod
    async def open(cls, store: Store, home: Path, environ: Mapping[str, str]) -> Vault:
        """The vault of a store whose secrets the master keys open. Raises VaultError if they do not.

        A new master key is made only where nothing is sealed yet.
        """
        fresh = not await canary.sealed(store)
        master = keys.load(home, environ, make=fresh)
        vault = cls(store, master, reload=lambda: keys.load(home, environ, make=False))
        await vault.check()
        return vault

    async def check(self) -> None:
        """Raises VaultError if the master keys are not those that the store's secrets are sealed with."""
        try:
            await canary.check(self.store, self.master)
        except VaultError:
            if not self._reloaded():
                raise
            await canary.check(self.store, self.master)

    # --- users ---

    async def add_user(self, name: str) -> User:
        """Raises InvalidInput, or Taken if there is one of that name."""
        if not _USER_NAME.fullmatch(name):
            raise InvalidInput(
                "name",
                f"expected 1 to 64 letters, digits and any of . _ @ + -, the first a letter or digit, "
                f"got {name!r}.",
            )
        # Whoever has the wrong master key must not leave anything that is sealed with it.
        await self.check()
        user_id = f"user_{secrets.token_hex(8)}"
        user = User(
            id=user_id, name=name, data_key=datakeys.make(self.master, user_id), created_at=rows.now()
        )
        await self.store.users.add(user)
        return user

    # --- API keys ---

    async def issue_key(
        self, user: User, name: str, *, scopes: Sequence[str] = (), expires_at: str | None = None
    ) -> tuple[ApiKey, str]:
        """A key and its secret, which nobody can have again. Raises InvalidInput."""
        key, secret = apikeys.make(user, name, scopes, expires_at)
        async with self._of(user):
            await self.store.keys.add(key)
        return key, secret

    # --- credentials ---

    async def put_credential(self, user: User, domain: str, kind: str, key: str, value: str) -> Credential:
        """Keeps a value, in the place of the one before. Raises InvalidInput, and never shows the value."""
        about = credentials.name(domain, kind, key)
        credentials.check_value(kind, value)
        now = rows.now()
        credential = Credential(
            id=f"cred_{secrets.token_hex(8)}",
            user_id=user.id,
            domain=about.domain,
            kind=about.kind,
            key=about.key,
            sealed=credentials.seal(self.data_keys(user), user.id, about, value),
            hint=credentials.hint(value),
            created_at=now,
            updated_at=now,
        )
        async with self._of(user):
            kept = await self.store.credentials.put(credential)
        return msgspec.structs.replace(credential, id=kept)

    async def secrets(self, user: User, domains: Sequence[str]) -> list[Secret]:
        """The credentials of a user for these domains, with their values. Raises VaultError."""
        found = await self.store.credentials.for_domains(user.id, domains)
        return await self.unseal(user, found)

    async def unseal(self, user: User, found: Sequence[Credential]) -> list[Secret]:
        """Credentials that were read before. Raises VaultError.

        Where keys are replaced meanwhile, both the user and the credentials are read again.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._unseal(user, found)
            except sealing.KeyMissing:
                user = await self._fresh(user)
                ids, domains = {each.id for each in found}, sorted({each.domain for each in found})
                again = await self.store.credentials.for_domains(user.id, domains)
                found = [each for each in again if each.id in ids]
        return self._unseal(user, found)

    async def expire(self, ids: Sequence[str], cause: str) -> None:
        """Marks credentials that were refused. They are kept, and used again: a later success clears it."""
        await self.store.credentials.expire(ids, rows.now(), cause)

    async def revive(self, ids: Sequence[str]) -> None:
        await self.store.credentials.revive(ids)

    # --- keys of users ---

    def data_keys(self, user: User) -> DataKeys:
        """Raises VaultError."""
        sealed = (user.id, user.data_key)
        if sealed not in self._opened:
            if len(self._opened) >= MOST_OPENED:
                self._opened.pop(next(iter(self._opened)))
            self._opened[sealed] = self._open_data_keys(user)
        return self._opened[sealed]

    def _open_data_keys(self, user: User) -> DataKeys:
        try:
            return datakeys.unseal(self.master, user.data_key, user.id)
        except sealing.KeyMissing:
            if not self._reloaded():
                raise
            return datakeys.unseal(self.master, user.data_key, user.id)

    def _reloaded(self) -> bool:
        """Whether there are other master keys than before: somebody has added one."""
        before = self.master.ids
        if self._reload is not None:
            self.master = self._reload()
        return self.master.ids != before

    def _unseal(self, user: User, found: Sequence[Credential]) -> list[Secret]:
        if not found:
            return []
        data_keys = self.data_keys(user)
        if any(each.user_id != user.id for each in found):
            raise VaultError("These credentials are not this user's.")
        return [credentials.unseal(data_keys, each) for each in found]

    @asynccontextmanager
    async def _of(self, user: User) -> AsyncIterator[None]:
        """What the store cannot take because its user has been removed, is said to be that."""
        try:
            yield
        except StoreError:
            await self._fresh(user)
            raise

    async def _fresh(self, user: User) -> User:
        found = await self.store.users.by_id(user.id)
        if found is None:
            raise VaultError(f"The user {user.name} has been removed.")
        return found
