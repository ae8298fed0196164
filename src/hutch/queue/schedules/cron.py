"""Cron expressions with time zones.

When a change of daylight saving time skips an hour, a time in this hour comes directly after the change. When
an hour occurs twice, a time in this hour comes only once. Debian's cron does the same. Expressions with
intervals, such as `*/10 * * * *`, follow the elapsed time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hutch.errors import InvalidInput

MAX_CRON_CHARS = 200


def ticks(cron: str, timezone: str, after_ms: int) -> Iterator[int]:
    """Yields the times of a cron expression after `after_ms`, in milliseconds since 1970. Raises
    InvalidInput.
    """
    from cronsim import CronSim, CronSimError  # loaded only where schedules are used

    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            "timezone", f"expected a name such as Europe/Berlin, got {timezone[:60]!r}."
        ) from None
    try:
        if len(cron) > MAX_CRON_CHARS:
            raise CronSimError("it is too long")
        found = CronSim(cron, datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone))
    except CronSimError as error:
        message = f"expected an expression such as `0 9 * * 1-5`, got {cron[:60]!r}: {error}."
        raise InvalidInput("cron", message) from None
    while True:
        try:
            yield int(next(found).timestamp() * 1000)
        except StopIteration:
            return
        except CronSimError:
            return  # no such time in the next 50 years


def next_tick(cron: str, timezone: str, after_ms: int) -> int:
    """Returns the first time of a cron expression after `after_ms`. Raises InvalidInput if there is none."""
    for tick in ticks(cron, timezone, after_ms):
        return tick
    raise InvalidInput("cron", f"expected a time that comes, got {cron[:60]!r}.")
