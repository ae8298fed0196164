"""Recorded calls of guests whose code runs again from the start after a restart."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.waiting import eventually

from hutch.errors import ResumeError, StoreError, UpstreamError
from hutch.kernel.durable.calls import call_replay
from hutch.kernel.durable.calls.call_replay import CallReplay
from hutch.store.store import Store

RUN, OWNER = "run", "ann"


class Guest:
    """Makes tool calls as a gateway does for a guest, and records the calls that reach a server."""

    def __init__(self, replay: CallReplay, *, is_idempotent: bool = False) -> None:
        self.replay = replay
        self.made: list[str] = []
        self.hangs = False
        self._is_idempotent = is_idempotent

    async def call(self, tool: str, value: Any = None) -> Any:
        async def make() -> Any:
            self.made.append(tool)
            if self.hangs:
                await asyncio.Event().wait()
            if tool == "fail":
                raise UpstreamError("s", tool, "no luck", kind="tool_error")
            return [tool, value]

        arguments = {"value": value}
        is_recorded, result = await self.replay.recorded_result(
            "s", tool, arguments, is_idempotent=self._is_idempotent
        )
        return result if is_recorded else await self.replay.record("s", tool, arguments, make)


async def guest(store: Store, **options: Any) -> Guest:
    return Guest(await CallReplay.open(store, RUN, OWNER, 3600), **options)


def deferred(store: Store, max_owner_bytes: int = 1_000_000) -> Guest:
    """A guest whose calls are in memory until its run is stored."""

    async def opened() -> Store:
        return store

    expires_at = "9000-01-01T00:00:00.000Z"
    return Guest(
        CallReplay(opened, RUN, OWNER, [], expires_at, max_owner_bytes=max_owner_bytes, is_stored=False)
    )


async def test_results_and_errors_are_replayed_and_then_calls_are_made(store: Store) -> None:
    first = await guest(store)
    assert await first.call("a", 1) == ["a", 1]
    assert await first.call("a", 1) == ["a", 1]
    with pytest.raises(UpstreamError, match="no luck"):
        await first.call("fail")
    again = await guest(store)
    assert again.replay.is_replaying
    assert await again.call("a", 1) == ["a", 1]
    with pytest.raises(UpstreamError, match="no luck") as caught:
        await again.call("fail")
    assert caught.value.kind == "tool_error"
    assert await again.call("a", 1) == ["a", 1]
    assert (again.made, again.replay.is_replaying, again.replay.missing_call()) == ([], False, None)
    assert await again.call("a", 1) == ["a", 1]
    assert again.made == ["a"]
    assert len(await store.recorded_calls.of_run(RUN, OWNER)) == 4


@pytest.mark.parametrize("is_idempotent", [False, True])
async def test_call_that_was_being_made_is_repeated_only_if_it_is_idempotent(
    store: Store, is_idempotent: bool
) -> None:
    first = await guest(store)
    first.hangs = True
    call = asyncio.ensure_future(first.call("a"))
    await eventually(lambda: first.made)
    again = await guest(store, is_idempotent=is_idempotent)
    if is_idempotent:
        assert await again.call("a") == ["a", None]
    else:
        with pytest.raises(UpstreamError, match="may have had an effect"):
            await again.call("a")
        assert again.made == []
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def test_repeated_call_keeps_its_record_if_the_process_dies_again(store: Store) -> None:
    first = await guest(store)
    first.hangs = True
    hanging = asyncio.ensure_future(first.call("a"))
    await eventually(lambda: first.made)
    second = await guest(store, is_idempotent=True)
    assert await second.call("a") == ["a", None]
    third = await guest(store, is_idempotent=True)
    assert await third.call("a") == ["a", None]
    assert (third.made, third.replay.is_replaying) == ([], False)
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_calls_in_memory_are_stored_when_the_run_is_stored(store: Store) -> None:
    first = deferred(store)
    await first.call("a", 1)
    first.hangs = True
    hanging = asyncio.ensure_future(first.call("b"))
    await eventually(lambda: len(first.made) == 2)
    assert await store.recorded_calls.of_run(RUN, OWNER) == []
    await first.replay.store_calls()
    first.hangs = False
    await first.call("c")
    again = await guest(store)
    assert await again.call("a", 1) == ["a", 1]
    with pytest.raises(UpstreamError, match="may have had an effect"):
        await again.call("b")
    assert await again.call("c") == ["c", None]
    assert again.made == []
    hanging.cancel()
    await asyncio.gather(hanging, return_exceptions=True)


async def test_large_results_do_not_stay_in_memory(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_replay, "MAX_UNSTORED_BYTES", 1_000)
    first = deferred(store)
    await first.call("a", "x" * 500)
    assert not first.replay.is_stored
    await first.call("b", "x" * 500)
    assert first.replay.is_stored
    assert len(await store.recorded_calls.of_run(RUN, OWNER)) == 2


async def test_owner_may_store_a_limited_size_of_results(store: Store) -> None:
    await (await guest(store)).call("a", "x" * 100)
    second = deferred(store, max_owner_bytes=10)
    with pytest.raises(ResumeError, match="max_suspended_bytes_per_owner"):
        await second.replay.store_calls()


async def test_results_of_a_stored_run_count_for_its_owner(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_replay, "CHECKED_BYTES", 1_000)
    first = deferred(store, max_owner_bytes=3_000)
    await first.replay.store_calls()
    for number in range(10):
        await first.call("a", f"{number}" * 900)
    assert await store.recorded_calls.stored_bytes(OWNER) < 10_000
    assert first.replay.problem is not None
    assert "max_suspended_bytes_per_owner" in first.replay.problem
    # The calls whose results are missing are not made again.
    again = await guest(store)
    assert await again.call("a", "0" * 900) == ["a", "0" * 900]
    with pytest.raises(UpstreamError, match="may have had an effect"):
        await again.call("a", "9" * 900)
    assert again.made == []


async def test_run_records_a_limited_number_of_calls(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_replay, "MAX_RECORDED_CALLS", 3)
    stored, in_memory = await guest(store), deferred(store)
    for number in range(3):
        await stored.call("a", number)
        await in_memory.call("a", number)
    with pytest.raises(UpstreamError, match="not made, because it could not be recorded"):
        await stored.call("a", 3)
    assert len(stored.made) == 3
    # A run that was never stored goes on, but cannot be stored any more.
    assert await in_memory.call("a", 3) == ["a", 3]
    assert len(in_memory.made) == 4
    with pytest.raises(ResumeError, match="has 3 recorded calls"):
        await in_memory.replay.store_calls()


async def test_refused_call_is_replayed(store: Store) -> None:
    first = await guest(store)
    error = UpstreamError("s", "no", "refused", kind="denied")
    await first.replay.record_failure("s", "no", {"value": None}, error)
    await first.call("a")
    again = await guest(store)
    with pytest.raises(UpstreamError, match="refused") as refused:
        await again.call("no")
    assert refused.value.kind == "denied"
    assert await again.call("a") == ["a", None]
    assert again.made == []


async def test_closed_replay_makes_no_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_replay, "DIVERGENCE_SECONDS", 0.05)
    first = await guest(store)
    await first.call("a")
    again = await guest(store)
    waiting = asyncio.ensure_future(again.call("b"))
    await asyncio.sleep(0)
    again.replay.close()
    for call in (waiting, again.call("a")):
        with pytest.raises(UpstreamError, match="the code was stopped"):
            await call
    assert again.made == []


async def test_diverging_call_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_replay, "DIVERGENCE_SECONDS", 0.02)
    first = await guest(store)
    await first.call("a", 1)
    await first.call("b", 2)
    again = await guest(store)
    await again.call("a", 1)
    with pytest.raises(UpstreamError, match=r"it calls s__b with other arguments \(recorded call 2\)"):
        await again.call("b", 3)
    # After the first call that differs from the record, every further call fails, too.
    with pytest.raises(UpstreamError, match="with other arguments"):
        await again.call("b", 2)
    other = await guest(store)
    with pytest.raises(UpstreamError, match=r"it calls s__c instead of s__a \(recorded call 1\)"):
        await other.call("c")
    assert (again.made, other.made) == ([], [])
    ended = await guest(store)
    await ended.call("a", 1)
    message = ended.replay.missing_call()
    assert message is not None
    assert "it has ended without calling s__b (recorded call 2)" in message


async def test_new_call_of_one_branch_waits_for_the_recorded_calls_of_another(store: Store) -> None:
    first = await guest(store)
    await first.call("left", 1)
    await first.call("right", 1)
    again = await guest(store)
    new = asyncio.ensure_future(again.call("left", 2))
    await again.call("left", 1)
    assert again.made == []
    await again.call("right", 1)
    assert await new == ["left", 2]


async def test_records_belong_to_their_owner_and_expire(store: Store) -> None:
    first = await guest(store)
    await first.call("a", "a secret value")
    assert await store.recorded_calls.of_run(RUN, "bo") == []
    rows = await store._database.scan("SELECT answer FROM recorded_calls")
    assert "a secret value" not in str(rows)
    assert await store.recorded_calls.stored_bytes(OWNER) > 0
    await store.recorded_calls.delete_expired("2000-01-01T00:00:00.000Z")
    assert len(await store.recorded_calls.of_run(RUN, OWNER)) == 1
    await store.recorded_calls.delete_expired("9000-01-01T00:00:00.000Z")
    assert await store.recorded_calls.of_run(RUN, OWNER) == []


async def test_call_that_cannot_be_recorded_is_not_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def add(*_: Any) -> None:
        raise StoreError("The disk is full.")

    first = await guest(store)
    monkeypatch.setattr(store.recorded_calls, "add", add)
    with pytest.raises(UpstreamError, match="could not be recorded before: The disk is full"):
        await first.call("a")
    assert first.made == []
