"""Spares: the profiles that get a spare, and the calls that a real spare serves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.contract.tpmjs.harness import eventually, tool
from tests.support.packaged import ToolsHarness, open_tools
from tests.support.processes import TIMEOUT_SECONDS

from hutch.npm.package_spec import parse_spec
from hutch.protocols.tpmjs.models import PackageToolCall
from hutch.sandbox.pool.spares import MAX_PLAIN_PROFILES, SparePolicy
from hutch.sandbox.runner.profile import Profile, profile_for
from hutch.settings import Settings

DENO = profile_for("deno")
ONE, TWO, THREE = (Profile("npm", stdin_payload=payload) for payload in (b"1", b"2", b"3"))


def spare_policy(**settings: Any) -> SparePolicy:
    return SparePolicy(msgspec.convert({"deno_warm": 2, "max_spares": 2, **settings}, Settings))


# --- policy ---


def test_unused_profile_gets_no_spare() -> None:
    assert spare_policy().target(ONE) == spare_policy().target(DENO) == 0


def test_package_gets_one_spare_and_plain_profile_the_warm_count() -> None:
    policy = spare_policy()
    policy.record_use(ONE, 0.0)
    policy.record_use(DENO, 0.0)
    assert (policy.target(ONE), policy.target(DENO)) == (1, 2)


def test_recently_used_packages_replace_the_others() -> None:
    policy = spare_policy()
    for now, profile in enumerate((ONE, TWO, THREE)):
        policy.record_use(profile, now)
    assert [policy.target(each) for each in (ONE, TWO, THREE)] == [0, 1, 1]
    policy.record_use(ONE, 4.0)
    assert [policy.target(each) for each in (ONE, TWO, THREE)] == [1, 0, 1]


def test_new_gateway_states_replace_older_ones() -> None:
    policy = spare_policy()
    states = [Profile("script", env=(("STATE", str(number)),)) for number in range(100)]
    for now, state in enumerate(states):
        policy.record_use(state, now)
    assert policy.profiles() == {*states[-MAX_PLAIN_PROFILES:]}


def test_plain_profile_does_not_replace_a_package() -> None:
    policy = spare_policy(max_spares=1)
    policy.record_use(ONE, 0.0)
    policy.record_use(DENO, 1.0)
    assert policy.target(ONE) == 1


def test_max_spares_zero_keeps_none() -> None:
    policy = spare_policy(max_spares=0)
    policy.record_use(ONE, 0.0)
    assert policy.target(ONE) == 0


def test_old_profiles_are_dropped() -> None:
    policy = spare_policy(spare_seconds=10.0, idle_seconds=100.0)
    policy.record_use(ONE, 0.0)
    policy.record_use(DENO, 0.0)
    policy.record_use(TWO, 5.0)
    policy.expire(11.0)
    assert policy.profiles() == {TWO, DENO}
    policy.expire(101.0)
    assert policy.profiles() == set()


def test_replaced_profile_is_dropped_immediately() -> None:
    policy = spare_policy(max_spares=1)
    policy.record_use(ONE, 0.0)
    policy.record_use(TWO, 0.0)
    assert policy.profiles() == {TWO}


# --- real processes ---


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ToolsHarness]:
    """A server that keeps one spare."""
    async with open_tools(tmp_path_factory.mktemp("spares"), max_spares=1) as server:
        yield server


@pytest.fixture(autouse=True)
def fast_cleanup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", 0.02)
    # Prevent that processes are started to create the code cache, because the tests count the starts of
    # processes.
    monkeypatch.setattr("hutch.protocols.tpmjs.code_cache.MIN_USES", 1_000)


async def test_second_call_is_served_by_the_spare_of_the_first(server: ToolsHarness) -> None:
    assert await server.execute("count") == [1, None]
    started = await server.wait_settled()
    [spare] = [runner for ready in server.app.pool.runners.warm.values() for runner in ready]
    assert await server.execute("count") == [1, None]
    assert spare.executions == 1
    # The only new process is the next spare.
    assert await server.wait_settled() == started + 1


async def test_spare_starts_after_a_call_that_still_imports_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.REFILL_AFTER_PRELOAD", TIMEOUT_SECONDS)
    monkeypatch.setattr("hutch.sandbox.pool.pool.REFILL_AFTER", 0.0)
    async with open_tools(tmp_path, max_spares=1) as server:
        busy_import = "const begin = Date.now(); while (Date.now() - begin < 300);"
        server.npm.publish("slow", type="module", files={"index.js": tool("return 'done'", busy_import)})
        running = asyncio.create_task(server.execute("slow"))
        samples = 0
        while not running.done():
            stats = server.app.pool.stats()
            if stats.in_flight.get("npm"):
                samples += 1
                assert stats.starting == 0
            await asyncio.sleep(0.005)
        assert samples > 3
        assert await running == "done"
        assert await server.wait_settled() == 2


async def test_call_with_another_env_gets_another_process(server: ToolsHarness) -> None:
    await server.execute("count")
    for env in ({"WHO": "a"}, {"WHO": "b"}, {"WHO": "b", "MORE": ""}, {}):
        started = await server.wait_settled()
        assert await server.execute("count", env=env) == [1, env.get("WHO")]
        # The spare with the other env could not serve the call. So two processes were started: one for the
        # call, and a spare with the env of the call.
        assert await server.wait_settled() == started + 2


async def test_call_with_the_same_env_and_caller_gets_the_spare(server: ToolsHarness) -> None:
    await server.execute("count", env={"WHO": "same"})
    started = await server.wait_settled()
    assert await server.execute("count", env={"WHO": "same"}) == [1, "same"]
    assert await server.wait_settled() == started + 1


async def test_spare_with_env_serves_only_its_own_caller(server: ToolsHarness) -> None:
    await server.execute("count", env={"WHO": "mine"}, caller="ann")
    started = await server.wait_settled()
    assert await server.execute("count", env={"WHO": "mine"}, caller="bob") == [1, "mine"]
    assert await server.wait_settled() == started + 2


async def test_spare_without_env_serves_every_caller(server: ToolsHarness) -> None:
    await server.execute("count", caller="ann")
    started = await server.wait_settled()
    assert await server.execute("count", caller="bob") == [1, None]
    assert await server.wait_settled() == started + 1


async def test_spare_is_replaced_by_that_of_another_package(server: ToolsHarness) -> None:
    await server.execute("count")
    await server.wait_settled()
    assert await server.execute("other") == "other"
    await server.wait_settled()
    assert server.warm == 1
    [profile] = server.app.pool.runners.warm
    assert b'"other"' in profile.stdin_payload


async def test_newer_version_gets_no_spare_of_an_older_one(server: ToolsHarness) -> None:
    assert await server.execute("count") == [1, None]
    await server.wait_settled()
    server.npm.publish("count", "2.0.0", files={"index.js": tool("return 'newer'")})
    assert await server.app.tools.execute(
        PackageToolCall(spec=parse_spec("count", "2.0.0"), name="tool", caller="ann")
    ) != [
        1,
        None,
    ]
    call = PackageToolCall(spec=parse_spec("count", "2.0.0"), name="tool", caller="ann")
    outcome = await server.app.tools.execute(call)
    assert (outcome.output_json, outcome.resolved_version) == (b'"newer"', "2.0.0")


async def test_spares_end_after_their_maximum_age(tmp_path: Path) -> None:
    async with open_tools(tmp_path, max_spares=4, spare_seconds=0.05) as server:
        await server.execute("count")
        await eventually(lambda: not server.app.pool.starter.spares.profiles())
        await server.wait_settled(0)


async def test_spares_over_the_memory_limit_end(tmp_path: Path) -> None:
    async with open_tools(tmp_path, max_spares=4, spare_bytes=1) as server:
        await server.execute("count")
        await eventually(lambda: server.app.pool.stats().counters.started == 2)
        await server.wait_settled(0)


async def test_process_serves_the_configured_number_of_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", TIMEOUT_SECONDS)
    async with open_tools(tmp_path, max_spares=1, tool_calls_per_process=3) as server:
        counts = [(await server.execute("count"))[0] for _ in range(6)]
        assert counts == [1, 2, 3, 1, 2, 3]


async def test_callers_never_share_a_process_that_serves_several_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", TIMEOUT_SECONDS)
    async with open_tools(tmp_path, max_spares=2, tool_calls_per_process=3) as server:
        callers = ("ann", "bob", "ann", "bob", "eve")
        counts = [(await server.execute("count", caller=caller))[0] for caller in callers]
        assert counts == [1, 1, 2, 2, 1]


async def test_callers_share_an_unused_spare(tmp_path: Path) -> None:
    async with open_tools(tmp_path, max_spares=1) as server:
        await server.execute("count", caller="ann")
        started = await server.wait_settled()
        assert await server.execute("count", caller="bob") == [1, None]
        # The only new process is the next spare.
        assert await server.wait_settled() == started + 1


async def test_process_serves_one_call_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hutch.sandbox.pool.pool.CLEANUP_SECONDS", TIMEOUT_SECONDS)
    async with open_tools(tmp_path) as server:
        assert [(await server.execute("count"))[0] for _ in range(4)] == [1, 1, 1, 1]


async def test_close_ends_spares(tmp_path: Path) -> None:
    async with open_tools(tmp_path, max_spares=2) as server:
        await server.execute("count")
        await server.execute("other")
        await server.wait_settled(2)
        waiting = [runner for ready in server.app.pool.runners.warm.values() for runner in ready]
    assert [runner.has_exited for runner in waiting] == [True, True]
