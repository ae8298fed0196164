"""Context variable with the run to which the executions of the current task belong. This module imports
little, so that runtimes start quickly.
"""

from __future__ import annotations

from contextvars import ContextVar

parent_run: ContextVar[str | None] = ContextVar("hutch_parent_run", default=None)
"""Id of the batch or flow run. New tasks inherit the id."""
