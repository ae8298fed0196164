"""Errors for suspended runs that cannot be continued."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hutch.errors import ResumeError

if TYPE_CHECKING:
    from hutch.store.tables.durable.checkpoints import CheckpointRow

LOST_CLIENT = "The client of the run disconnected after the run had called a tool"


def not_found(run_id: str) -> ResumeError:
    return ResumeError("checkpoint_not_found", f"There is no suspended run {run_id}.")


def ended(run_id: str) -> ResumeError:
    return ResumeError("checkpoint_ended", f"The run {run_id} has ended.")


def expired(row: CheckpointRow) -> ResumeError:
    return ResumeError("checkpoint_expired", f"The run {row.run_id} was suspended until {row.expires_at}.")


def in_use(run_id: str) -> ResumeError:
    return ResumeError("checkpoint_in_use", f"Another process continues the run {run_id}.")


def cancelled() -> ResumeError:
    return ResumeError("cancelled", "The run was cancelled while it was suspended")
