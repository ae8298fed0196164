"""How a check ends when it does not pass."""

from __future__ import annotations


class Failed(Exception):
    """The executor does not do what the check asks for. Its text is the reason."""


class NoAnswer(Failed):
    """No HTTP answer came, or none that could be read."""


class Missing(Failed):
    """What the check's name stands for is not there at all."""


class NotTested(Exception):
    """It could not be tried. Its text says why, and what would help."""


class NotSupported(Exception):
    """The executor does not offer it, and does not have to."""

    def __init__(self, reason: str = "not supported by this executor") -> None:
        super().__init__(reason)
