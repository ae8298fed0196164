"""Decides which single-use runners to keep ready: those of recently used profiles."""

from __future__ import annotations

from collections.abc import Iterable

from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile
from hutch.settings import Settings

# Maximum number of profiles without a preload. The number is small, because each change of a gateway's tools
# creates such a profile, and the profile from before the change is no longer used.
MAX_PLAIN_PROFILES = 4


class SparePolicy:
    """Tracks recently used profiles. Old profiles are dropped, together with their stdin payload."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        # The profiles are in the order of their last use.
        self._last_used: dict[Profile, float] = {}

    def record_use(self, profile: Profile, now: float) -> None:
        """Records the use of a profile. If there are too many profiles, drops the least recently used ones.
        The number is limited because callers can create any number of profiles with different environment
        variables.
        """
        if not profile.keep_spare:
            return
        self._last_used.pop(profile, None)
        self._last_used[profile] = now
        max_profiles = self._settings.max_spares if profile.has_preload else MAX_PLAIN_PROFILES
        similar = [other for other in self._last_used if other.has_preload == profile.has_preload]
        for oldest in similar[: max(0, len(similar) - max_profiles)]:
            self.forget(oldest)

    def profiles(self) -> set[Profile]:
        return {*self._last_used}

    def target(self, profile: Profile) -> int:
        if profile not in self._last_used:
            return 0
        return 1 if profile.has_preload else self._settings.deno_warm

    def over_memory(self, warm: Iterable[Runner]) -> list[Runner]:
        """Returns the least recently used spares that do not fit into `spare_bytes`."""
        remaining, exceeding = self._settings.spare_bytes, []
        preloaded = [runner for runner in warm if runner.profile.has_preload]
        for runner in sorted(preloaded, key=lambda runner: runner.idle_since, reverse=True):
            remaining -= runner.memory_used()
            if remaining < 0:
                exceeding.append(runner)
        return exceeding

    def forget(self, profile: Profile) -> None:
        self._last_used.pop(profile, None)

    def expire(self, now: float) -> None:
        for profile, used_at in [*self._last_used.items()]:
            limit = self._settings.spare_seconds if profile.has_preload else self._settings.idle_seconds
            if now - used_at > limit:
                self.forget(profile)
