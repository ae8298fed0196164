"""How much one run may take in all, the flows within it included, however it goes about it."""

from __future__ import annotations

MOST_BYTES = 256 * 1024 * 1024
"""Of what its steps give and what is told of them: it is in the memory, in the journal, or both."""
MOST_STEPS = 100_000
"""In flows within the flow, counted each time that these are begun."""


class Allowance:
    """What is left of it. A run that has used it up comes to its end: no step begins any more."""

    def __init__(self) -> None:
        self._bytes = MOST_BYTES
        self._steps = MOST_STEPS

    def take(self, size: int) -> None:
        """So many bytes."""
        self._bytes -= size

    def take_steps(self, number: int) -> None:
        self._steps -= number

    @property
    def complaint(self) -> str | None:
        """Why there may be no more of it, if that is so."""
        if self._bytes < 0:
            return f"This run has given and told {MOST_BYTES // 2**20} MiB, which is the most."
        if self._steps < 0:
            return f"The flows within this run have more than {MOST_STEPS} steps, which is the most."
        return None
