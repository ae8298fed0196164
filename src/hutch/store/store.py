"""The store: every table of it, in SQLite or PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import SettingError
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
    from hutch.settings import Settings
    from hutch.store.database import Database
    from hutch.store.seals import Cipher

POSTGRES = ("postgresql://", "postgres://")


class Store:
    """`async with await Store.open(settings) as store`, or `close` it."""

    def __init__(self, database: Database, *, shares_limits: bool, home: Path | None = None) -> None:
        """`home` is where the master key is, for flows, unless HUTCH_MASTER_KEY has it."""
        self._database = database
        self._home = home
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
    async def open(cls, settings: Settings) -> Store:
        """Opens what the settings name and brings its tables up to date. Raises StoreError."""
        url = settings.database_url
        if url is None:
            from hutch.store.sqlite import Sqlite  # whoever keeps nothing does not pay for it

            home = settings.home_path
            return cls(await Sqlite.open(home), shares_limits=False, home=home)
        if not url.startswith(POSTGRES):
            # It may have a password in it, wherever it is wrong.
            raise SettingError(
                "database_url: expected a URL that begins with postgresql://, got something else."
            )
        from hutch.store.postgres import Postgres

        return cls(await Postgres.open(url), shares_limits=True, home=settings.home_path)

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
        # Whoever keeps no flows does not pay for it.
        from hutch.store import sealed
        from hutch.vault import journals

        cipher = await journals.load(self, self._home, os.environ)
        await sealed.seal_older(self._database, self.meta, cipher)
        return cipher
