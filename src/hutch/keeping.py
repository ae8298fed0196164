"""The store and what stands on it: each opened when it is first needed, all closed in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hutch.errors import HutchError, StoreError
from hutch.runs import RunRecord, fields_of
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.doors.abilities.execute import Abilities
    from hutch.egress.broker import Broker
    from hutch.kernel import Kernel
    from hutch.store.store import Store
    from hutch.vault.apikeys import Caller
    from hutch.vault.vault import Vault

logger = logging.getLogger("hutch")

_PRUNE_SECONDS = 3_600.0
_DAY_SECONDS = 86_400.0
# What a row has of its own; all else of a record is in its details.
_COLUMNS = ("run_id", "owner", "door", "engine", "label", "started_at", "duration_ms", "outcome")


class Keeping:
    """What is kept, who it is kept for, and what they may do with it."""

    def __init__(self, settings: Settings, kernel: Kernel) -> None:
        self.settings = settings
        self._kernel = kernel
        self._opening = asyncio.Lock()
        self._closed = False
        self._store: Store | None = None
        self._vault: Vault | None = None
        self._broker: Broker | None = None
        self._abilities: Abilities | None = None
        self._pruning: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """For a server: what cannot be opened is to be known before anybody comes.

        The master key is asked for only where something is sealed with it. Where the home cannot be written,
        nothing is kept, which is told and does no harm. Raises SettingError, StoreError and VaultError.
        """
        _check(self.settings)
        if self.settings.database_url is None and not _can_write(self.settings.home_path):
            logger.warning("%s cannot be written: no users, no runs are kept", self.settings.home_path)
            return
        store = await self.store()
        from hutch.vault import canary

        if await canary.sealed(store):
            await self.vault()
        if self.settings.keep_runs_days:
            self._pruning = asyncio.create_task(self._prune(store))

    async def store(self) -> Store:
        """Raises StoreError."""
        if self._store is None:
            async with self._opening:
                await self._open_store()
        assert self._store is not None
        return self._store

    async def vault(self) -> Vault:
        """Raises StoreError and VaultError."""
        if self._vault is None:
            async with self._opening:
                await self._open_vault()
        assert self._vault is not None
        return self._vault

    async def abilities(self) -> Abilities:
        """Raises StoreError and VaultError."""
        if self._abilities is None:
            async with self._opening:
                await self._open_abilities()
        assert self._abilities is not None
        return self._abilities

    async def authenticate(self, secret: str) -> Caller:
        """The user that a key is of; that takes no master key. Raises Unauthorized and StoreError."""
        from hutch.vault import apikeys

        apikeys.digest(secret)  # for what is no key at all nothing is opened
        return await apikeys.authenticate(self._store or await self.store(), secret)

    @property
    def keeps_runs(self) -> bool:
        return self._store is not None and not self._closed

    def record(self, record: RunRecord) -> None:
        """Keeps a run, if there is a store; it is written a moment later."""
        if self._store is not None and self.keeps_runs:
            from hutch.store.rows import RunRow

            fields = fields_of(record)
            columns = {name: fields.pop(name, None) for name in _COLUMNS}
            # As times are written in the store.
            columns["started_at"] = record.started_at.replace("+00:00", "Z")
            self._store.later.run(RunRow(**columns, details=msgspec.json.encode(fields).decode()))

    async def close(self) -> None:
        """After everything that runs: its records are written here."""
        self._closed = True
        async with contextlib.AsyncExitStack() as last_first, self._opening:
            if self._store is not None:
                last_first.push_async_callback(self._store.close)
            if self._broker is not None:
                last_first.push_async_callback(self._broker.close)
            if self._pruning is not None:
                self._pruning.cancel()
                await asyncio.gather(self._pruning, return_exceptions=True)

    async def _open_store(self) -> Store:
        if self._closed:
            raise StoreError("The store is closed.")
        if self._store is None:
            from hutch.vault import journals

            self._store = await journals.open_store(self.settings)
        return self._store

    async def _open_vault(self) -> Vault:
        store = await self._open_store()
        if self._vault is None:
            from hutch.vault.vault import Vault

            self._vault = await Vault.open(store, self.settings.home_path, os.environ)
        return self._vault

    async def _open_abilities(self) -> None:
        vault = await self._open_vault()
        if self._abilities is None:
            from hutch.doors.abilities.execute import Abilities
            from hutch.egress.broker import Broker

            self._broker = Broker(self.settings)
            self._abilities = Abilities(self._kernel, vault.store, vault, self._broker)

    async def _prune(self, store: Store) -> None:
        from hutch.store import rows

        while True:
            older = rows.now(plus_seconds=-_DAY_SECONDS * self.settings.keep_runs_days)
            try:
                await store.runs.prune(older)
                await store.journal.prune(older)
            except HutchError as error:
                logger.warning("old runs were not forgotten: %s", error)
            await asyncio.sleep(_PRUNE_SECONDS)


def _check(settings: Settings) -> None:
    """What abilities would stumble over when the first comes. Raises SettingError."""
    from hutch.doors.abilities import verdict
    from hutch.egress.tunnel import Tunnel

    verdict.statuses(settings.ability_expire_on)
    if settings.proxy_url:
        Tunnel(settings.proxy_url)


def _can_write(home: Path) -> bool:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(home, os.W_OK)
