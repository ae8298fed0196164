"""The store: every table of it, in SQLite or PostgreSQL."""

from __future__ import annotations

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
from hutch.store.users import Users

if TYPE_CHECKING:
    from hutch.settings import Settings
    from hutch.store.database import Database

POSTGRES = ("postgresql://", "postgres://")


class Store:
    """`async with await Store.open(settings) as store`, or `close` it."""

    def __init__(self, database: Database, *, shares_limits: bool) -> None:
        self._database = database
        self.later = Later(database)
        self.meta = Meta(database)
        self.users = Users(database)
        self.keys = Keys(database, self.later)
        self.credentials = Credentials(database)
        self.abilities = Abilities(database)
        self.runs = Runs(database)
        self.flows = Flows(database)
        self.journal = Journal(database)
        self.limits = Limits(database if shares_limits else None)

    @classmethod
    async def open(cls, settings: Settings) -> Store:
        """Opens what the settings name and brings its tables up to date. Raises StoreError."""
        url = settings.database_url
        if url is None:
            from hutch.store.sqlite import Sqlite  # whoever keeps nothing does not pay for it

            return cls(await Sqlite.open(settings.home_path), shares_limits=False)
        if not url.startswith(POSTGRES):
            # It may have a password in it, wherever it is wrong.
            raise SettingError(
                "database_url: expected a URL that begins with postgresql://, got something else."
            )
        from hutch.store.postgres import Postgres

        return cls(await Postgres.open(url), shares_limits=True)

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
