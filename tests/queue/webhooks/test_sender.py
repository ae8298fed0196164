"""Webhooks to real targets on loopback, checked with the reference library of Standard Webhooks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from standardwebhooks import Webhook as Verifier
from tests.queue.harness import QueueHarness
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import InvalidInput
from hutch.queue.models import Webhook
from hutch.queue.webhooks import messages, sender
from hutch.queue.webhooks.messages import owner_secret
from hutch.queue.webhooks.signature import new_secret
from hutch.store.store import Store
from hutch.store.tables.queue.webhooks import DeliveryRow


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes


class Target:
    """HTTP server that answers each request with the next item of `answers`. After the last item, repeats
    this item.
    """

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers) or ["200 OK"]
        self.received: list[Received] = []
        self.url = ""
        self.is_slow = False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            fields = dict(line.split(": ", 1) for line in head[1:] if line)
            headers = {name.lower(): value for name, value in fields.items()}
            body = await reader.readexactly(int(headers["content-length"]))
            self.received.append(Received(headers, body))
            if self.is_slow:
                await reader.read(1)  # wait until the client gives up
            status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def listening(target: Target) -> AsyncIterator[Target]:
    server = await asyncio.start_server(target.answer, "127.0.0.1", 0)
    target.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    async with server:
        yield target


@pytest.fixture
async def harness(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueHarness]:
    monkeypatch.setattr(sender, "RETRY_SECONDS", (0.01,))
    async with QueueHarness(store, egress_allow=("127.0.0.1",)) as harness:
        await harness.queue.start()
        yield harness


async def until(
    harness: QueueHarness, condition: Callable[[DeliveryRow], bool], run_id: str | None = None
) -> DeliveryRow:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while True:
            rows = await harness.store.webhooks.list(run_id=run_id)
            if rows and condition(rows[0]):
                return rows[0]
            await asyncio.sleep(0.01)


def is_over(row: DeliveryRow) -> bool:
    return row.state != "pending"


async def test_end_of_a_run_is_reported_with_a_signature(harness: QueueHarness) -> None:
    async with listening(Target()) as target:
        accepted = await harness.add(webhook=Webhook(target.url))
        row = await until(harness, is_over)
        assert (row.state, row.attempts, row.run_id) == ("delivered", 1, accepted.run_id)
        (received,) = target.received
        verifier = Verifier(await owner_secret(harness.store, "local"))
        payload: Any = verifier.verify(received.body, received.headers)
        assert payload["type"] == "run.completed"
        assert payload["data"]["run_id"] == accepted.run_id
        assert payload["data"]["result"] == {"ok": True}
        assert received.headers["webhook-id"] == row.id
        with pytest.raises(Exception, match="No matching signature"):
            verifier.verify(received.body + b" ", received.headers)


async def test_secret_of_the_request_signs_and_failures_are_reported(harness: QueueHarness) -> None:
    secret = new_secret()
    harness.handler.behaviour = harness.handler.fail
    async with listening(Target()) as target:
        await harness.add(webhook=Webhook(target.url, secret))
        await until(harness, is_over)
        (received,) = target.received
        payload: Any = Verifier(secret).verify(received.body, received.headers)
        assert (payload["type"], payload["data"]["outcome"]) == ("run.failed", "runtime_error")


async def test_message_is_sent_again_until_it_is_accepted(harness: QueueHarness) -> None:
    async with listening(Target("500 No", "503 Later", "204 OK")) as target:
        await harness.add(webhook=Webhook(target.url))
        row = await until(harness, is_over)
        assert row.state == "delivered"
        assert [attempt.status for attempt in row.attempt_list] == [500, 503, 204]
        assert len({received.headers["webhook-id"] for received in target.received}) == 1


async def test_message_can_be_sent_again(harness: QueueHarness) -> None:
    async with listening(Target("410 Gone", "200 OK")) as target:
        await harness.add(webhook=Webhook(target.url))
        row = await until(harness, is_over)
        # With the status 410, the target says that it wants no more messages.
        assert (row.state, row.attempts) == ("failed", 1)
        assert await harness.queue.send_again(row.id)
        row = await until(harness, lambda row: row.state == "delivered")
        assert [attempt.status for attempt in row.attempt_list] == [410, 200]
    assert not await harness.queue.send_again("msg_unknown")


async def test_redirect_is_not_followed(harness: QueueHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(Target()) as private, listening(Target()) as target:
        target.answers = [f"302 Found\r\nLocation: {private.url}", "200 OK"]
        await harness.add(webhook=Webhook(target.url))
        row = await until(harness, is_over)
        first = row.attempt_list[0]
        assert (first.status, first.error) == (
            302,
            "The target answered with a redirect; redirects are not followed.",
        )
        assert private.received == []


async def test_target_that_is_down_is_given_up_in_the_end(
    harness: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "DAY_MS", 300)
    async with listening(Target()) as target:
        url = target.url
    await harness.add(webhook=Webhook(url))
    row = await until(harness, is_over)
    assert row.state == "failed"
    assert row.attempts > 1
    assert row.attempt_list[0].status is None
    assert row.attempt_list[0].error


async def test_unexpected_failure_counts_as_an_attempt(
    harness: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("of the test")

    monkeypatch.setattr(messages, "DAY_MS", 300)
    monkeypatch.setattr(sender, "sign", fail)
    await harness.add(webhook=Webhook("http://127.0.0.1:9/hook"))
    row = await until(harness, is_over)
    assert (row.state, row.attempt_list[0].error) == ("failed", "The server failed; its log says why.")


async def test_slow_target_is_cut_off_and_delays_no_other_owner(
    harness: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        sender, "_LIMITS", sender.FetchLimits(max_seconds=0.5, max_redirects=0, max_requests=1)
    )
    monkeypatch.setattr(sender, "RETRY_SECONDS", (60,))
    async with listening(Target()) as slow, listening(Target()) as quick:
        slow.is_slow = True
        blocked = [await harness.add("slow", webhook=Webhook(slow.url)) for _ in range(30)]
        single = await harness.add("quick", webhook=Webhook(quick.url))
        row = await until(harness, is_over, single.run_id)
        assert row.state == "delivered"
        assert len(slow.received) <= 2 * 13  # a slow target gets at most four fifths of all places
        row = await until(harness, lambda row: row.attempts == 1, blocked[0].run_id)
        assert "There was no answer within 0.5 s" in str(row.attempt_list[0].error)


async def test_private_target_is_refused_when_it_is_connected_to(store: Store) -> None:
    async with QueueHarness(store) as harness:
        with pytest.raises(InvalidInput, match="private"):
            harness.queue.targets.check(Webhook("https://192.168.1.1/hook"))
        with pytest.raises(InvalidInput, match="secret"):
            harness.queue.targets.check(Webhook("https://example.com/hook", "whsec_c2hvcnQ="))
        await harness.queue.start()
        # A name is accepted here. It can be checked only later, when its addresses are known.
        await harness.add(webhook=Webhook("https://localhost:44444/hook"))
        row = await until(harness, lambda row: row.attempts > 0)
        assert "localhost resolves to" in str(row.attempt_list[0].error)


async def test_message_is_encrypted_in_the_store(harness: QueueHarness) -> None:
    async with listening(Target()) as target:
        await harness.add(webhook=Webhook(target.url))
        await until(harness, is_over)
    rows = await harness.store._database.read("SELECT message, history FROM webhook_deliveries")
    assert target.url not in json.dumps(rows)
