"""Chooses the machine of each execution: a worker, or this process while no worker has a free place."""

from __future__ import annotations

import math
import random
import zlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from hutch.cluster import messages
from hutch.cluster.membership import KnownWorker, Membership
from hutch.cluster.messages import (
    PLACE_KINDS,
    FrameType,
    Open,
    OpenEngine,
    OpenPackage,
    OpenScript,
    PlaceKind,
)
from hutch.cluster.remote_runner import RemoteRunner, WorkerRefused
from hutch.cluster.wait_queue import PlaceQueue, PlaceWaiter
from hutch.cluster.worker import places_of
from hutch.kernel.execution import Execution
from hutch.kernel.placement import PackageRecipe, ScriptRecipe
from hutch.sandbox.pool.lease import Lease
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import ENGINES, Profile, profile_for
from hutch.session.host import Session
from hutch.session.run import Result
from hutch.settings import Settings

# An execution goes to its preferred worker only if the load of that worker is at most this many times the
# average.
MAX_LOAD_FACTOR = 1.25
MAX_AFFINITIES = 10_000
# Maximum number of workers that are compared. If there are more, a random sample of this size is compared.
MAX_COMPARED = 16


class ClusterPlacement:
    """Places the executions of this front."""

    def __init__(self, settings: Settings, pool: Pool, front: str, bundle: str) -> None:
        self.pool = pool
        self._front = front
        self.bundle = bundle
        self._runs_locally = settings.cluster_local
        self._local_places = places_of(settings)
        self.local_in_flight: Counter[PlaceKind] = Counter()
        self.remote_in_flight: Counter[PlaceKind] = Counter()
        self.queue = PlaceQueue(settings)
        self._affinities: OrderedDict[str, str] = OrderedDict()
        self.membership: Membership
        self.on_gateway: Callable[[str, Any], None] = lambda _revision, _gateway: None
        """Called with the gateway of a script before the script is sent to a worker."""

    def lease(self, execution: Execution, run_id: str) -> Lease:
        """Returns a lease that chooses the machine when it is entered."""
        placed = PlacedExecution(self, execution, run_id)
        return Lease(placed, execution.profile, execution.owner)

    def has_workers(self, profile: Profile) -> bool:
        return any(True for _ in self.membership.usable(profile.engine))

    def wanted(self) -> dict[str, int]:
        """Returns the number of places that executions of this front use or wait for."""
        return {
            kind: self.remote_in_flight[kind] + self.local_in_flight[kind] + self.queue.waiting(kind)
            for kind in PLACE_KINDS
        }

    # --- choosing ---

    async def choose(self, placed: PlacedExecution) -> KnownWorker | None:
        """Takes a place. Returns the worker, or None to use this process. Waits while there is no free place.
        Raises Busy.
        """
        if not self.queue.has(placed.kind, placed.owner) and (found := self.try_choose(placed)) is not None:
            return found[0]
        waiter = PlaceWaiter(placed.kind, placed.owner, lambda: self.try_choose(placed))
        return await self.queue.wait(waiter, self._reason(placed))

    def try_choose(self, placed: PlacedExecution) -> tuple[KnownWorker | None] | None:
        """Takes a place if there is one. Returns a tuple that contains the worker, or None to use this
        process. Returns None instead of a tuple if there is no free place.
        """
        worker = self._choose_worker(placed) if placed.is_portable else None
        if worker is not None:
            placed.take(worker)
            return (worker,)
        if self._may_run_here(placed):
            placed.take_here()
            return (None,)
        return None

    def _may_run_here(self, placed: PlacedExecution) -> bool:
        if not placed.is_local:
            return False
        # An execution that no worker can run has to run here, even if all local places are taken.
        return not placed.is_portable or (
            self._runs_locally and self.local_in_flight[placed.kind] < self._local_places[placed.kind]
        )

    def _choose_worker(self, placed: PlacedExecution) -> KnownWorker | None:
        kind, workers = placed.kind, self.membership.workers
        if not workers:
            return None
        # Compute the average load from the front's own total, because adding up the load of many workers
        # would take longer than an execution.
        max_load = max(1, math.ceil(MAX_LOAD_FACTOR * (self.remote_in_flight[kind] + 1) / len(workers)))
        preferred = workers.get(self._affinities.get(placed.affinity, ""))
        if preferred is not None and not self._can_run(preferred, placed):
            preferred = None
        if (
            preferred is not None
            and preferred.in_flight[kind] < max_load
            and preferred.free(kind, self._front) > 0
        ):
            self._affinities.move_to_end(placed.affinity)
            return preferred
        chosen = self._best(placed, max_load)
        if chosen is not None and preferred is None:
            self._affinities[placed.affinity] = chosen.id
            while len(self._affinities) > MAX_AFFINITIES:
                self._affinities.popitem(last=False)
        return chosen

    def _best(self, placed: PlacedExecution, max_load: int) -> KnownWorker | None:
        """Returns the best worker with a free place. Of many workers, compares only a random sample."""
        candidates = [*self.membership.workers.values()]
        if len(candidates) > MAX_COMPARED and placed.affinity in self._affinities:
            some = [
                worker
                for worker in random.sample(candidates, MAX_COMPARED)
                if self._has_place(worker, placed)
            ]
            candidates = some or candidates
        free = (worker for worker in candidates if self._has_place(worker, placed))
        return min(free, key=lambda worker: self._rank(worker, placed, max_load), default=None)

    def _has_place(self, worker: KnownWorker, placed: PlacedExecution) -> bool:
        return self._can_run(worker, placed) and worker.free(placed.kind, self._front) > 0

    def _can_run(self, worker: KnownWorker, placed: PlacedExecution) -> bool:
        if placed.needs_bundle and worker.announcement.bundle != self.bundle:
            return False
        return worker.is_usable(placed.engine)

    def _rank(self, worker: KnownWorker, placed: PlacedExecution, max_load: int) -> tuple[bool, int, int]:
        """Returns the sort key of a worker: workers below `max_load` come first, then workers that have the
        package. The rest of the order is the same at every front, so that fronts agree without communication.
        """
        distance = 2
        if placed.package in worker.announcement.spares:
            distance = 0
        elif placed.package in worker.announcement.packages:
            distance = 1
        is_loaded = worker.in_flight[placed.kind] >= max_load
        return is_loaded, distance, _hash(placed.affinity, worker.id)

    def _reason(self, placed: PlacedExecution) -> str:
        if not any(True for _ in self.membership.usable(placed.engine)):
            return "No worker is connected."
        return "No worker has a free place."

    def place_freed(self) -> None:
        """Gives places to waiting executions, because a place may have become free."""
        self.queue.serve()


