"""What guest code is made into for processes that are used once, by one that has made many before."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from hutch.sandbox.pool import Pool
from hutch.sandbox.profile import profile_for
from hutch.sandbox.runner import Runner
from hutch.session.host import Limits, Outcome
from hutch.session.messages import Job

PREPARER = profile_for("quickjs")
PREPARE = Job("prepare", "")
PREPARE_SECONDS = 0.5
"""No longer than this: it may be busy with something else of the same owner."""
PREPARE_LIMITS = Limits(max_result_bytes=1024 * 1024)
MAX_CODE_CHARS = 32 * 1024
"""Of longer code its own process makes the program: others of its owner shall not have to wait for it."""
MAX_OPEN = 16
"""Of one owner at once."""
UNPREPARED = 3
"""One is started for that alone once so many executions of an owner had to do without."""

MAX_PROGRAMS = 128
MAX_KEPT_CHARS = 32 * 1024
"""Of a program and the code that it was made of."""
_MAX_OWNERS = 1_000


class Programs:
    """Has them made, and keeps the last ones: for each owner alone, because whoever took over a process of an
    owner can say what comes out of it."""

    def __init__(self, pool: Pool, *, owners_share: bool) -> None:
        self._pool = pool
        self._owners_share = owners_share
        self._kept: OrderedDict[tuple[str, str], Job] = OrderedDict()
        self._unprepared: Counter[str] = Counter()
        self._open: Counter[str] = Counter()

    async def prepare(self, owner: str, code: str, id: str) -> Job | Outcome | None:
        """The program, or how the execution ended if the code makes none; None: its own process shall see."""
        if (kept := self.kept(owner, code)) is not None:
            return kept
        if self._owners_share or len(code) > MAX_CODE_CHARS or self._open[owner] >= MAX_OPEN:
            return None
        runner = self._pool.at_hand(PREPARER, owner)
        if runner is None:
            self._do_without(owner)
            return None
        del self._unprepared[owner]
        self._open[owner] += 1
        try:
            outcome = await self._made(runner, code, id)
        finally:
            self._open[owner] -= 1
            if not self._open[owner]:
                del self._open[owner]
        if outcome.ok and outcome.result_json is not None:
            program = Job("program", outcome.result_json.decode())
            self.keep(owner, code, program)
            return program
        # Whatever else went wrong need not be the code's fault; too little stack, say, has no place in it.
        error = outcome.error
        return outcome if error is not None and error.name == "SyntaxError" and error.line else None

    async def _made(self, runner: Runner, code: str, id: str) -> Outcome:
        session = runner.link.open(id, code, PREPARE_LIMITS, (), None, PREPARE)
        runner.began(session)
        giving_up = asyncio.get_running_loop().call_later(PREPARE_SECONDS, session.cancel)
        try:
            return await session.wait()
        except asyncio.CancelledError:
            session.cancel()
            # No longer than the grace: who hangs must be known.
            await asyncio.shield(session.wait())
            raise
        finally:
            giving_up.cancel()
            if session.outcome is not None:
                runner.ended(session.outcome, session)
            runner.link.forget(session)
            # Who is busy with something else is not to be ended for it; who hangs in this is.
            self._pool.release(runner, session.outcome if session.started else None, session)

    def _do_without(self, owner: str) -> None:
        if len(self._unprepared) >= _MAX_OWNERS:
            self._unprepared.clear()
        self._unprepared[owner] += 1
        is_worth_it = self._unprepared[owner] % UNPREPARED == 0
        if is_worth_it and not self._pool.has_coming(PREPARER):
            self._pool.claim(PREPARER)

    def kept(self, owner: str, code: str) -> Job | None:
        found = self._kept.get((owner, code))
        if found is not None:
            self._kept.move_to_end((owner, code))
        return found

    def keep(self, owner: str, code: str, program: Job) -> None:
        if len(code) + len(program.input) <= MAX_KEPT_CHARS:
            self._kept[owner, code] = program
        if len(self._kept) > MAX_PROGRAMS:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)
