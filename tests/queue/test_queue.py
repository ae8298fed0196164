"""The queue on SQLite and PostgreSQL: order, fairness, attempts, leases, fencing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.queue.harness import FAILED, OK, QueueHarness, request
from tests.support.databases import PostgresServer, running_postgres
from tests.support.processes import TIMEOUT_SECONDS

from hutch.errors import Busy, StoreError, ToolError
from hutch.queue import backoff, dispatcher
from hutch.queue.attempt import Attempt
from hutch.queue.dispatcher import Dispatcher
from hutch.queue.intake import new_run
from hutch.queue.models import HandlerResult, KeyInUse, QueueCaller, RunOptions
from hutch.settings import Settings
from hutch.store.backends.base import SqlStatement
from hutch.store.models import ApiKey, User, now
from hutch.store.store import Store
from hutch.store.tables.queue.queued_runs import EndOfRun
from hutch.vault.flow_keys import open_store


@pytest.fixture
async def harness(store: Store) -> AsyncIterator[QueueHarness]:
    async with QueueHarness(store) as harness:
        yield harness


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backoff, "FIRST_RETRY_MS", 20)


# --- accepting ---


async def test_same_key_and_request_give_the_same_run(harness: QueueHarness) -> None:
    added = await asyncio.gather(*(harness.add(body=1, idempotency_key="k") for _ in range(20)))
    assert len({accepted.run_id for accepted in added}) == 1
    assert [accepted.is_new for accepted in added].count(True) == 1
    assert (await harness.add("another owner", body=1, idempotency_key="k")).run_id != added[0].run_id
    with pytest.raises(KeyInUse):
        await harness.add(body=2, idempotency_key="k")


async def test_request_webhook_and_result_are_encrypted(harness: QueueHarness, store: Store) -> None:
    accepted = await harness.add(body="very secret text")
    columns = "request, webhook, result"
    rows = await store._database.read(f"SELECT {columns} FROM queued_runs")
    assert "very secret" not in str(rows)
    assert rows[0][0].startswith("hutch1.")
    await harness.queue.start()
    await harness.until(accepted.run_id, "ended")
    assert await harness.queue.result(accepted.run_id) == OK.body


async def test_owner_with_too_many_queued_runs_is_refused(store: Store) -> None:
    async with QueueHarness(store, max_queued_runs_per_owner=2) as harness:
        await harness.add("a")
        await harness.add("a")
        with pytest.raises(Busy, match="max_queued_runs_per_owner"):
            await harness.add("a")
        await harness.add("b")


# --- order ---


async def test_runs_of_an_owner_start_by_priority_then_age(store: Store) -> None:
    async with QueueHarness(store, max_async_runs=1) as harness:
        ids = [(await harness.add(priority=priority)).run_id for priority in (0, -5, 7, 0)]
        await harness.queue.start()
        for run_id in ids:
            await harness.until(run_id, "ended")
        assert [a.run_id for a in harness.handler.started] == [ids[2], ids[0], ids[3], ids[1]]


async def test_one_owner_with_10000_queued_runs_does_not_delay_another(
    harness: QueueHarness, store: Store
) -> None:
    encrypt = store.queued_runs.encrypt
    many = [await encrypt(new_run(request(), QueueCaller("many"), RunOptions())) for _ in range(10_000)]
    await store.queued_runs.add(many)
    single = await harness.add("single")
    await harness.queue.start()
    await harness.until(single.run_id, "ended")
    owners = [attempt.row.owner for attempt in harness.handler.started]
    assert owners.index("single") < 8


async def test_delayed_run_starts_when_it_is_due(harness: QueueHarness) -> None:
    await harness.queue.start()
    accepted = await harness.add(delay_ms=150)
    assert (await harness.row(accepted.run_id)).state == "delayed"
    row = await harness.until(accepted.run_id, "ended")
    assert row.started_at is not None
    assert row.started_at >= row.due_at >= row.created_at + 150


async def test_run_past_its_deadline_is_not_started_or_is_stopped(harness: QueueHarness) -> None:
    late = await harness.add(deadline_ms=1)
    await asyncio.sleep(0.01)

    async def hang(attempt: Attempt) -> HandlerResult:
        await asyncio.sleep(TIMEOUT_SECONDS)
        return OK

    harness.handler.behaviour = hang
    await harness.queue.start()
    assert (await harness.until(late.run_id, "ended")).outcome == "deadline_exceeded"
    slow = await harness.add(deadline_ms=200)
    assert (await harness.until(slow.run_id, "ended")).outcome == "deadline_exceeded"
    assert [attempt.run_id for attempt in harness.handler.started] == [slow.run_id]
    assert harness.kernel.records == {late.run_id: "deadline_exceeded"}


# --- attempts ---


async def test_failed_run_is_tried_again_until_it_succeeds(harness: QueueHarness) -> None:
    async def third_time(attempt: Attempt) -> HandlerResult:
        return OK if attempt.row.attempts == 3 else FAILED

    harness.handler.behaviour = third_time
    await harness.queue.start()
    accepted = await harness.add(attempts=5)
    row = await harness.until(accepted.run_id, "ended", "dead")
    assert (row.state, row.outcome, row.attempts) == ("ended", "ok", 3)


async def test_run_without_attempts_is_not_tried_again(harness: QueueHarness) -> None:
    harness.handler.behaviour = harness.handler.fail
    await harness.queue.start()
    accepted = await harness.add()
    row = await harness.until(accepted.run_id, "ended", "dead")
    assert (row.state, row.outcome, row.attempts) == ("ended", "runtime_error", 1)


async def test_dead_letter_can_be_retried(harness: QueueHarness) -> None:
    harness.handler.behaviour = harness.handler.fail
    await harness.queue.start()
    accepted = await harness.add(attempts=2)
    assert (await harness.until(accepted.run_id, "dead")).attempts == 2
    harness.handler.behaviour = harness.handler.succeed
    assert await harness.queue.retry(accepted.run_id)
    assert (await harness.until(accepted.run_id, "ended")).outcome == "ok"
    assert not await harness.queue.retry(accepted.run_id)


async def test_busy_sandbox_does_not_count_as_an_attempt(harness: QueueHarness) -> None:
    async def busy_first(attempt: Attempt) -> HandlerResult:
        if len(harness.handler.started) == 1:
            raise Busy(retry_after=0.01)
        return OK

    harness.handler.behaviour = busy_first
    await harness.queue.start()
    accepted = await harness.add()
    row = await harness.until(accepted.run_id, "ended")
    assert (row.outcome, row.attempts, len(harness.handler.started)) == ("ok", 1, 2)


# --- cancelling ---


async def test_queued_run_is_cancelled_at_once(harness: QueueHarness) -> None:
    accepted = await harness.add()
    assert await harness.queue.cancel(await harness.row(accepted.run_id)) == "cancelled"
    assert harness.kernel.records == {accepted.run_id: "cancelled"}
    assert await harness.queue.cancel(await harness.row(accepted.run_id)) is None


async def test_run_on_another_server_is_cancelled(harness: QueueHarness, store: Store) -> None:
    started = asyncio.Event()

    async def wait(attempt: Attempt) -> HandlerResult:
        started.set()
        assert attempt.handle is not None
        while not attempt.handle.is_cancelled:  # noqa: ASYNC110 - the handle has no event
            await asyncio.sleep(0.01)
        return FAILED

    async with QueueHarness(store) as executing:
        executing.handler.behaviour = wait
        accepted = await harness.add()
        await executing.queue.start()
        await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
        assert await harness.queue.cancel(await harness.row(accepted.run_id)) == "cancelling"
        assert (await harness.until(accepted.run_id, "ended")).outcome == "cancelled"


async def test_failing_cancellation_does_not_end_the_renewal_of_leases(
    harness: QueueHarness, store: Store
) -> None:
    cancelled = asyncio.Event()

    async def on_cancel() -> None:
        cancelled.set()
        raise RuntimeError("the flow cannot be cancelled")

    async def wait_for_renewal(attempt: Attempt) -> HandlerResult:
        attempt.on_cancel = on_cancel
        assert await store.queued_runs.request_cancel(attempt.run_id)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await cancelled.wait()
            held_until = (await harness.row(attempt.run_id)).held_until
            while (await harness.row(attempt.run_id)).held_until == held_until:  # noqa: ASYNC110 - in a database
                await asyncio.sleep(0.01)
        return FAILED

    harness.handler.behaviour = wait_for_renewal
    await harness.queue.start()
    accepted = await harness.add()
    row = await harness.until(accepted.run_id, "ended", "dead")
    assert (row.outcome, row.attempts, row.generation) == ("cancelled", 1, 1)


async def test_timeout_inside_of_a_run_is_a_failure_of_the_run(harness: QueueHarness) -> None:
    async def time_out(attempt: Attempt) -> HandlerResult:
        raise TimeoutError

    harness.handler.behaviour = time_out
    await harness.queue.start()
    accepted = await harness.add(deadline_ms=60_000)
    assert (await harness.until(accepted.run_id, "ended", "dead")).outcome == "internal_error"


# --- servers that die ---


async def hold(store: Store, *, effects: bool = False, lease_ms: int = 20) -> tuple[str, int]:
    """Takes the only queued run and does not end it, like a dying server. Returns its id and generation."""
    (owner,) = await store.queued_runs.waiting_owners()
    (taken,) = await store.queued_runs.take({owner: 1}, "a dead server", lease_ms)
    if effects:
        assert await store.queued_runs.mark_effects(taken.row.run_id, taken.row.generation)
    return taken.row.run_id, taken.row.generation


async def test_run_of_a_dead_server_is_executed_by_another(harness: QueueHarness, store: Store) -> None:
    await harness.add()
    run_id, generation = await hold(store)
    await harness.queue.start()
    row = await harness.until(run_id, "ended")
    assert (row.outcome, row.attempts) == ("ok", 2)
    # The server that seemed dead is alive again and has a result of the old generation.
    late = EndOfRun(outcome="ok", result=b'"late"')
    assert not await store.queued_runs.end(run_id, generation, late)
    assert not await store.queued_runs.mark_effects(run_id, generation)
    assert not await store.queued_runs.put_back(run_id, generation, 0, counts=True)
    assert await harness.queue.result(run_id) == OK.body


async def test_run_that_may_have_had_effects_is_interrupted(harness: QueueHarness, store: Store) -> None:
    await harness.add()
    run_id, _ = await hold(store, effects=True)
    await harness.queue.start()
    row = await harness.until(run_id, "ended", "dead")
    assert (row.state, row.outcome) == ("ended", "interrupted")
    assert harness.handler.started == []
    await harness.queue.close()
    assert harness.kernel.records == {run_id: "interrupted"}


async def test_run_with_effects_starts_again_if_its_attempts_say_so(
    harness: QueueHarness, store: Store
) -> None:
    await harness.add(attempts=2)
    run_id, _ = await hold(store, effects=True)
    await harness.queue.start()
    assert (await harness.until(run_id, "ended")).outcome == "ok"


async def test_run_that_kills_its_servers_becomes_a_dead_letter(harness: QueueHarness, store: Store) -> None:
    await harness.add()
    async with QueueHarness(store) as other:
        for _ in range(3):
            run_id, _ = await hold(store)
            await asyncio.sleep(0.03)
            (row,) = await store.queued_runs.expired_leases()
            endings = await other.queue._endings()
            dispatcher = Dispatcher(
                store,
                other.queue.handlers,
                endings,
                other.queue._check_caller,
                places=1,
                lease_seconds=1,
                holder="b",
            )
            await dispatcher._recover(row)
    row = await harness.row(run_id)
    assert (row.state, row.outcome, row.attempts) == ("dead", "interrupted", 3)


async def test_calls_of_tools_are_refused_after_the_lease_was_lost(
    harness: QueueHarness, store: Store
) -> None:
    failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    began, go = asyncio.Event(), asyncio.Event()

    async def call(attempt: Attempt) -> HandlerResult:
        began.set()
        await go.wait()
        assert attempt.handle is not None
        assert attempt.handle.before_call is not None
        try:
            await attempt.handle.before_call(False)
        except ToolError as error:
            failure.set_result(str(error))
        return OK

    harness.handler.behaviour = call
    await harness.queue.start()
    accepted = await harness.add()
    await asyncio.wait_for(began.wait(), TIMEOUT_SECONDS)
    sql = "UPDATE queued_runs SET generation = generation + 1 WHERE run_id = :run_id"
    await store._database.write(SqlStatement(sql, {"run_id": accepted.run_id}))
    go.set()
    assert "another server has the run" in await asyncio.wait_for(failure, TIMEOUT_SECONDS)
    assert (await harness.row(accepted.run_id)).outcome is None


async def test_server_that_stops_puts_back_runs_without_effects(store: Store) -> None:
    started = asyncio.Event()

    async def hang(attempt: Attempt) -> HandlerResult:
        started.set()
        await asyncio.sleep(TIMEOUT_SECONDS)
        return OK

    async with QueueHarness(store) as stopping:
        stopping.handler.behaviour = hang
        await stopping.queue.start()
        accepted = await stopping.add()
        await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
    async with QueueHarness(store) as next_server:
        assert (await next_server.row(accepted.run_id)).state == "queued"
        await next_server.queue.start()
        row = await next_server.until(accepted.run_id, "ended")
        assert (row.outcome, row.attempts) == ("ok", 1)


# --- databases ---


async def test_clocks_of_servers_do_not_matter(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.database_with_tables() as url:
        settings = Settings(home=str(tmp_path), database_url=url)
        async with await open_store(settings) as store, QueueHarness(store) as harness:
            await harness.add()
            run_id, generation = await hold(store, lease_ms=60_000)
            real = time.time
            monkeypatch.setattr(time, "time", lambda: real() + 600)
            monkeypatch.setattr(time, "time_ns", lambda: int((real() + 600) * 1e9))
            await harness.queue.start()
            accepted = await harness.add()
            row = await harness.until(accepted.run_id, "ended")
            assert row.ended_at is not None
            assert row.ended_at < real() * 1000 + 60_000
            # The run was not taken over, because the lease has not expired by the database's clock.
            assert (await harness.row(run_id)).generation == generation


async def test_database_that_is_gone_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_postgres() as server:
        url = server.new_database()
        settings = Settings(home=str(tmp_path), database_url=url)
        async with (
            await open_store(settings) as store,
            QueueHarness(store, async_lease_seconds=30) as harness,
        ):
            began, go = asyncio.Event(), asyncio.Event()

            async def wait(attempt: Attempt) -> HandlerResult:
                began.set()
                await go.wait()
                return OK

            harness.handler.behaviour = wait
            await harness.queue.start()
            running = await harness.add()
            await asyncio.wait_for(began.wait(), TIMEOUT_SECONDS)
            await asyncio.to_thread(server.stop)
            with pytest.raises(StoreError):
                await harness.add()
            go.set()  # the run ends while its result cannot be stored
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.start)
            assert (await harness.until(running.run_id, "ended")).outcome == "ok"
            after = await harness.add()
            assert (await harness.until(after.run_id, "ended")).outcome == "ok"


async def test_run_that_cannot_be_decrypted_fails_alone(harness: QueueHarness, store: Store) -> None:
    broken, good = await harness.add(), await harness.add()
    sql = "UPDATE queued_runs SET request = :text WHERE run_id = :run_id"
    text = "hutch1.000000000000.AAAA"
    await store._database.write(SqlStatement(sql, {"text": text, "run_id": broken.run_id}))
    await harness.queue.start()
    assert (await harness.until(good.run_id, "ended")).outcome == "ok"
    assert (await harness.until(broken.run_id, "ended")).outcome == "vault_error"


async def test_runs_of_a_revoked_key_or_a_removed_user_are_not_executed(
    harness: QueueHarness, store: Store
) -> None:
    await store.encryption.ready()  # creates the master key
    user = User(id="u1", name="ann", data_key="", created_at=now())
    await store.users.add(user)
    key = ApiKey(id="k1", user_id="u1", name="k", digest="d", hint="h", scopes=("execbox",), created_at=now())
    await store.api_keys.add(key)
    caller = QueueCaller("u1", "k1", ("execbox",))
    await harness.queue.start()
    allowed = await harness.queue.submit(request(), caller, RunOptions())
    assert (await harness.until(allowed.run_id, "ended")).outcome == "ok"
    await store.api_keys.revoke("k1", now())
    revoked = await harness.queue.submit(request(), caller, RunOptions(attempts=3))
    removed = await harness.queue.submit(request(), QueueCaller("u2", None, ("execbox",)), RunOptions())
    for accepted in (revoked, removed):
        row = await harness.until(accepted.run_id, "ended", "dead")
        assert (row.state, row.outcome, row.attempts) == ("ended", "unauthorized", 1)


async def test_old_results_are_deleted_and_dead_letters_kept_longer(
    harness: QueueHarness, store: Store
) -> None:
    await harness.queue.start()
    done = await harness.add()
    await harness.until(done.run_id, "ended")
    harness.handler.behaviour = harness.handler.fail
    dead = await harness.add(attempts=1)
    await harness.until(dead.run_id, "dead")
    later = await store.queued_runs.now() + 1_000
    assert await store.queued_runs.prune(later, 0) == 1
    assert await harness.queue.find(done.run_id) is None
    assert await store.queued_runs.prune(later, later) == 1


async def test_runs_that_only_wait_take_no_place(store: Store) -> None:
    go = asyncio.Event()

    async def wait(attempt: Attempt) -> HandlerResult:
        if attempt.row.label == "a run" and len(harness.handler.started) <= 5:
            attempt.park()
            await go.wait()
        return OK

    async with QueueHarness(store, max_async_runs=2) as harness:
        harness.handler.behaviour = wait
        await harness.queue.start()
        waiting = [await harness.add() for _ in range(5)]
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while len(harness.handler.started) < 5:  # noqa: ASYNC110 - polls
                await asyncio.sleep(0.01)
        last = await harness.add()
        assert (await harness.until(last.run_id, "ended")).outcome == "ok"
        go.set()
        for accepted in waiting:
            await harness.until(accepted.run_id, "ended")


async def test_another_server_is_told_about_a_run(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "POLL_SECONDS", 10 * TIMEOUT_SECONDS)
    with postgres.database_with_tables() as url:
        settings = Settings(home=str(tmp_path), database_url=url)
        async with (
            await open_store(settings) as store,
            QueueHarness(store) as accepting,
            QueueHarness(store) as executing,
        ):
            await executing.queue.start()
            # When this run has ended, the server certainly listens for notifications.
            first = await executing.add()
            await executing.until(first.run_id, "ended")
            accepted = await accepting.add()
            await accepting.until(accepted.run_id, "ended")
            assert executing.handler.started[-1].run_id == accepted.run_id


def test_programs_that_do_not_use_the_queue_do_not_load_it() -> None:
    code = (
        "import hutch, sys; print([name for name in sys.modules if 'hutch.queue' in name or 'cron' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
