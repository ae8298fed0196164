"""The vault: users, API keys and credentials, on top of the store."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from hutch.errors import InvalidInput, StoreError, VaultError
from hutch.store import models
from hutch.store.models import ApiKey, Credential, User
from hutch.store.store import Store
from hutch.vault import api_keys, credentials, crypto, master_key_check
from hutch.vault.credentials import Secret
from hutch.vault.crypto import MasterKeys
from hutch.vault.data_keys import DataKeys, create_data_key, decrypt_data_keys

# Maximum number of attempts while other processes change the data.
ATTEMPTS = 4
# Number of users whose decrypted data keys are cached.
MAX_CACHED_USERS = 1_000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")


def check_name(name: str) -> None:
    """Raises InvalidInput if this cannot be the name of a user or a group."""
    if not _NAME.fullmatch(name):
        rule = "1 to 64 letters, digits and any of . _ @ + -, the first a letter or digit"
        raise InvalidInput("name", f"expected {rule}, got {name!r}.")


class Vault:
    def __init__(
        self, store: Store, master: MasterKeys, *, reload: Callable[[], MasterKeys] | None = None
    ) -> None:
        """Creates a vault. `reload` loads the master keys again, in case another process has added one."""
        self.store = store
        self.master = master
        self._reload = reload
        self._data_keys: dict[tuple[str, str], DataKeys] = {}

    @classmethod
    async def open(cls, store: Store, home: Path, environ: Mapping[str, str]) -> Vault:
        """Opens the vault of a store. Raises VaultError if the master keys are wrong.

        Creates a master key only if nothing is encrypted yet.
        """
        is_new = not await master_key_check.has_encrypted_data(store)
        master = crypto.load_master_keys(home, environ, create=is_new)
        vault = cls(store, master, reload=lambda: crypto.load_master_keys(home, environ, create=False))
        await vault.check()
        return vault

    async def check(self) -> None:
        """Raises VaultError if the store was encrypted with other master keys."""
        try:
            await master_key_check.check(self.store, self.master)
        except VaultError:
            if not self._reload_master_keys():
                raise
            await master_key_check.check(self.store, self.master)

    # --- users ---

    async def add_user(self, name: str) -> User:
        """Adds a user with a new data key. Raises InvalidInput, or AlreadyExists if the name exists."""
        check_name(name)
        # Check first, because a process with a wrong master key must not write anything.
        await self.check()
        user_id = f"user_{secrets.token_hex(8)}"
        user = User(
            id=user_id,
            name=name,
            data_key=create_data_key(self.master, user_id),
            created_at=models.now(),
        )
        await self.store.users.add(user)
        return user

    # --- API keys ---

    async def issue_key(
        self, user: User, name: str, *, scopes: Sequence[str] = (), expires_at: str | None = None
    ) -> tuple[ApiKey, str]:
        """Creates an API key. Returns its record and the secret, which cannot be retrieved later. Raises
        InvalidInput.
        """
        key, secret = api_keys.create(user, name, scopes, expires_at)
        async with self._check_user_on_error(user):
            await self.store.api_keys.add(key)
        return key, secret

    # --- credentials ---

    async def put_credential(
        self, user: User, domain: str, kind: str, key: str, value: str, *, is_locked: bool = False
    ) -> Credential:
        """Stores a credential and replaces its previous value. `is_locked`: a client has encrypted the value
        with a key that is not known. Raises InvalidInput, whose message does not contain the value.
        """
        name = credentials.make_name(domain, kind, key)
        if is_locked:
            from hutch.vault.client_import import locked_value

            value = locked_value(value)
        else:
            credentials.check_value(kind, value)
        now = models.now()
        credential = Credential(
            id=f"cred_{secrets.token_hex(8)}",
            user_id=user.id,
            domain=name.domain,
            kind=name.kind,
            key=name.key,
            sealed=credentials.encrypt(self.data_keys(user), user.id, name, value),
            hint="" if is_locked else credentials.hint(value),
            created_at=now,
            updated_at=now,
        )
        async with self._check_user_on_error(user):
            id = await self.store.credentials.put(credential)
        return msgspec.structs.replace(credential, id=id)

    async def secrets(self, user: User, domains: Sequence[str]) -> list[Secret]:
        """Returns the decrypted credentials of a user for these domains. Raises VaultError."""
        stored = await self.store.credentials.for_domains(user.id, domains)
        return await self.decrypt(user, stored)

    async def decrypt(self, user: User, stored: Sequence[Credential]) -> list[Secret]:
        """Decrypts credentials that were read before. Raises VaultError.

        If keys were replaced meanwhile, reads the user and the credentials again.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._decrypt(user, stored)
            except crypto.KeyMissing:
                user = await self._reread(user)
                ids = {credential.id for credential in stored}
                domains = sorted({credential.domain for credential in stored})
                reread = await self.store.credentials.for_domains(user.id, domains)
                stored = [credential for credential in reread if credential.id in ids]
        return self._decrypt(user, stored)

    async def expire(self, ids: Sequence[str], cause: str) -> None:
        """Marks credentials as expired, because a server has rejected them. They are still sent, and the mark
        is removed when a server accepts them.
        """
        await self.store.credentials.expire(ids, models.now(), cause)

    async def revive(self, ids: Sequence[str]) -> None:
        await self.store.credentials.revive(ids)

    # --- data keys ---

    def data_keys(self, user: User) -> DataKeys:
        cache_key = (user.id, user.data_key)
        if cache_key not in self._data_keys:
            if len(self._data_keys) >= MAX_CACHED_USERS:
                self._data_keys.pop(next(iter(self._data_keys)))
            self._data_keys[cache_key] = self._decrypt_data_keys(user)
        return self._data_keys[cache_key]

    def _decrypt_data_keys(self, user: User) -> DataKeys:
        try:
            return decrypt_data_keys(self.master, user.data_key, user.id)
        except crypto.KeyMissing:
            if not self._reload_master_keys():
                raise
            return decrypt_data_keys(self.master, user.data_key, user.id)

    def _reload_master_keys(self) -> bool:
        """Loads the master keys again. Returns True if they have changed."""
        before = self.master.ids
        if self._reload is not None:
            self.master = self._reload()
        return self.master.ids != before

    def _decrypt(self, user: User, stored: Sequence[Credential]) -> list[Secret]:
        if not stored:
            return []
        data_keys = self.data_keys(user)
        if any(credential.user_id != user.id for credential in stored):
            raise VaultError("These credentials belong to another user.")
        return [credentials.decrypt(data_keys, credential) for credential in stored]

    @asynccontextmanager
    async def _check_user_on_error(self, user: User) -> AsyncIterator[None]:
        """If a StoreError is raised and the user no longer exists, raises a VaultError that says so
        instead.
        """
        try:
            yield
        except StoreError:
            await self._reread(user)
            raise

    async def _reread(self, user: User) -> User:
        current = await self.store.users.by_id(user.id)
        if current is None:
            raise VaultError(f"The user {user.name} has been removed.")
        return current
