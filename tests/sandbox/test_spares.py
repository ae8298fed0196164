"""Spares: which profiles deserve one, and that real ones serve exactly the calls that they may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.tpmjs.served import eventually, tool
from tests.packaged import Tools, tools
from tests.processes import PATIENCE

from hutch.doors.tpmjs.calls import ToolCall
from hutch.npm.names import parse
from hutch.sandbox.profile import Profile, profile_for
from hutch.sandbox.spares import MAX_PLAIN, Spares
from hutch.settings import Settings

DENO = profile_for("deno")
ONE, TWO, THREE = (Profile("npm", told=told) for told in (b"1", b"2", b"3"))


def spares(**settings: Any) -> Spares:
    return Spares(msgspec.convert({"deno_warm": 2, "max_spares": 2, **settings}, Settings))


# --- which ---


def test_what_was_never_used_deserves_none() -> None:
    assert spares().wanted(ONE) == spares().wanted(DENO) == 0


def test_package_deserves_one_and_plain_runners_as_many_as_are_kept_warm() -> None:
    kept = spares()
    kept.use(ONE, 0.0)
    kept.use(DENO, 0.0)
    assert (kept.wanted(ONE), kept.wanted(DENO)) == (1, 2)


def test_packages_used_last_crowd_out_the_others() -> None:
    kept = spares()
    for now, profile in enumerate((ONE, TWO, THREE)):
        kept.use(profile, now)
    assert [kept.wanted(each) for each in (ONE, TWO, THREE)] == [0, 1, 1]
    kept.use(ONE, 4.0)
    assert [kept.wanted(each) for each in (ONE, TWO, THREE)] == [1, 0, 1]


def test_states_of_a_gateway_crowd_out_older_ones() -> None:
    kept = spares()
    states = [Profile("script", env=(("STATE", str(number)),)) for number in range(100)]
    for now, state in enumerate(states):
        kept.use(state, now)
    assert kept.profiles() == {*states[-MAX_PLAIN:]}


def test_plain_runners_take_no_package_s_place() -> None:
    kept = spares(max_spares=1)
    kept.use(ONE, 0.0)
    kept.use(DENO, 1.0)
    assert kept.wanted(ONE) == 1


def test_none_are_kept_where_the_operator_wants_none() -> None:
    kept = spares(max_spares=0)
    kept.use(ONE, 0.0)
    assert kept.wanted(ONE) == 0


def test_what_is_out_of_use_is_forgotten_with_all_it_was_told() -> None:
    kept = spares(spare_seconds=10.0, idle_seconds=100.0)
    kept.use(ONE, 0.0)
    kept.use(DENO, 0.0)
    kept.use(TWO, 5.0)
    kept.expire(11.0)
    assert kept.profiles() == {TWO, DENO}
    kept.expire(101.0)
    assert kept.profiles() == set()


def test_what_was_crowded_out_is_forgotten_at_once() -> None:
    kept = spares(max_spares=1)
    kept.use(ONE, 0.0)
    kept.use(TWO, 0.0)
    assert kept.profiles() == {TWO}


# --- real ones ---


@pytest.fixture(scope="module")
async def one(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tools]:
    """With room for one spare of a package."""
    async with tools(tmp_path_factory.mktemp("spares"), max_spares=1) as made:
        yield made


@pytest.fixture(autouse=True)
def tidy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.HOUSEKEEPING_SECONDS", 0.02)
    # Nor does any process start that no call asks for.
    monkeypatch.setattr("hutch.doors.tpmjs.caching.USES", 1_000)


async def test_second_call_is_served_by_the_spare_that_the_first_one_left(one: Tools) -> None:
    assert await one.execute("count") == [1, None]
    started = await one.settled()
    [spare] = [runner for ready in one.app.pool._warm.values() for runner in ready]
    assert await one.execute("count") == [1, None]
    assert spare.executions == 1
    # No other than its successor.
    assert await one.settled() == started + 1


async def test_spare_does_not_start_while_the_call_before_it_still_imports_but_when_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.REFILL_PREPARED_AFTER", PATIENCE)
    monkeypatch.setattr("hutch.sandbox.pool.REFILL_AFTER", 0.0)
    async with tools(tmp_path, max_spares=1) as made:
        before = "const begin = Date.now(); while (Date.now() - begin < 300);"
        made.npm.publish("slow", type="module", files={"index.js": tool("return 'done'", before)})
        running = asyncio.create_task(made.execute("slow"))
        looks = 0
        while not running.done():
            stats = made.app.pool.stats()
            if stats.in_flight.get("npm"):
                looks += 1
                assert stats.starting == 0
            await asyncio.sleep(0.005)
        assert looks > 3
        assert await running == "done"
        assert await made.settled() == 2


async def test_call_with_another_env_gets_another_process(one: Tools) -> None:
    await one.execute("count")
    for env in ({"WHO": "a"}, {"WHO": "b"}, {"WHO": "b", "MORE": ""}, {}):
        started = await one.settled()
        assert await one.execute("count", env=env) == [1, env.get("WHO")]
        # One for the call, and a spare of its kind; that of the other env was for nobody.
        assert await one.settled() == started + 2


async def test_call_with_the_same_env_of_the_same_caller_gets_the_spare(one: Tools) -> None:
    await one.execute("count", env={"WHO": "same"})
    started = await one.settled()
    assert await one.execute("count", env={"WHO": "same"}) == [1, "same"]
    assert await one.settled() == started + 1


async def test_spare_that_has_an_env_is_for_its_own_caller(one: Tools) -> None:
    await one.execute("count", env={"WHO": "mine"}, caller="ann")
    started = await one.settled()
    assert await one.execute("count", env={"WHO": "mine"}, caller="bob") == [1, "mine"]
    assert await one.settled() == started + 2


async def test_spare_without_an_env_is_for_everybody(one: Tools) -> None:
    await one.execute("count", caller="ann")
    started = await one.settled()
    assert await one.execute("count", caller="bob") == [1, None]
    assert await one.settled() == started + 1


async def test_another_package_crowds_it_out(one: Tools) -> None:
    await one.execute("count")
    await one.settled()
    assert await one.execute("other") == "other"
    await one.settled()
    assert one.warm == 1
    [profile] = one.app.pool._warm
    assert b'"other"' in profile.told


async def test_newer_version_gets_no_spare_of_an_older_one(one: Tools) -> None:
    assert await one.execute("count") == [1, None]
    await one.settled()
    one.npm.publish("count", "2.0.0", files={"index.js": tool("return 'newer'")})
    assert await one.app.tools.execute(ToolCall(spec=parse("count", "2.0.0"), name="tool", caller="ann")) != [
        1,
        None,
    ]
    call = ToolCall(spec=parse("count", "2.0.0"), name="tool", caller="ann")
    outcome = await one.app.tools.execute(call)
    assert (outcome.output_json, outcome.resolved_version) == (b'"newer"', "2.0.0")


async def test_spares_that_wait_too_long_end(tmp_path: Path) -> None:
    async with tools(tmp_path, max_spares=4, spare_seconds=0.05) as made:
        await made.execute("count")
        await eventually(lambda: not made.app.pool._spares.profiles())
        await made.settled(0)


async def test_spares_that_take_too_much_memory_end(tmp_path: Path) -> None:
    async with tools(tmp_path, max_spares=4, spare_bytes=1) as made:
        await made.execute("count")
        await eventually(lambda: made.app.pool.stats().tally.started == 2)
        await made.settled(0)


async def test_process_serves_as_many_calls_as_the_operator_lets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.HOUSEKEEPING_SECONDS", PATIENCE)
    async with tools(tmp_path, max_spares=1, tool_calls_per_process=3) as made:
        counts = [(await made.execute("count"))[0] for _ in range(6)]
        assert counts == [1, 2, 3, 1, 2, 3]


async def test_process_serves_one_call_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.HOUSEKEEPING_SECONDS", PATIENCE)
    async with tools(tmp_path) as made:
        assert [(await made.execute("count"))[0] for _ in range(4)] == [1, 1, 1, 1]


async def test_close_ends_spares_too(tmp_path: Path) -> None:
    async with tools(tmp_path, max_spares=2) as made:
        await made.execute("count")
        await made.execute("other")
        await made.settled(2)
        waiting = [runner for ready in made.app.pool._warm.values() for runner in ready]
    assert [runner.exited for runner in waiting] == [True, True]
