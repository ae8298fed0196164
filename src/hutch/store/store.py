"""The store, which provides all tables in SQLite or PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hutch.errors import SettingError, VaultError
from hutch.store.encryption import ColumnEncryption
from hutch.store.retention import RetentionClock
from hutch.store.tables.abilities import AbilityTable
from hutch.store.tables.ability_shares import AbilityShareTable
from hutch.store.tables.credentials import CredentialTable
from hutch.store.tables.durable.checkpoints import CheckpointTable
from hutch.store.tables.durable.recorded_calls import RecordedCallTable
from hutch.store.tables.durable.running_runs import RunningRunTable
from hutch.store.tables.durable.sessions import SessionTable
from hutch.store.tables.durable.stored_values import StoredValueTable
from hutch.store.tables.flows import FlowTable
from hutch.store.tables.groups import GroupTable
from hutch.store.tables.journal import JournalTable
from hutch.store.tables.meta import MetaTable
from hutch.store.tables.queue.followers import FollowerTable
from hutch.store.tables.queue.queued_runs import QueuedRunTable
from hutch.store.tables.queue.schedules import SavedScriptTable, ScheduleTable, TriggerTable
from hutch.store.tables.queue.webhooks import WebhookTable
from hutch.store.tables.quotas import QuotaTable
from hutch.store.tables.rate_limits import RateLimiter
from hutch.store.tables.runs import RunTable
from hutch.store.tables.users import ApiKeyTable, UserTable
from hutch.store.write_behind import WriteBehindQueue

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from hutch.settings import Settings
    from hutch.store.backends.base import Database
    from hutch.store.backup import Backup
    from hutch.store.encryption import Cipher

    LoadCipher = Callable[["Store"], Awaitable[Cipher]]

POSTGRES_PREFIXES = ("postgresql://", "postgres://")


class Store:
    """All tables of a database. Use it as `async with await Store.open(settings) as store`, or call
    `close`.
    """

    def __init__(
        self, database: Database, *, shares_rate_limits: bool, load_cipher: LoadCipher | None = None
    ) -> None:
        """Creates a store. `load_cipher` loads the keys of flows and their runs. Without it, flows and runs
        cannot be read.
        """
        self._database = database
        self._load_cipher = load_cipher
        self.encryption = encryption = ColumnEncryption(self._cipher)
        self.runs = RunTable(database, encryption)
        self.write_behind = WriteBehindQueue(database, self.runs)
        self.meta = MetaTable(database)
        self.retention = RetentionClock(self.meta)
        self.users = UserTable(database)
        self.api_keys = ApiKeyTable(database, self.write_behind)
        self.credentials = CredentialTable(database)
        self.abilities = AbilityTable(database)
        self.ability_shares = AbilityShareTable(database)
        self.groups = GroupTable(database)
        self.flows = FlowTable(database, encryption)
        self.journal = JournalTable(database, encryption)
        self.checkpoints = CheckpointTable(database, encryption)
        self.running_runs = RunningRunTable(database)
        self.recorded_calls = RecordedCallTable(database, encryption)
        self.stored_values = StoredValueTable(database, encryption)
        self.sessions = SessionTable(database, encryption)
        self.queued_runs = QueuedRunTable(database, encryption)
        self.followers = FollowerTable(database, encryption)
        self.webhooks = WebhookTable(database, encryption)
        self.saved_scripts = SavedScriptTable(database, encryption)
        self.schedules = ScheduleTable(database, encryption)
        self.triggers = TriggerTable(database, encryption)
        self.quotas = QuotaTable(database, self.write_behind)
        self.rate_limits = RateLimiter(database if shares_rate_limits else None)

    @classmethod
    async def open(cls, settings: Settings, load_cipher: LoadCipher | None = None) -> Store:
        """Opens the database that the settings name and applies missing migrations. Raises StoreError."""
        database = await open_database(settings)
        shares = settings.database_url is not None
        return cls(database, shares_rate_limits=shares, load_cipher=load_cipher)

    async def close(self) -> None:
        try:
            await self.write_behind.close()
        finally:
            await self._database.close()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def check(self) -> None:
        """Raises StoreError if the database does not answer."""
        await self._database.read("SELECT 1")

    async def notify(self, channel: str) -> None:
        """Wakes up the servers that listen to a channel. Raises StoreError."""
        await self._database.notify(channel)

    async def listen(self, listeners: Mapping[str, Callable[[], None]]) -> None:
        """Calls the listener of a channel after each `notify`, until this call is cancelled. Raises
        StoreError.
        """
        await self._database.listen(listeners)

    async def write_backup(self, path: Path) -> Backup:
        """Writes all tables to a new file; see `hutch.store.backup`. Raises StoreError."""
        from hutch.store.backup import write_backup  # imported late, because only one command needs it

        await self.write_behind.flush()
        return await write_backup(self._database, path)

    async def data_key_ids(self) -> set[str]:
        """Returns the ids of the data keys with which flows and their runs are encrypted. Reads all rows."""
        from hutch.store import encrypt_existing

        return await encrypt_existing.data_key_ids(self._database)

    async def _cipher(self) -> Cipher:
        if self._load_cipher is None:
            raise VaultError(
                "This store was opened without the keys of flows.",
                remedy="Open it with hutch.vault.flow_keys.open_store.",
            )
        from hutch.store import encrypt_existing  # imported late, because only flows need it

        cipher = await self._load_cipher(self)
        await encrypt_existing.encrypt_existing(self._database, self.meta, cipher)
        return cipher


async def open_database(settings: Settings, schema: int | None = None) -> Database:
    """Opens the database that the settings name and applies missing migrations, up to `schema`. Raises
    StoreError.
    """
    url = settings.database_url
    if url is None:
        from hutch.store.backends.sqlite import SqliteDatabase  # imported late to keep start-up fast

        return await SqliteDatabase.open(settings.home_path, schema=schema)
    if not url.startswith(POSTGRES_PREFIXES):
        # The message does not quote the URL, because it may contain a password.
        raise SettingError("database_url: expected a URL that begins with postgresql://, got something else.")
    from hutch.store.backends.postgres import PostgresDatabase

    return await PostgresDatabase.open(url, schema=schema)