class PlacedExecution:
    """One execution of a front. Takes and gives back its runner, here or on a worker."""

    def __init__(self, placement: ClusterPlacement, execution: Execution, run_id: str) -> None:
        self._placement = placement
        self._run_id = run_id
        self._execution = execution
        profile, recipe = execution.profile, execution.recipe
        self.engine = profile.engine
        self.owner = execution.owner
        self.kind: PlaceKind = "process" if profile.engine_spec.own_process else "quickjs"
        self.is_portable = recipe is not None or (
            profile.engine in ENGINES and profile == profile_for(profile.engine)
        )
        self.is_local = not isinstance(recipe, PackageRecipe)
        # The state of a suspended execution fits only the bundle that made it. All other executions can run
        # on workers with another bundle.
        self.needs_bundle = bool(
            execution.saved or execution.turn or execution.is_durable or execution.checkpoint_after_ms
        )
        self.package = f"{recipe.name}@{recipe.version}" if isinstance(recipe, PackageRecipe) else ""
        self.affinity = self.package or execution.owner
        self._worker: KnownWorker | None = None
        self._runner: RemoteRunner | None = None
        self._is_here = False

    def take(self, worker: KnownWorker) -> None:
        self._worker = worker
        self._placement.remote_in_flight[self.kind] += 1
        self._runner = worker.open_runner(self._execution.profile, self.kind, self._run_id)
        self._runner.can_suspend = worker.announcement.bundle == self._placement.bundle

    def take_here(self) -> None:
        self._is_here = True
        self._placement.local_in_flight[self.kind] += 1

    async def acquire(self, profile: Profile, owner: str) -> Runner:
        """Takes a runner. Raises Busy, or the error that prevented a worker from starting a runner."""
        while True:
            try:
                worker = await self._placement.choose(self)
                if worker is None:
                    return await self._placement.pool.acquire(profile, owner)
            except BaseException:
                self._give_up()
                raise
            runner = self._runner
            assert runner is not None
            try:
                worker.link.send(FrameType.OPEN, runner.number, messages.encode(self._open()))
                if self.kind == "process":
                    # Wait until the worker has a runner. Installing a package may take long, and should not
                    # count towards the time limit, which starts when this method returns.
                    await runner.wait_leased()
            except WorkerRefused:
                worker.is_full.add(self.kind)
                self._give_back(runner, None, None)
                continue
            except BaseException:
                self._give_back(runner, None, None)
                raise
            recipe = self._execution.recipe
            if isinstance(recipe, PackageRecipe) and recipe.on_details and runner.details is not None:
                assert runner.details.package is not None
                recipe.on_details(runner.details.package)
            return runner

    def release(
        self, runner: Runner, result: Result | None = None, session: Session | None = None, *, owner: str
    ) -> None:
        if isinstance(runner, RemoteRunner):
            if runner.refusal is not None and self._worker is not None:
                self._worker.is_full.add(self.kind)
            self._give_back(runner, result, session)
        else:
            self._placement.pool.release(runner, result, session, owner=owner)
            self._give_up()

    def _give_back(self, runner: RemoteRunner, result: Result | None, session: Session | None) -> None:
        runner.close(result, session)
        if self._worker is not None:
            self._worker.forget_runner(runner, self.kind)
            self._placement.remote_in_flight[self.kind] -= 1
        self._worker = self._runner = None
        self._placement.place_freed()

    def _give_up(self) -> None:
        """Gives back the place, if one was taken."""
        if self._runner is not None:
            self._give_back(self._runner, None, None)
        elif self._is_here:
            self._is_here = False
            self._placement.local_in_flight[self.kind] -= 1
            self._placement.place_freed()

    def _open(self) -> Open:
        execution, recipe = self._execution, self._execution.recipe
        profile: OpenEngine | OpenPackage | OpenScript
        if isinstance(recipe, PackageRecipe):
            profile = OpenPackage(
                name=recipe.name,
                version=recipe.version,
                env=recipe.env,
                caller=recipe.caller,
                tool=recipe.tool,
                op=recipe.op,
            )
        elif isinstance(recipe, ScriptRecipe):
            self._placement.on_gateway(recipe.revision, recipe.handler)
            if self._worker is not None and self._runner is not None:
                self._worker.gateways.add(recipe.revision)
                self._runner.gateway = recipe.revision
            profile = OpenScript(url=recipe.url, revision=recipe.revision, cwd=recipe.cwd)
        else:
            profile = OpenEngine(engine=execution.profile.engine)
        return Open(
            session=self._run_id,
            owner=execution.owner,
            profile=profile,
            memory_limit_bytes=execution.limits.memory_limit_bytes,
            max_log_lines=execution.limits.max_log_lines,
            max_log_chars=execution.limits.max_log_chars,
        )


@lru_cache(maxsize=65_536)
def _hash(key: str, worker: str) -> int:
    return zlib.crc32(f"{key}\0{worker}".encode(errors="surrogatepass"))
