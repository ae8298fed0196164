"""Why a request is not done; each door has its own shape for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Failed(Exception):
    """Why not, in words that the caller may see."""

    def __init__(
        self, code: str, message: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.headers = headers
        self.more = more
