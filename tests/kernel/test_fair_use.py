"""Quotas of owners and API keys."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator

import msgspec
import pytest
from tests.sandbox.fake_runners import settle

import hutch
from hutch.errors import Busy, QuotaExceeded, StoreError
from hutch.kernel import fair_use as module
from hutch.kernel.caller import caller_key
from hutch.kernel.fair_use import DAY_SECONDS, FairUse, QuotaStore, day_name, today
from hutch.settings import Settings
from hutch.store.models import Quota, Usage
from hutch.store.store import Store
from hutch.vault.flow_keys import open_store

NOON = 20_000.5 * DAY_SECONDS


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def no_key() -> Iterator[None]:
    token = caller_key.set(None)
    yield
    caller_key.reset(token)


def fair_use(clock: Clock, store: Store | None = None, **settings: int) -> FairUse:
    use = FairUse(Settings(**settings), clock=clock)  # type: ignore[arg-type]
    if store is not None:
        use.store = QuotaStore(store.quotas, store.rate_limits)
    return use


async def run_once(use: FairUse, owner: str = "ann", cpu_seconds: float = 0.0) -> None:
    use.end(await use.begin(owner), cpu_seconds)


async def refusal(use: FairUse, owner: str = "ann") -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        await use.begin(owner)
    return caught.value


async def test_nothing_is_limited_by_default(clock: Clock) -> None:
    use = fair_use(clock)
    for _ in range(100):
        await use.begin("ann")
    assert not use.refusals


async def test_concurrent_executions_are_limited_per_owner(clock: Clock) -> None:
    use = fair_use(clock, max_concurrent_executions=2)
    first = await use.begin("ann")
    await use.begin("ann")
    error = await refusal(use)
    assert error.limit == "max_concurrent_executions"
    assert str(error) == (
        "The quota is used up: 2 executions at the same time (max_concurrent_executions). Try again in 1 s."
    )
    await use.begin("bob")
    use.end(first, 0.0)
    await use.begin("ann")


async def test_executions_per_minute_are_limited(clock: Clock) -> None:
    use = fair_use(clock, max_executions_per_minute=3, max_concurrent_executions=1)
    for _ in range(3):
        await run_once(use)
    error = await refusal(use)
    assert error.limit == "max_executions_per_minute"
    assert 1 <= error.retry_after <= 60
    # The second refusal names the same limit. So the refused execution did not count as running.
    assert (await refusal(use)).limit == "max_executions_per_minute"
    await run_once(use, "bob")


async def test_executions_per_day_are_limited_until_midnight(clock: Clock) -> None:
    use = fair_use(clock, max_executions_per_day=2)
    for _ in range(2):
        await run_once(use)
    error = await refusal(use)
    assert (error.limit, error.retry_after) == ("max_executions_per_day", DAY_SECONDS / 2)
    clock.now += DAY_SECONDS / 2
    await run_once(use)
    assert use.refusals == {"max_executions_per_day": 1}


async def test_cpu_seconds_per_day_are_limited(clock: Clock) -> None:
    use = fair_use(clock, max_cpu_seconds_per_day=2)
    await run_once(use, cpu_seconds=1.5)
    await run_once(use, cpu_seconds=0.6)
    assert (await refusal(use)).limit == "max_cpu_seconds_per_day"
    clock.now += DAY_SECONDS
    await run_once(use)


async def test_refused_execution_does_not_count_for_the_day(clock: Clock, store: Store) -> None:
    use = fair_use(clock, store, max_executions_per_day=1)
    for _ in range(3):
        use.end(await use.begin("ann"), 0.0, was_refused=True)
        with pytest.raises(Busy):
            async with use.count("ann"):
                raise Busy
    await run_once(use)
    assert (await refusal(use)).limit == "max_executions_per_day"
    day = day_name(int(NOON // DAY_SECONDS))
    assert (await store.quotas.usage(["ann"], day))["ann"].executions == 1


async def test_refusal_of_an_execution_of_yesterday_does_not_raise_the_limit(clock: Clock) -> None:
    use = fair_use(clock, max_executions_per_day=1, max_concurrent_executions=1)
    yesterday = await use.begin("ann")
    clock.now += DAY_SECONDS
    assert (await refusal(use)).limit == "max_concurrent_executions"
    use.end(yesterday, 0.0, was_refused=True)
    await run_once(use)
    assert (await refusal(use)).limit == "max_executions_per_day"


async def test_quota_of_a_key_takes_precedence_over_its_owners(clock: Clock, store: Store) -> None:
    await store.quotas.set("user_ann", Quota(max_executions_per_day=2))
    await store.quotas.set("key_generous", Quota(max_executions_per_day=0))
    await store.quotas.set("key_strict", Quota(max_executions_per_day=1))
    use = fair_use(clock, store, max_executions_per_day=1)
    caller_key.set("key_strict")
    await run_once(use, "user_ann")
    assert "1 executions a day" in str(await refusal(use, "user_ann"))
    caller_key.set("key_other")
    await run_once(use, "user_ann")
    assert "2 executions a day" in str(await refusal(use, "user_ann"))
    caller_key.set("key_generous")
    for _ in range(5):
        await run_once(use, "user_ann")


async def test_restart_keeps_what_was_used_that_day(clock: Clock, store_settings: Settings) -> None:
    async with await open_store(store_settings) as store:
        use = fair_use(clock, store, max_executions_per_day=3)
        for _ in range(2):
            await run_once(use, cpu_seconds=0.25)
    async with await open_store(store_settings) as store:
        day = day_name(int(NOON // DAY_SECONDS))
        assert await store.quotas.usage(["ann", "bob"], day) == {"ann": Usage(2, 0.5), "bob": Usage()}
        use = fair_use(clock, store, max_executions_per_day=3)
        # All five executions wait until the stored usage of the owner is loaded.
        results = await asyncio.gather(*(run_once(use) for _ in range(5)), return_exceptions=True)
        assert [type(result) for result in results].count(QuotaExceeded) == 4


async def test_two_servers_with_one_database_count_together(clock: Clock, store: Store) -> None:
    first, second = (fair_use(clock, store, max_executions_per_day=3) for _ in range(2))
    for use in (first, second, first):
        await run_once(use)
    second.forget("ann")
    assert (await refusal(second)).limit == "max_executions_per_day"


async def test_clock_that_jumps_back_finds_the_usage_of_that_day(clock: Clock, store: Store) -> None:
    use = fair_use(clock, store, max_executions_per_day=1)
    await run_once(use)
    clock.now += 3 * DAY_SECONDS
    await run_once(use)
    await refusal(use)
    clock.now -= 3 * DAY_SECONDS
    await refusal(use)
    clock.now -= 10 * DAY_SECONDS
    await run_once(use)


async def test_changed_quota_applies_after_a_while(
    clock: Clock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = fair_use(clock, store)
    await run_once(use)
    await store.quotas.set("ann", Quota(max_executions_per_day=1))
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.0)
    await run_once(use)
    await use.close()
    await refusal(use)
    await store.quotas.set("ann", Quota())
    use.forget("ann")
    await run_once(use)


async def test_weight_reaches_the_queue(clock: Clock, store: Store) -> None:
    weights: dict[str, float] = {}
    # Remove the API key that an earlier test may have set in this task.
    caller_key.set(None)
    await store.quotas.set("ann", Quota(weight=3))
    use = FairUse(Settings(), weights.__setitem__, clock=clock)
    use.store = QuotaStore(store.quotas, store.rate_limits)
    for owner in ("ann", "bob"):
        await run_once(use, owner)
    assert weights == {"ann": 3, "bob": 1}


async def test_executions_go_on_without_the_store(
    clock: Clock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise StoreError("gone")

    monkeypatch.setattr(store.quotas, "get", fail)
    use = fair_use(clock, store, max_executions_per_day=2)
    for _ in range(2):
        await run_once(use)
    await refusal(use)


async def test_executions_go_on_with_a_quota_that_cannot_be_decoded(
    clock: Clock, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    class NewerQuota(msgspec.Struct):
        max_bytes_per_day: int = 1

    await store.quotas.set("ann", NewerQuota())  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=r"The quota of ann cannot be read: .*max_bytes_per_day"):
        await store.quotas.get(["ann"])
    await run_once(fair_use(clock, store))
    assert "max_bytes_per_day" in caplog.text


async def test_execution_waits_for_the_first_read_of_a_day_although_an_earlier_read_ends(
    clock: Clock, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def get(_: object) -> dict[str, Quota]:
        may_end = asyncio.Event()
        reads.put_nowait(may_end)
        await may_end.wait()
        return {}

    monkeypatch.setattr(store.quotas, "get", get)
    use = fair_use(clock, store)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        yesterday = group.create_task(use.begin("ann"))
        first = await reads.get()
        clock.now += DAY_SECONDS
        next_day = group.create_task(use.begin("ann"))
        second = await reads.get()
        first.set()
        await yesterday
        later = group.create_task(use.begin("ann"))
        await settle()
        assert not later.done()
        second.set()
        await asyncio.gather(next_day, later)


async def test_flow_process_does_not_count_steps(clock: Clock, store: Store) -> None:
    await store.quotas.set("ann", Quota(max_executions_per_day=1))
    use = fair_use(clock, store, max_executions_per_minute=1)
    use.is_counting = False
    for _ in range(3):
        await run_once(use)
    assert not use.refusals
    day = day_name(int(NOON // DAY_SECONDS))
    assert await store.quotas.usage(["ann"], day) == {"ann": Usage()}


async def test_number_of_accounts_in_memory_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 10)
    use = fair_use(clock, max_concurrent_executions=1)
    await use.begin("busy")
    for number in range(100):
        await run_once(use, f"owner-{number}")
    assert len(use._accounts) == 10
    await refusal(use, "busy")


async def test_old_usage_is_pruned(clock: Clock, store: Store) -> None:
    store.quotas.add_usage("ann", "2030-01-01", Usage(1))
    store.quotas.add_usage("ann", "2030-02-01", Usage(1))
    await store.write_behind.flush()
    await store.quotas.prune("2030-01-15")
    found = [await store.quotas.usage(["ann"], day) for day in ("2030-01-01", "2030-02-01")]
    assert [used["ann"].executions for used in found] == [0, 1]


@pytest.mark.parametrize("engine", ["quickjs", "deno"])
async def test_real_cpu_time_counts(engine: str) -> None:
    # Use new owners, because the usage of the day is stored.
    ann, idle = f"ann-{uuid.uuid4()}", f"idle-{uuid.uuid4()}"
    compute = "const end = Date.now() + 50; while (Date.now() < end); return 1"
    async with hutch.Hutch(max_cpu_seconds_per_day=1, timeout_ms=20_000) as h:
        waiting = await h.run("await new Promise((done) => setTimeout(done, 100)); return 1", owner=idle)
        assert waiting.ok
        assert h._kernel is not None
        store = h._kernel.fair_use.store
        assert store is not None
        assert (await store.quotas.usage([idle], today()))[idle].cpu_seconds < 0.1
        async with asyncio.timeout(100):
            while (result := await h.run(compute, engine=engine, owner=ann)).ok:  # type: ignore[arg-type]
                pass
        assert result.error is not None
        assert result.error.code == "rate_limited"
        assert "max_cpu_seconds_per_day" in str(result.error)
        assert result.error.retry_after is not None
        assert 1 <= (await store.quotas.usage([ann], today()))[ann].cpu_seconds < 2
        assert (await h.run("1 + 1", owner="bob")).ok


async def test_execution_that_the_pool_refuses_does_not_count() -> None:
    ann = f"ann-{uuid.uuid4()}"
    async with hutch.Hutch(max_executions_per_day=2, max_queue=0) as h:
        for _ in range(4):
            with pytest.raises(Busy, match="max_queue"):
                await h.run("1 + 1", owner=ann)
        assert h._kernel is not None
        store = h._kernel.fair_use.store
        assert store is not None
        assert (await store.quotas.usage([ann], today()))[ann] == Usage()


async def test_refused_run_ends_with_an_event() -> None:
    async with hutch.Hutch(max_executions_per_minute=1) as h:
        assert (await h.run("1 + 1")).ok
        run = await h.start("1 + 1")
        events = [event async for event in run]
        assert [type(event).__name__ for event in events] == ["RunEnded"]
        result = await run.result()
        assert result.error is not None
        assert result.error.code == "rate_limited"
        with pytest.raises(hutch.ExecutionError, match=r"1 executions a minute"):
            result.raise_for_error()
