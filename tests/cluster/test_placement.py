"""The choice of a worker for an execution, and executions that wait for a place."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from hutch.cluster.membership import KnownWorker, worker_problem
from hutch.cluster.messages import FrameType, WorkerAnnouncement
from hutch.cluster.node import are_compatible
from hutch.cluster.placement import ClusterPlacement, PlacedExecution
from hutch.errors import Busy, RateLimited
from hutch.kernel.execution import Execution
from hutch.kernel.placement import PackageRecipe
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.profile import Profile, profile_for
from hutch.settings import Settings


class RecordingLink:
    """Fake link to a worker, which counts the executions that are sent to the worker."""

    def __init__(self) -> None:
        self.is_closed = False
        self.opened = 0

    def send(self, type: int, number: int, content: bytes = b"") -> None:
        self.opened += type == FrameType.OPEN


class Members:
    def __init__(self) -> None:
        self.workers: dict[str, KnownWorker] = {}

    def usable(self, engine: str) -> Any:
        return (worker for worker in self.workers.values() if worker.is_usable(engine))

    def add(self, id: str, places: int = 2, **fields: Any) -> KnownWorker:
        given = {
            "id": id,
            "node": id,
            "version": "1.0.0",
            "number": 1,
            "public_key": b"",
            "isolation": "container",
            "bundle": "b",
            "engines": ["quickjs", "deno", "npm", "script"],
            "places": {"quickjs": places, "process": places},
            **fields,
        }
        worker = self.workers[id] = KnownWorker(WorkerAnnouncement(**given))
        worker.link = RecordingLink()  # type: ignore[assignment]
        return worker


def placement(**settings: Any) -> tuple[ClusterPlacement, Members]:
    given = Settings(**{"cluster_local": False, "queue_seconds": 0.05, **settings})

    async def launch(_: Profile, *, in_background: bool = False) -> Any:
        raise AssertionError("started a runner")

    placed = ClusterPlacement(given, Pool(given, launch), "me", "b")
    members = Members()
    placed.membership = members  # type: ignore[assignment]
    return placed, members


async def take(
    placement: ClusterPlacement, owner: str = "bo", **fields: Any
) -> tuple[str, PlacedExecution, Any]:
    """Takes a place. Returns the worker's name."""
    execution = Execution(**{"code": "", "profile": profile_for("quickjs"), "owner": owner, **fields})
    placed = PlacedExecution(placement, execution, "r")
    runner: Any = await placed.acquire(execution.profile, owner)
    return runner.worker, placed, runner


async def test_owner_stays_on_its_worker_and_spills_over_when_it_is_full() -> None:
    cluster, members = placement()
    for name in "abc":
        members.add(name)
    first, placed, runner = await take(cluster)
    placed.release(runner, owner="bo")
    again, *_ = await take(cluster)
    assert again == first
    used = Counter([again])
    for _ in range(5):
        used[(await take(cluster))[0]] += 1
    assert used == {"a": 2, "b": 2, "c": 2}


async def test_load_is_spread_before_the_preferred_worker_is_full() -> None:
    cluster, members = placement()
    for name in "abcd":
        members.add(name, places=100)
    used = Counter([(await take(cluster))[0] for _ in range(40)])
    assert max(used.values()) <= 15
    assert len(used) == 4


async def test_all_fronts_choose_the_same_worker_for_a_package() -> None:
    recipe = PackageRecipe(name="left-pad", version="1.0.0")
    chosen = set()
    for _ in range(2):
        cluster, members = placement()
        for name in "abcdef":
            members.add(name)
        placed = PlacedExecution(cluster, Execution(code="", profile=Profile("npm"), recipe=recipe), "r")
        found = cluster.try_choose(placed)
        assert found is not None
        assert found[0] is not None
        chosen.add(found[0].name)
    assert len(chosen) == 1


async def test_worker_with_the_package_is_preferred() -> None:
    recipe = PackageRecipe(name="left-pad", version="1.0.0")
    for fields in ({"packages": ["left-pad@1.0.0"]}, {"spares": ["left-pad@1.0.0"]}):
        cluster, members = placement()
        for name in "abcde":
            members.add(name)
        members.add("has-it", **fields)
        placed = PlacedExecution(cluster, Execution(code="", profile=Profile("npm"), recipe=recipe), "r")
        found = cluster.try_choose(placed)
        assert found is not None
        assert found[0] is not None
        assert found[0].name == "has-it"


