"""Shares of each owner in a pool: how many processes, places in the queue, and executions in shared processes
the owner may have.
"""

from __future__ import annotations

from typing import NamedTuple

from hutch.owner_shares import OwnerShares, OwnerTurns
from hutch.sandbox.runner.base import Runner
from hutch.sandbox.runner.profile import Profile
from hutch.settings import Settings


class ShareLimit(NamedTuple):
    """A limit that one owner has reached, and a sentence that explains it."""

    limit: str
    text: str


class PoolShares:
    def __init__(self, settings: Settings) -> None:
        self.processes = OwnerShares(settings.max_processes, settings.max_processes_per_owner)
        """Processes that run executions, by holder."""
        self.queue = OwnerShares(settings.max_queue, settings.max_queue_per_owner)
        """Executions that wait for a runner, by owner."""
        self._settings = settings
        self._shared_executions = _shared_executions(settings)
        # Single-use and shared processes have separate turns, because each execution takes its own single-use
        # process, but a shared process serves many executions.
        self._single_use_turns = OwnerTurns()
        self._shared_turns = OwnerTurns()

    def owner_key(self, owner: str) -> str:
        """Returns the owner of the shared processes that run executions of `owner`. If owners share
        processes, returns the empty string for every owner.
        """
        return "" if self._settings.owners_share else owner

    def holder(self, profile: Profile, owner: str) -> str:
        """Returns the owner in whose share a process for `owner` is counted."""
        return owner if profile.engine_spec.own_process else self.owner_key(owner)

    def may_run(self, profile: Profile, owner: str) -> bool:
        """Returns False if owners share processes and this owner already has as many executions in shared
        processes as its share allows.
        """
        if self._shared_executions is None or profile.engine_spec.own_process:
            return True
        return self._shared_executions.may_take(owner)

    def take(self, runner: Runner, owner: str, holder: str) -> None:
        """Counts an execution that is assigned to the runner."""
        if self._shared_executions is not None and not runner.profile.engine_spec.own_process:
            self._shared_executions.take(owner)
            self._shared_turns.take(owner)
        if runner.holder is None:
            runner.holder = holder
            self.processes.take(holder)

    def turns(self, profile: Profile) -> OwnerTurns:
        """Returns the object that decides which owner gets the next runner of this profile."""
        return self._single_use_turns if profile.engine_spec.own_process else self._shared_turns

    def set_weight(self, owner: str, weight: float) -> None:
        self._single_use_turns.set_weight(owner, weight)
        self._shared_turns.set_weight(owner, weight)

    def give_back(self, runner: Runner, owner: str) -> None:
        """Stops counting an execution of the runner. If the runner has no other execution, also stops
        counting the runner.
        """
        if self._shared_executions is not None and not runner.profile.engine_spec.own_process:
            self._shared_executions.give_back(owner)
        if runner.in_flight == 0:
            self.give_back_process(runner)

    def give_back_process(self, runner: Runner) -> None:
        if runner.holder is not None:
            self.processes.give_back(runner.holder)
            runner.holder = None

    def explain_wait(self, profile: Profile, owner: str) -> ShareLimit | None:
        """Returns the limit of this owner that makes an execution wait, or None if the execution waits for
        another reason.
        """
        if not self.may_run(profile, owner):
            assert self._shared_executions is not None
            return ShareLimit(
                "quickjs_vms",
                "Your executions occupy your share of the shared processes: one owner may have"
                f" {self._shared_executions.per_owner} executions in them (quickjs_vms).",
            )
        is_all = self.processes.per_owner == self._settings.max_processes
        if is_all or self.processes.may_take(self.holder(profile, owner)):
            return None
        return ShareLimit(
            "max_processes_per_owner",
            "Your executions occupy your share of the runner processes: one owner may have"
            f" {self.processes.per_owner} of them (max_processes_per_owner).",
        )


def _shared_executions(settings: Settings) -> OwnerShares | None:
    """Returns how many executions each owner may have in shared processes, or None if owners do not share
    processes.
    """
    if not settings.owners_share:
        return None
    executions = settings.quickjs_vms * settings.quickjs_processes
    has_all = settings.max_processes_per_owner >= settings.max_processes
    return OwnerShares(executions, executions if has_all else 0)
