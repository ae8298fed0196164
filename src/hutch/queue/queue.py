"""The queue of asynchronous runs of one server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hutch.egress.policy import fetch_policy
from hutch.errors import HutchError, Unauthorized
from hutch.queue.dispatcher import CHANNEL, SIGNAL_CHANNEL, Dispatcher
from hutch.queue.endings import Endings
from hutch.queue.events.publisher import OpenEvents
from hutch.queue.events.remote import RemoteEvents
from hutch.queue.intake import Intake
from hutch.queue.models import Accepted, QueueCaller, RunHandler, RunOptions, RunRequest
from hutch.queue.schedules.ticker import Ticker
from hutch.queue.stats import QueueMonitor
from hutch.queue.webhooks.messages import DAY_MS, end_message
from hutch.queue.webhooks.sender import WebhookSender
from hutch.queue.webhooks.target import TargetPolicy
from hutch.sandbox.process_lease import this_holder
from hutch.store.models import now

if TYPE_CHECKING:
    from hutch.egress.client.client import FetchClient
    from hutch.kernel.kernel import Kernel
    from hutch.settings import Settings
    from hutch.store.backends.base import SqlStatement
    from hutch.store.store import Store
    from hutch.store.tables.queue.queued_runs import EndOfRun, QueuedRunRow

logger = logging.getLogger("hutch.queue")

BURST_SECONDS = 0.05
"""Minimum time between two notifications of other servers. Each notification locks the whole database."""


class RunQueue:
    """Accepts asynchronous runs and, after `start`, executes them."""

    def __init__(
        self, settings: Settings, kernel: Kernel, open_store: Callable[[], Awaitable[Store]]
    ) -> None:
        self._settings = settings
        self._kernel = kernel
        self.store = open_store
        self.targets = TargetPolicy(fetch_policy(settings))
        """Checks the targets of webhooks."""
        self.handlers: dict[str, RunHandler] = {}
        """Handlers by kind."""
        self._intake = Intake(settings.max_queued_runs_per_owner, self._on_added)
        self._dispatcher: Dispatcher | None = None
        self._sender: WebhookSender | None = None
        self._ticker: Ticker | None = None
        self._client: FetchClient | None = None
        self._notifying: asyncio.Task[None] | None = None
        self._channels: set[str] = set()
        """Channels whose listeners are not notified yet."""
        self.open_events: OpenEvents = lambda follower: None
        """Returns the events of a run that this server executes."""
        self.remote_events = RemoteEvents(open_store, lambda: self._notify(SIGNAL_CHANNEL))
        """Events of runs that other servers execute."""
        self.monitor = QueueMonitor(open_store)

    def add_handler(self, handler: RunHandler) -> None:
        self.handlers[handler.kind] = handler

    # --- requests ---

    async def submit(
        self, request: RunRequest, caller: QueueCaller, options: RunOptions, source: str | None = None
    ) -> Accepted:
        """Adds a run. The run is committed when this method returns. Raises KeyInUse, Busy and StoreError."""
        return await self._intake.add(await self.store(), request, caller, options, source)

    async def find(self, run_id: str) -> QueuedRunRow | None:
        return await (await self.store()).queued_runs.get(run_id)

    async def result(self, run_id: str) -> bytes | None:
        return await (await self.store()).queued_runs.result(run_id)

    async def cancel(self, row: QueuedRunRow) -> str | None:
        """Cancels a run, whichever server executes it. Returns `cancelled`, or `cancelling` if the run has
        yet to stop. Returns None if the run has ended.
        """
        endings = await self._endings()
        if row.is_waiting and await endings.end_waiting(row, "cancelled", "The run was cancelled"):
            return "cancelled"
        is_running = await (await self.store()).queued_runs.request_cancel(row.run_id)
        attempt = None if self._dispatcher is None else self._dispatcher.attempts.get(row.run_id)
        if attempt is not None:
            await attempt.cancel()
        elif is_running:
            self._notify(SIGNAL_CHANNEL)
        return "cancelling" if is_running else None

    async def retry(self, run_id: str) -> bool:
        """Queues a dead letter again. Returns False if the run is not a dead letter."""
        store = await self.store()
        if not await store.queued_runs.revive(run_id):
            return False
        await store.write_behind.flush()
        await store.runs.mark_retrying(run_id)
        self._on_added()
        return True

    async def send_again(self, delivery_id: str) -> bool:
        """Sends a webhook message again. Returns False if there is no such message."""
        is_found = await (await self.store()).webhooks.send_again(delivery_id, DAY_MS)
        self._on_message()
        return is_found

    # --- life cycle ---

    async def start(self) -> None:
        """Starts to execute runs. Raises StoreError."""
        store = await self.store()
        self._dispatcher = Dispatcher(
            store,
            self.handlers,
            await self._endings(),
            self._check_caller,
            places=self._settings.max_async_runs,
            lease_seconds=self._settings.async_lease_seconds,
            holder=this_holder(),
            open_events=lambda follower: self.open_events(follower),
        )
        self._dispatcher.start()
        self._sender = WebhookSender(store, self._http_client, this_holder())
        self._sender.start()
        self._ticker = Ticker(store, self.submit)
        self._ticker.start()

    async def drain(self, seconds: float) -> None:
        if self._dispatcher is not None:
            await self._dispatcher.drain(seconds)

    async def close(self) -> None:
        await self.remote_events.close()
        if self._dispatcher is not None:
            await self._dispatcher.close()
        if self._ticker is not None:
            await self._ticker.close()
        if self._sender is not None:
            await self._sender.close()
        if self._client is not None:
            await self._client.close()
        if self._notifying is not None:
            self._notifying.cancel()
            await asyncio.gather(self._notifying, return_exceptions=True)

    async def _endings(self) -> Endings:
        return Endings(self._kernel, await self.store(), self._report_end, self._on_message)

    def _on_message(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    def _http_client(self) -> FetchClient:
        if self._client is None:
            from hutch.egress.client.client import FetchClient

            self._client = FetchClient(self._settings)
        return self._client

    async def _report_end(self, row: QueuedRunRow, end: EndOfRun) -> SqlStatement | None:
        return await end_message(await self.store(), row, end)

    async def _check_caller(self, caller: QueueCaller) -> None:
        """Raises Unauthorized if the user of a run does not exist any more, or its key is not valid any
        more.
        """
        if caller.scopes is None:
            return
        store = await self.store()
        if await store.users.by_id(caller.owner) is None:
            raise Unauthorized("unknown", "The user of this run does not exist any more.")
        if caller.key_id is not None:
            key = await store.api_keys.by_id(caller.key_id)
            if key is None or key.revoked_at is not None or (key.expires_at or "~") < now():
                raise Unauthorized("revoked", "The API key of this run is not valid any more.")

    # --- waking up servers ---

    def _on_added(self) -> None:
        if self._dispatcher is not None:
            self._dispatcher.wake()
            if self._dispatcher.free_places > 0:
                return  # this server takes the run, so the other servers need no notification
        self._notify(CHANNEL)

    def _notify(self, channel: str) -> None:
        self._channels.add(channel)
        if self._notifying is None or self._notifying.done():
            self._notifying = asyncio.get_running_loop().create_task(self._keep_notifying())

    async def _keep_notifying(self) -> None:
        while self._channels:
            try:
                await (await self.store()).notify(self._channels.pop())
            except HutchError as error:
                logger.info("other servers cannot be notified: %s", error)
            await asyncio.sleep(BURST_SECONDS)
