"""Limits the time to validate a flow."""

from __future__ import annotations

import time

from hutch.problems import Problem
from hutch.protocols.rep.ir.problems import InvalidFlow


class ValidationBudget:
    """CPU time that a thread may spend on a flow. Other threads can stop the validation.

    The budget counts CPU time, so that a busy machine does not make a flow invalid.
    """

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds` is None for no limit."""
        self._seconds = seconds
        self._ends_at: float | None = None
        self._is_stopped = False

    def stop(self) -> None:
        """Makes the validation end at its next check. Called when the result of the validation is no longer
        needed.
        """
        self._is_stopped = True

    def check(self) -> None:
        """Raises InvalidFlow if the time is over. The time starts with the first call."""
        if self._is_stopped:
            raise InvalidFlow([Problem("", "the validation was stopped")])
        if self._seconds is None:
            return
        now = time.thread_time()
        if self._ends_at is None:
            self._ends_at = now + self._seconds
        elif now > self._ends_at:
            message = f"takes more than {self._seconds:g} s to validate; split it into smaller flows"
            raise InvalidFlow([Problem("", message)])


UNLIMITED = ValidationBudget()
