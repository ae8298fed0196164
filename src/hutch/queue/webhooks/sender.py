"""Sends webhook messages, and sends them again for a day until they are delivered."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import msgspec

from hutch._version import __version__
from hutch.egress.client.models import FetchError, FetchLimits, FetchRequest, Injection
from hutch.errors import HutchError
from hutch.owner_shares import OwnerShares
from hutch.queue.backoff import with_jitter
from hutch.queue.polling import POLL_SECONDS, poll
from hutch.queue.webhooks.messages import StoredMessage
from hutch.queue.webhooks.signature import decode_secret, sign
from hutch.store.tables.queue.webhooks import DeliveryAttempt, DeliveryState, TakenDelivery

if TYPE_CHECKING:
    from collections.abc import Callable

    from hutch.egress.addresses import Url
    from hutch.egress.client.client import FetchClient
    from hutch.store.store import Store

logger = logging.getLogger("hutch.webhooks")

MAX_SENDING = 16
"""Maximum number of messages that one server sends at once. One owner gets at most four fifths of them."""
SEND_SECONDS = 15.0
LEASE_MS = 60_000
RETRY_SECONDS = (5, 30, 120, 300, 900, 1_800, 3_600, 7_200)
"""Delays after failed attempts. The last one is repeated."""
MAX_HISTORY = 30
"""Maximum number of attempts in the history of a message. The oldest are dropped first."""
MAX_ERROR_CHARS = 300
GONE = 410
"""Status with which a target refuses all further messages."""
_LIMITS = FetchLimits(max_seconds=SEND_SECONDS, max_response_bytes=64 * 1024, max_redirects=0, max_requests=1)


class _NoCredentials:
    def inject(self, url: Url) -> Injection:
        return Injection()


class WebhookSender:
    def __init__(self, store: Store, open_client: Callable[[], FetchClient], holder: str) -> None:
        """`open_client` returns the HTTP client. The client's policy decides which targets are permitted."""
        self._store = store
        self._table = store.webhooks
        self._open_client = open_client
        self._holder = holder
        self._shares = OwnerShares(MAX_SENDING)
        self._sending: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(
            poll(self._send_due, self._wake, "webhooks cannot be sent"), name="hutch webhooks"
        )

    def wake(self) -> None:
        self._wake.set()

    async def close(self) -> None:
        tasks = [*self._sending, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_due(self) -> float:
        """Sends the messages that are due. Returns the seconds until the next check."""
        next_in = await self._table.next_in()
        if next_in is None or next_in > 0:
            return POLL_SECONDS if next_in is None else min(POLL_SECONDS, next_in / 1000)
        chosen: list[tuple[str, str]] = []
        for id, owner in await self._table.due(self._shares.per_owner):
            if len(self._sending) + len(chosen) < MAX_SENDING and self._shares.may_take(owner):
                self._shares.take(owner)
                chosen.append((id, owner))
        if chosen:
            try:
                taken = await self._table.take([id for id, _ in chosen], self._holder, LEASE_MS)
            except BaseException:
                for _, owner in chosen:
                    self._shares.give_back(owner)
                raise
            self._begin(chosen, {delivery.row.id: delivery for delivery in taken})
        return POLL_SECONDS

    def _begin(self, chosen: list[tuple[str, str]], taken: dict[str, TakenDelivery]) -> None:
        for id, owner in chosen:
            if (delivery := taken.get(id)) is None:
                self._shares.give_back(owner)  # another server has taken the message
                continue
            task = asyncio.get_running_loop().create_task(self._send(delivery))
            self._sending.add(task)

            def on_done(task: asyncio.Task[None], owner: str = owner) -> None:
                self._sending.discard(task)
                self._shares.give_back(owner)
                self.wake()

            task.add_done_callback(on_done)

    async def _send(self, delivery: TakenDelivery) -> None:
        row = delivery.row
        began = time.monotonic()
        try:
            status, error = await self._post(delivery)
        except Exception:
            # Record a failed attempt. Otherwise the message would be sent again for ever, whenever its lease
            # has expired.
            logger.exception("the webhook %s of run %s could not be sent", row.id, row.run_id)
            status, error = None, "The server failed; its log says why."
        duration_ms = int((time.monotonic() - began) * 1000)
        attempt = DeliveryAttempt(delivery.now, duration_ms, status, error)
        history = [*row.attempt_list, attempt][-MAX_HISTORY:]
        state: DeliveryState = "pending"
        delay_ms = with_jitter(1_000 * RETRY_SECONDS[min(row.attempts, len(RETRY_SECONDS) - 1)])
        if error is None:
            state, delay_ms = "delivered", 0
        elif status == GONE or delivery.now + duration_ms + delay_ms > row.gives_up_at:
            state, delay_ms = "failed", 0
        encoded = msgspec.json.encode(history).decode()
        try:
            await self._table.finish(row.id, self._holder, state, encoded, delay_ms)
        except HutchError as failure:
            # The message is not lost: it is sent again when the lease has expired. So each message is
            # delivered at least once, but may be delivered twice.
            logger.warning("the delivery of webhook %s cannot be recorded: %s", row.id, failure)
        if state == "failed":
            logger.warning("the webhook %s of run %s was given up: %s", row.id, row.run_id, error)

    async def _post(self, delivery: TakenDelivery) -> tuple[int | None, str | None]:
        """Sends a message. Returns the HTTP status and, if the target has not accepted the message, the
        reason.
        """
        if delivery.message is None:
            return None, "The message cannot be decrypted: its key is missing."
        message = msgspec.json.decode(delivery.message, type=StoredMessage)
        body = message.body.encode()
        timestamp = delivery.now // 1000
        headers = [
            ("content-type", "application/json"),
            ("user-agent", f"Hutch/{__version__}"),
            ("webhook-id", delivery.row.id),
            ("webhook-timestamp", str(timestamp)),
            (
                "webhook-signature",
                sign(decode_secret(message.secret), delivery.row.id, timestamp, body),
            ),
        ]
        request = FetchRequest(method="POST", url=message.url, headers=headers, body=body, redirect="manual")
        session = self._open_client().open_session(
            _NoCredentials(), (), owner=delivery.row.owner, limits=_LIMITS
        )
        try:
            response = await session.send(request)
        except FetchError as error:
            return None, error.message[:MAX_ERROR_CHARS]
        finally:
            await session.close()
        if 200 <= response.status < 300:
            return response.status, None
        if 300 <= response.status < 400:
            return response.status, "The target answered with a redirect; redirects are not followed."
        return response.status, f"The target answered with status {response.status}."
