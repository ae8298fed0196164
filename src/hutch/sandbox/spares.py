"""Which single-use runners are worth having ready: those like the ones that were used lately."""

from __future__ import annotations

from collections.abc import Iterable

from hutch.sandbox.profile import Profile
from hutch.sandbox.runner import Runner
from hutch.settings import Settings

# Of those that load nothing: each state of a gateway's tools is a profile of its own, and soon of no use.
MAX_PLAIN = 4


class Spares:
    """How many spares each profile deserves. What is long out of use is forgotten, with all it was told."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # The one used last at the end.
        self._used: dict[Profile, float] = {}

    def use(self, profile: Profile, now: float) -> None:
        """Those that are crowded out by it are forgotten at once: every env of every caller makes another."""
        if not profile.spared:
            return
        self._used.pop(profile, None)
        self._used[profile] = now
        most = self._settings.max_spares if profile.is_prepared else MAX_PLAIN
        alike = [each for each in self._used if each.is_prepared == profile.is_prepared]
        for each in alike[: max(0, len(alike) - most)]:
            self.forget(each)

    def profiles(self) -> set[Profile]:
        return {*self._used}

    def wanted(self, profile: Profile) -> int:
        if profile not in self._used:
            return 0
        return 1 if profile.is_prepared else self._settings.deno_warm

    def beyond_memory(self, warm: Iterable[Runner]) -> list[Runner]:
        """Of those that loaded something, the ones used longest ago that there is no memory for."""
        left, beyond = self._settings.spare_bytes, []
        prepared = [each for each in warm if each.profile.is_prepared]
        for runner in sorted(prepared, key=lambda each: each.idle_since, reverse=True):
            left -= runner.memory_used()
            if left < 0:
                beyond.append(runner)
        return beyond

    def forget(self, profile: Profile) -> None:
        self._used.pop(profile, None)

    def expire(self, now: float) -> None:
        """Forgets what has not been used for too long."""
        for profile, at in [*self._used.items()]:
            limit = self._settings.spare_seconds if profile.is_prepared else self._settings.idle_seconds
            if now - at > limit:
                self.forget(profile)
