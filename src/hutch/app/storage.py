"""Opens the store, the vault and the abilities on first use, and closes them in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hutch.errors import HutchError, StoreError
from hutch.kernel.fair_use import QuotaStore
from hutch.kernel.records import RunRecord, RunRecorder, stored_record
from hutch.settings import Settings

if TYPE_CHECKING:
    from hutch.egress.client.client import FetchClient
    from hutch.kernel.durable.running_runs import RunningRuns
    from hutch.kernel.kernel import Kernel
    from hutch.protocols.abilities.execute import AbilityExecutor
    from hutch.session.run import TextRedactor
    from hutch.store.store import Store
    from hutch.store.write_behind import QueueState
    from hutch.telemetry.counters import EgressCounters
    from hutch.vault.api_keys import Identity
    from hutch.vault.vault import Vault

logger = logging.getLogger("hutch")

CHECK_SECONDS = 2.0
"""Time in which the database has to answer for the server to be ready."""
_PRUNE_SECONDS = 3_600.0
_DAY_SECONDS = 86_400.0
MAX_NAMES = 10_000
KEEP_USAGE_DAYS = 31


class Storage:
    """The store, the vault and the abilities of one App."""

    def __init__(
        self, settings: Settings, kernel: Kernel, recorder: RunRecorder, egress: EgressCounters | None = None
    ) -> None:
        """`recorder` passes run records to the store while the store is open. `egress` counts the requests of
        abilities.
        """
        self._egress = egress
        self.settings = settings
        self._kernel = kernel
        self._recorder = recorder
        self._opening = asyncio.Lock()
        self._closed = False
        self._store: Store | None = None
        self._vault: Vault | None = None
        self._http_client: FetchClient | None = None
        self._abilities: AbilityExecutor | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._running_runs: RunningRuns | None = None
        self._problem: str | None = None
        self._checked_until = 0.0
        self.owner_names: dict[str, str] = {}
        """Names of users by the owner of their runs, at most MAX_NAMES, for logs and metrics."""

    async def start(self) -> None:
        """Opens the store when a server starts, so that errors appear before the first request.

        Opens the vault, which needs the master key, only if the store has encrypted data. If the home cannot
        be written, nothing is stored, and a warning says so. Raises SettingError, StoreError and VaultError.
        """
        _check_ability_settings(self.settings)
        if not self.can_store:
            logger.warning("%s cannot be written: users and runs are not stored", self.settings.home_path)
            return
        store = await self.store()
        from hutch.vault import master_key_check

        if await master_key_check.has_encrypted_data(store):
            await self.vault()
        self._pruning = asyncio.create_task(self._prune(store))

    @property
    def can_store(self) -> bool:
        """False if there is no database URL and the home cannot be written."""
        return self.settings.database_url is not None or _can_write(self.settings.home_path)

    async def store(self) -> Store:
        """Returns the store, and opens it on first use. Raises StoreError."""
        if self._store is None:
            async with self._opening:
                await self._open_store()
        assert self._store is not None
        return self._store

    async def vault(self) -> Vault:
        """Returns the vault, and opens it on first use. Raises StoreError and VaultError."""
        if self._vault is None:
            async with self._opening:
                await self._open_vault()
        assert self._vault is not None
        return self._vault

    async def abilities(self) -> AbilityExecutor:
        """Returns the executor of abilities; creates it on first use. Raises StoreError and VaultError."""
        if self._abilities is None:
            async with self._opening:
                await self._open_abilities()
        assert self._abilities is not None
        return self._abilities

    async def authenticate(self, secret: str) -> Identity:
        """Returns the user of an API key. Needs no master key. Raises Unauthorized and StoreError."""
        from hutch.vault import api_keys

        api_keys.digest(secret)  # raises for a malformed key, before the store is opened
        identity = await api_keys.authenticate(self._store or await self.store(), secret)
        if len(self.owner_names) >= MAX_NAMES:
            self.owner_names.clear()
        self.owner_names[identity.user.id] = identity.user.name
        return identity

    @property
    def stores_runs(self) -> bool:
        return self._store is not None and not self._closed

    @property
    def record_queue(self) -> QueueState | None:
        """State of the queue of run records. None unless the store is open."""
        return None if self._store is None else self._store.write_behind.state

    async def problem(self) -> str | None:
        """Returns why the database does not answer, or None. Checks at most once per second, and otherwise
        returns the last answer.
        """
        if self._store is None:
            return None
        now = time.monotonic()
        if now >= self._checked_until:
            try:
                async with asyncio.timeout(CHECK_SECONDS):
                    await self._store.check()
                self._problem = None
            except TimeoutError:
                self._problem = f"the database did not answer within {CHECK_SECONDS:g} s"
            except StoreError as error:
                self._problem = str(error)
            self._checked_until = time.monotonic() + 1.0
        return self._problem

    def _queue_run(self, record: RunRecord, redactor: TextRedactor | None) -> None:
        assert self._store is not None
        make = partial(stored_record, record, redactor)
        self._store.write_behind.add_run_later(make, record.memory_bytes)

    async def close(self) -> None:
        """Writes the queued run records and closes the store. Must be called after all runs have ended."""
        self._closed = True
        await self._recorder.publish()
        self._recorder.sink = None
        await self._kernel.fair_use.close()
        self._kernel.fair_use.store = None
        async with contextlib.AsyncExitStack() as stack, self._opening:
            if self._store is not None:
                stack.push_async_callback(self._store.close)
            if self._http_client is not None:
                stack.push_async_callback(self._http_client.close)
            if self._running_runs is not None:
                stack.push_async_callback(self._running_runs.close)
            if self._pruning is not None:
                self._pruning.cancel()
                await asyncio.gather(self._pruning, return_exceptions=True)

    async def _open_store(self) -> Store:
        if self._closed:
            raise StoreError("The store is closed.")
        if self._store is None:
            from hutch.vault import flow_keys

            self._store = await flow_keys.open_store(self.settings)
            if not self._closed:
                self._recorder.sink = self._queue_run
                self._store.write_behind.before_flush = self._recorder.publish
                self._kernel.fair_use.store = QuotaStore(self._store.quotas, self._store.rate_limits)
                from hutch.kernel.durable.running_runs import RunningRuns

                self._running_runs = RunningRuns(self._kernel.active, self._store)
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
            from hutch.egress.client.client import FetchClient
            from hutch.protocols.abilities.execute import AbilityExecutor

            self._http_client = FetchClient(self.settings, counters=self._egress)
            self._abilities = AbilityExecutor(self._kernel, vault.store, vault, self._http_client)

    async def _prune(self, store: Store) -> None:
        now = store.retention.now
        while True:
            try:
                await store.quotas.prune((await now(plus_seconds=-_DAY_SECONDS * KEEP_USAGE_DAYS))[:10])
            except HutchError as error:
                logger.warning("cannot delete the usage of earlier days: %s", error)
            try:
                await store.sessions.delete_expired(await now())
                await store.recorded_calls.delete_expired(await now())
                await store.stored_values.delete_expired(await now())
            except HutchError as error:
                logger.warning("cannot delete expired sessions: %s", error)
            try:
                await self._prune_queue(store)
            except HutchError as error:
                logger.warning("cannot delete old asynchronous runs: %s", error)
            try:
                if self.settings.keep_runs_days:
                    older = await now(plus_seconds=-_DAY_SECONDS * self.settings.keep_runs_days)
                    await store.runs.prune(older)
                    await store.journal.prune(older)
                if self.settings.max_runs_bytes:
                    await store.runs.prune_to(self.settings.max_runs_bytes)
            except HutchError as error:
                logger.warning("cannot delete old runs: %s", error)
            await asyncio.sleep(_PRUNE_SECONDS)

    async def _prune_queue(self, store: Store) -> None:
        now = store.retention.now
        ended = await now(plus_seconds=-_DAY_SECONDS * self.settings.async_result_days)
        dead_days = self.settings.keep_runs_days
        dead = await now(plus_seconds=-_DAY_SECONDS * dead_days) if dead_days else None
        await store.queued_runs.prune(_milliseconds(ended), 0 if dead is None else _milliseconds(dead))
        await store.webhooks.prune(_milliseconds(ended))
        await store.followers.delete_expired()


def _milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def _check_ability_settings(settings: Settings) -> None:
    """Validates settings that abilities use later. Raises SettingError."""
    from hutch.egress.client.operator_proxy import OperatorProxy
    from hutch.protocols.abilities import outcome

    outcome.parse_statuses(settings.ability_expire_on)
    if settings.proxy_url:
        OperatorProxy(settings.proxy_url)


def _can_write(home: Path) -> bool:
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(home, os.W_OK)
