"""The store: every table of it, in SQLite or PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hutch.errors import SettingError, VaultError
from hutch.store.abilities import Abilities
from hutch.store.credentials import Credentials
from hutch.store.flows import Flows
from hutch.store.journal import Journal
from hutch.store.keys import Keys
from hutch.store.later import Later
from hutch.store.limits import Limits
from hutch.store.meta import Meta
from hutch.store.runs import Runs
from hutch.store.seals import Seals
from hutch.store.users import Users

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from hutch.settings import Settings
    from hutch.store.database import Database
    from hutch.store.seals import Cipher

    LoadCipher = Callable[["Store"], Awaitable[Cipher]]

POSTGRES = ("postgresql://", "postgres://")


class Store:
    """`async with await Store.open(settings) as store`, or `close` it."""

    def __init__(
        self, database: Database, *, shares_limits: bool, load_cipher: LoadCipher | None = None
    ) -> None:
        """`load_cipher` gives what flows and their runs are sealed with; without it, these do not open."""
        self._database = database
        self._load_cipher = load_cipher
        seals = Seals(self._cipher)
        self.later = Later(database)
        self.meta = Meta(database)
        self.users = Users(database)
        self.keys = Keys(database, self.later)
        self.credentials = Credentials(database)
        self.abilities = Abilities(database)
        self.runs = Runs(database)
        self.flows = Flows(database, seals)
        self.journal = Journal(database, seals)
        self.limits = Limits(database if shares_limits else None)

    @classmethod
    async def open(cls, settings: Settings, load_cipher: LoadCipher | None = None) -> Store:
        """Opens what the settings name and brings its tables up to date. Raises StoreError."""
        url = settings.database_url
        if url is None:
            from hutch.store.sqlite import Sqlite  # whoever keeps nothing does not pay for it

            database = await Sqlite.open(settings.home_path)
            return cls(database, shares_limits=False, load_cipher=load_cipher)
        if not url.startswith(POSTGRES):
            # It may have a password in it, wherever it is wrong.
            raise SettingError(
                "database_url: expected a URL that begins with postgresql://, got something else."
            )
        from hutch.store.postgres import Postgres

        return cls(await Postgres.open(url), shares_limits=True, load_cipher=load_cipher)

    async def close(self) -> None:
        """Writes what was to be written later."""
        try:
            await self.later.close()
        finally:
            await self._database.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def sealed_with(self) -> set[str]:
        """The ids of the data keys that flows and their runs are sealed with. Reads all of them."""
        from hutch.store import sealed

        return await sealed.key_ids(self._database)

    async def _cipher(self) -> Cipher:
        if self._load_cipher is None:
            raise VaultError(
                "This store was opened without the keys of flows.",
                remedy="Open it with hutch.vault.journals.open_store.",
            )
        from hutch.store import sealed  # whoever keeps no flows does not pay for it

        cipher = await self._load_cipher(self)
        await sealed.seal_older(self._database, self.meta, cipher)
        return cipher
