"""Precompiles guest code for single-use deno processes in a warm quickjs runner."""

from __future__ import annotations

from collections import Counter, OrderedDict

from hutch.kernel.execution import INTERNAL_PROTOCOL, Execution, Recorder
from hutch.sandbox.pool.lease import Lease
from hutch.sandbox.pool.pool import Pool
from hutch.sandbox.runner.profile import profile_for
from hutch.session.limits import Limits
from hutch.session.messages import Job
from hutch.session.run import Result, RunHandle

PRECOMPILE_PROFILE = profile_for("quickjs")
PREPARE_JOB = Job("prepare", "")
PREPARE_SECONDS = 0.5
"""Maximum time of a precompilation. It is short, because the runner may be busy with another execution of the
same owner.
"""
PREPARE_LIMITS = Limits(max_result_bytes=1024 * 1024)
MAX_CODE_CHARS = 32 * 1024
"""Maximum length of code to precompile. Longer code is compiled by the process that runs it, so that other
executions of the owner need not wait.
"""
MAX_CONCURRENT = 16
"""Maximum concurrent compilations of one owner."""
START_AFTER_MISSES = 3
"""Number of executions of one owner without precompilation after which a quickjs runner is started in
advance.
"""

MAX_CACHED_PROGRAMS = 128
MAX_CACHED_CHARS = 32 * 1024
"""Maximum length of a cached program together with its source."""
_MAX_OWNERS = 1_000


class Precompiler:
    """Compiles guest code and caches the programs. Each owner has its own cache entries, because a
    compromised runner could return a manipulated program.
    """

    def __init__(self, pool: Pool, record: Recorder, *, owners_share: bool) -> None:
        self._pool = pool
        self._record = record
        self._owners_share = owners_share
        self.cache: OrderedDict[tuple[str, str], Job] = OrderedDict()
        self._misses: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    async def prepare(self, owner: str, code: str, id: str) -> Job | Result | None:
        """Returns the compiled program, or a failed Result if the code is invalid. Returns None if the
        program is not available in time. In that case the process that runs the code also compiles the code.
        """
        if (cached := self.cached(owner, code)) is not None:
            return cached
        if self._owners_share or len(code) > MAX_CODE_CHARS or self._running[owner] >= MAX_CONCURRENT:
            return None
        lease = self._pool.try_lease(PRECOMPILE_PROFILE, owner)
        if lease is None:
            self._count_miss(owner)
            return None
        del self._misses[owner]
        self._running[owner] += 1
        try:
            result = await self._compile(lease, owner, code, id)
        finally:
            self._running[owner] -= 1
            if not self._running[owner]:
                del self._running[owner]
        if result.ok and result.result_json is not None:
            program = Job("program", result.result_json.decode())
            self.add_to_cache(owner, code, program)
            return program
        # Report only errors with a line. Others, such as a stack overflow, may not be caused by the code.
        error = result.error
        return result if error is not None and error.name == "SyntaxError" and error.line else None

    async def _compile(self, lease: Lease, owner: str, code: str, id: str) -> Result:
        run = RunHandle(id)
        async with lease as runner:
            result = await runner.run(run, code, PREPARE_LIMITS, job=PREPARE_JOB, max_seconds=PREPARE_SECONDS)
        run.end(result)
        execution = Execution(
            code=code,
            job=PREPARE_JOB,
            profile=PRECOMPILE_PROFILE,
            limits=PREPARE_LIMITS,
            owner=owner,
            protocol=INTERNAL_PROTOCOL,
            label="precompile",
        )
        self._record(execution, run, result)
        return result

    def _count_miss(self, owner: str) -> None:
        if len(self._misses) >= _MAX_OWNERS:
            self._misses.clear()
        self._misses[owner] += 1
        should_start = self._misses[owner] % START_AFTER_MISSES == 0
        if should_start and not self._pool.has_unused(PRECOMPILE_PROFILE):
            self._pool.reserve_start(PRECOMPILE_PROFILE)

    def cached(self, owner: str, code: str) -> Job | None:
        program = self.cache.get((owner, code))
        if program is not None:
            self.cache.move_to_end((owner, code))
        return program

    def add_to_cache(self, owner: str, code: str, program: Job) -> None:
        if len(code) + len(program.input) <= MAX_CACHED_CHARS:
            self.cache[owner, code] = program
        if len(self.cache) > MAX_CACHED_PROGRAMS:
            self.cache.popitem(last=False)
