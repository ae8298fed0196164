"""What guest code was made into for processes that are used once; see `guest/preparing`."""

from __future__ import annotations

from collections import Counter, OrderedDict

from hutch.sandbox.profile import profile_for
from hutch.session.host import Limits
from hutch.session.messages import Job

PREPARER = profile_for("quickjs")
"""Who makes programs: it has made many before, a process that is used once never has."""
PREPARE = Job("prepare", "")
PREPARE_SECONDS = 0.5
"""No longer than this: it may be busy with something else of the same owner."""
PREPARE_LIMITS = Limits(max_result_bytes=64 * 1024 * 1024)
UNPREPARED = 3
"""One is started for that alone once so many executions of an owner had to do without."""

MAX_PROGRAMS = 128
MAX_PROGRAM_CHARS = 16 * 1024
_MAX_OWNERS = 1_000


class Programs:
    """The last ones, for each owner alone: another's could be what that one made of its process."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], Job] = OrderedDict()
        self._unprepared: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, owner: str, code: str) -> Job | None:
        found = self._kept.get((owner, code))
        if found is not None:
            self._kept.move_to_end((owner, code))
        return found

    def keep(self, owner: str, code: str, program: Job) -> None:
        if len(program.input) <= MAX_PROGRAM_CHARS:
            self._kept[owner, code] = program
        if len(self._kept) > MAX_PROGRAMS:
            self._kept.popitem(last=False)

    def clear(self) -> None:
        self._kept.clear()

    def do_with(self, owner: str) -> None:
        """Somebody was at hand who makes them."""
        del self._unprepared[owner]

    def do_without(self, owner: str) -> bool:
        """Nobody was; whether that has been so often enough."""
        if len(self._unprepared) >= _MAX_OWNERS:
            self._unprepared.clear()
        self._unprepared[owner] += 1
        return self._unprepared[owner] % UNPREPARED == 0