async def test_busy_worker_is_not_asked() -> None:
    cluster, members = placement()
    worker = members.add("a", used={"other": {"quickjs": 1}, "me": {"quickjs": 2}})
    assert (await take(cluster))[0] == "a"
    with pytest.raises(Busy, match=r"No worker has a free place. None became free within 0.05 s"):
        await take(cluster)
    link: Any = worker.link
    assert link.opened == 1


async def test_silent_draining_or_unsuitable_worker_is_not_asked() -> None:
    cluster, members = placement()
    members.add("silent").last_seen -= 60
    members.add("draining", is_draining=True)
    members.add("refused").problem = "it has another version"
    members.add("lacks-it", engines=["deno"])
    with pytest.raises(Busy, match="No worker is connected"):
        await take(cluster)


async def test_saved_state_needs_the_same_bundle() -> None:
    from hutch.session.turn import Turn

    cluster, members = placement()
    members.add("other", bundle="c")
    turn = Turn(number=1, state=None, max_bytes=1)
    assert (await take(cluster))[0] == "other"
    with pytest.raises(Busy):
        await take(cluster, turn=turn)


async def test_owners_take_turns_when_they_wait() -> None:
    cluster, members = placement(queue_seconds=30)
    members.add("a", places=1)
    _, placed, runner = await take(cluster, "first")
    order: list[str] = []

    async def wait(owner: str) -> None:
        _, placed, runner = await take(cluster, owner)
        order.append(owner)
        placed.release(runner, owner=owner)

    tasks = [asyncio.ensure_future(wait("many")) for _ in range(5)]
    await asyncio.sleep(0)
    tasks.append(asyncio.ensure_future(wait("one")))
    await asyncio.sleep(0)
    assert cluster.wanted()["quickjs"] == 7
    placed.release(runner, owner="first")
    await asyncio.gather(*tasks)
    assert order.index("one") <= 1
    assert cluster.wanted() == {"quickjs": 0, "process": 0}


async def test_queue_is_bounded() -> None:
    cluster, members = placement(max_queue=5, queue_seconds=30)
    members.add("a", places=0)
    tasks = [asyncio.ensure_future(take(cluster, "bo")) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(RateLimited, match="max_queue_per_owner"):
        await take(cluster, "bo")
    tasks.append(asyncio.ensure_future(take(cluster, "ann")))
    await asyncio.sleep(0)
    with pytest.raises(Busy, match="max_queue"):
        await take(cluster, "cy")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert cluster.wanted()["quickjs"] == 0


async def test_cancelled_execution_gives_its_place_back() -> None:
    cluster, members = placement(queue_seconds=30)
    members.add("a", places=1)
    _, placed, runner = await take(cluster)
    waiting = asyncio.ensure_future(take(cluster))
    await asyncio.sleep(0)
    placed.release(runner, owner="bo")
    # Cancel the task after the place was given to it and before the task runs.
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert cluster.wanted()["quickjs"] == 0
    assert (await take(cluster))[0] == "a"


@pytest.mark.parametrize(
    ("one", "other", "compatible"),
    [
        ("0.2.0", "0.2.9", True),
        ("0.2.0", "0.3.1", True),
        ("0.3.0", "0.2.0", True),
        ("0.2.0", "0.4.0", False),
        ("1.2.0", "0.2.0", False),
        ("odd", "odd", True),
        ("odd", "0.1.0", False),
    ],
)
def test_versions_may_be_one_minor_version_apart(one: str, other: str, compatible: bool) -> None:
    assert are_compatible(one, other) == compatible


def test_worker_with_another_version_or_weaker_isolation_gets_no_work() -> None:
    members = Members()
    worker = members.add("a", isolation="process").announcement
    assert worker_problem(worker, "1.1.0", Settings()) is None
    assert worker_problem(worker, "1.2.0", Settings()) == (
        "it has version 1.0.0, and this one is 1.2.0: they may be one minor version apart"
    )
    assert worker_problem(worker, "1.0.0", Settings(isolation="container")) == (
        "its isolation is process, and the setting isolation requires container"
    )
