"""How many steps run at once, those of sub-flows included: places, given out first come first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Places:
    """Whoever asks is called when there is a place, and says whether it is taken."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[Callable[[], bool]] = deque()

    def ask(self, begin: Callable[[], bool]) -> None:
        if self._free and not self._waiting:
            if begin():
                self._free -= 1
        else:
            self._waiting.append(begin)

    def give_back(self) -> None:
        while self._waiting:
            if self._waiting.popleft()():
                return
        self._free += 1
