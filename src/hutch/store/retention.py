"""Clock that decides which records are old enough to be deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import msgspec

from hutch.store.tables.meta import MetaTable
from hutch.text import format_rfc3339

logger = logging.getLogger("hutch.store")

META_KEY = "retention_clock"
MAX_STEP = timedelta(days=1)
"""Maximum step ahead that is trusted at once. A reading that is further ahead of the last trusted one is
trusted only after `CONFIRMED_AFTER`.
"""
CONFIRMED_AFTER = timedelta(days=1)
MAX_GAP = timedelta(days=8)
"""Maximum time between two readings of a clock that has jumped ahead. After a longer gap, the wait of
`CONFIRMED_AFTER` starts again. It is longer than a week, so that a server that runs once a week also deletes
old records.
"""
_SAVED_EVERY = timedelta(minutes=10)


class _State(msgspec.Struct, frozen=True):
    trusted: datetime
    ahead_since: datetime | None = None
    """First reading after the clock jumped ahead."""
    ahead: datetime | None = None
    """Last reading since the clock jumped ahead."""


class RetentionClock:
    """System clock that follows a jump far ahead only after a day.

    With a clock that is wrongly set ahead, all records would look old and be deleted, and deleted records
    cannot be restored. So after a jump ahead, this clock stands still until the system clock has run for a
    day from there. If the system clock is set back, this clock follows at once, because an earlier time
    deletes less. The state of this clock is in the database. So restarts do not reset it, and a server with a
    wrong clock does not delete records that other servers keep.
    """

    def __init__(self, meta: MetaTable, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._meta = meta
        self._clock = clock

    async def now(self, *, plus_seconds: float = 0.0) -> str:
        """Returns the trusted time plus an offset, in the format of the tables. Raises StoreError."""
        reading = self._clock()
        text = await self._meta.get(META_KEY)
        if text is None:
            text = await self._meta.put_first(META_KEY, _encode(_State(reading)))
        state = msgspec.json.decode(text, type=_State)
        new = _next_state(state, reading)
        if new.ahead_since is not None and new.ahead_since != state.ahead_since:
            logger.warning(
                "the clock jumped from %s to %s: old records are deleted only if it stays there for a day",
                format_rfc3339(state.trusted),
                format_rfc3339(reading),
            )
        if _differs(new, state):
            # A failed swap is no problem: another server has written its state meanwhile, which is as good as
            # this one.
            await self._meta.swap(META_KEY, text, _encode(new))
        return format_rfc3339(new.trusted + timedelta(seconds=plus_seconds))


def _next_state(state: _State, reading: datetime) -> _State:
    if reading <= state.trusted + MAX_STEP:
        return _State(reading)
    if (
        state.ahead_since is None
        or state.ahead is None
        or not state.ahead - MAX_STEP <= reading <= state.ahead + MAX_GAP
    ):
        return _State(state.trusted, ahead_since=reading, ahead=reading)
    if reading - state.ahead_since >= CONFIRMED_AFTER:
        return _State(reading)
    return _State(state.trusted, ahead_since=state.ahead_since, ahead=reading)


def _differs(new: _State, old: _State) -> bool:
    """Returns True if the states differ enough to write the new one to the database."""
    if new.ahead_since != old.ahead_since:
        return True
    new_time, old_time = new.ahead or new.trusted, old.ahead or old.trusted
    return abs(new_time - old_time) >= _SAVED_EVERY


def _encode(state: _State) -> str:
    return msgspec.json.encode(state).decode()
