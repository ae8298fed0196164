"""What a run's requests say of the credentials that were sent with them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

from hutch.egress.fetch import Hop
from hutch.errors import SettingError


class Verdict(msgspec.Struct, frozen=True):
    """Credentials that were refused, with the status and by whom, and those that were taken."""

    refused: dict[str, Hop]
    taken: set[str]

    @property
    def status(self) -> int | None:
        """What was answered to the last that was refused."""
        statuses = [hop.status for hop in self.refused.values()]
        return statuses[-1] if statuses else None


def judge(hops: Iterable[Hop], expire_on: frozenset[int]) -> Verdict:
    """The last word on each counts: who is refused, gets a new session and is let in, was not refused."""
    refused: dict[str, Hop] = {}
    taken: set[str] = set()
    for hop in hops:
        if hop.status is None:
            continue
        for credential in hop.credentials:
            if hop.status in expire_on:
                refused[credential] = hop
                taken.discard(credential)
            elif 200 <= hop.status <= 299:
                refused.pop(credential, None)
                taken.add(credential)
    return Verdict(refused, taken)


@lru_cache(maxsize=16)
def statuses(text: str) -> frozenset[int]:
    """Of `401,403,407` or `401-499`. Raises SettingError."""
    found: set[int] = set()
    for part in filter(None, (each.strip() for each in text.split(","))):
        first, dash, last = (each.strip() for each in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise _wrong(text)
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[0] < 400 or numbers[-1] > 599:
            raise _wrong(text)
        found.update(numbers)
    return frozenset(found)


def _wrong(text: str) -> SettingError:
    return SettingError(
        f"ability_expire_on: expected statuses from 400 to 599, such as 401,403,407 or 401-499, got {text!r}."
    )
