"""Routes for clients that put a base and a path together without looking: `//health`, `/api/health`."""

from __future__ import annotations

import re

from starlette.routing import Match, Route
from starlette.types import Scope

_SLASHES = re.compile("/{2,}")


class Lane(Route):
    """A route that is also found below `/api` and with slashes too many."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http":
            return Match.NONE, {}
        return super().matches({**scope, "path": canonical(scope["path"])})


def canonical(path: str) -> str:
    path = _SLASHES.sub("/", path)
    return path.removeprefix("/api") if path.startswith("/api/") else path
