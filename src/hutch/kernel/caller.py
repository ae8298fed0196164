"""API key with which the executions of the current task were requested."""

from __future__ import annotations

from contextvars import ContextVar

caller_key: ContextVar[str | None] = ContextVar("hutch_caller_key", default=None)
"""Id of the user's API key; None for the operator and for callers without a key. New tasks inherit the id."""
